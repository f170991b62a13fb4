import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.training.optimizers import Schedule, adafactor, adamw, covers


def rates(schedule, steps):
    return [float(schedule(step)) for step in range(steps)]


def test_schedules_by_hand():
    assert rates(Schedule(0.5), 3) == [0.5] * 3
    np.testing.assert_allclose(rates(Schedule(1.0, warmup_steps=4), 6), [0.25, 0.5, 0.75, 1, 1, 1])
    linear = Schedule(1.0, warmup_steps=2, decay="linear", total_steps=6)
    np.testing.assert_allclose(rates(linear, 8), [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0])
    to_tenth = Schedule(2.0, decay="linear", total_steps=2, end_factor=0.1)
    np.testing.assert_allclose(rates(to_tenth, 4), [2.0, 1.1, 0.2, 0.2], rtol=1e-6)


def test_rsqrt_is_t5x_s():
    # T5X: constant * linear_warmup * rsqrt_decay with base 1, its steps counted from 1 as ours are.
    warmup = 100
    ours = np.array(rates(Schedule(1 / np.sqrt(warmup), warmup_steps=warmup, decay="rsqrt"), 1000))
    step = np.arange(1, 1001)
    np.testing.assert_allclose(ours, np.minimum(1, step / warmup) / np.sqrt(np.maximum(step, warmup)), rtol=1e-5)


@settings(max_examples=25)
@given(st.integers(0, 50), st.sampled_from(["constant", "linear", "rsqrt"]), st.floats(1e-6, 10))
def test_schedules_never_exceed_their_peak(warmup, decay, peak):
    schedule = Schedule(peak, warmup_steps=warmup, decay=decay, total_steps=120)
    values = np.array(jax.vmap(schedule)(jnp.arange(150)))
    assert (values >= 0).all() and values.max() <= peak * 1.0001
    assert (np.diff(values[:warmup]) > 0).all() and (np.diff(values[warmup:]) <= 1e-7 * peak).all()


@pytest.mark.parametrize("wrong", [{"decay": "cosine"}, {"decay": "linear"}, {"learning_rate": -1.0}])
def test_impossible_schedules_are_refused(wrong):
    with pytest.raises(InputError):
        Schedule(**wrong)


def run(optimizer, params, gradients):
    factors = optimizer.factors(params)
    transformation = optimizer.build({path: factor for path, factor in factors.items() if factor})
    params = {path: jnp.asarray(value) for path, value in params.items() if factors[path]}
    state = transformation.init(params)
    for gradient in gradients:
        changes, state = transformation.update({path: gradient[path] for path in params}, state, params)
        params = optax.apply_updates(params, changes)
    return params, state


def example(seed=0, steps=5):
    random = np.random.default_rng(seed)
    shapes = {"encoder/wi/kernel": (4, 6), "encoder/wi/bias": (6,), "embedder/embedding": (7, 4)}

    def draw():
        return {path: random.normal(size=shape).astype(np.float32) for path, shape in shapes.items()}

    return draw(), [draw() for _ in range(steps)]


def test_adamw_against_the_paper_written_in_numpy():
    params, gradients = example()
    schedule = Schedule(0.1, warmup_steps=3)
    ours, _ = run(adamw(schedule, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.2, clip=1.5), params, gradients)
    expected = {path: value.astype(np.float64) for path, value in params.items()}
    m = {path: np.zeros_like(value) for path, value in expected.items()}
    v = {path: np.zeros_like(value) for path, value in expected.items()}
    for t, gradient in enumerate(gradients, start=1):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradient.values()))
        for path in expected:
            g = gradient[path] * min(1, 1.5 / norm)
            m[path] = 0.9 * m[path] + 0.1 * g
            v[path] = 0.99 * v[path] + 0.01 * g**2
            update = (m[path] / (1 - 0.9**t)) / (np.sqrt(v[path] / (1 - 0.99**t)) + 1e-8)
            decay = 0.0 if path.endswith("bias") else 0.2
            expected[path] -= float(schedule(t - 1)) * (update + decay * expected[path])
    for path in expected:
        np.testing.assert_allclose(ours[path], expected[path], rtol=2e-4, atol=1e-6)


def test_adafactor_remembers_rows_and_columns_only():
    params = {"a/kernel": np.ones((128, 256), np.float32), "a/bias": np.ones(256, np.float32)}
    gradients = [{path: np.full_like(value, 0.1) for path, value in params.items()}] * 3
    trained, state = run(adafactor(Schedule(0.01)), params, gradients)
    sizes = sorted(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert max(sizes) == 256
    # A constant gradient moves every weight by the learning rate times the parameter's own size, which is 1.
    np.testing.assert_allclose(trained["a/kernel"], 0.99**3, rtol=1e-3)


@pytest.mark.parametrize("make", [adamw, adafactor])
def test_multipliers_scale_the_step_of_a_group(make):
    params, gradients = example(steps=1)
    plain, _ = run(make(0.1), params, gradients)
    scaled, _ = run(make(0.1, multipliers={"encoder": 0.5, ".*": 1.0}), params, gradients)
    for path, value in params.items():
        factor = 0.5 if path.startswith("encoder") else 1.0
        np.testing.assert_allclose(scaled[path] - value, factor * (plain[path] - value), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [adamw, adafactor])
def test_frozen_groups_cost_no_memory(make):
    params, gradients = example()
    trained, state = run(make(0.1, multipliers={".*/embedding": 0.0}), params, gradients)
    assert set(trained) == {"encoder/wi/kernel", "encoder/wi/bias"}
    assert not any(
        "embedding" in jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]
    )


def test_the_first_expression_counts():
    optimizer = adamw(1e-3, multipliers={"a/b": 2.0, "a": 3.0})
    assert optimizer.factors(["a/b/c", "a/bc", "x"]) == {"a/b/c": 2.0, "a/bc": 3.0, "x": 1.0}


@pytest.mark.parametrize(
    "pattern, path, expected",
    [
        ("encoder", "encoder/layers_0/kernel", True),
        ("encoder", "encoder_norm/scale", False),
        ("token_embedder/embedding", "decoder_token_embedder/embedding", False),
        (".*embedding", "decoder_token_embedder/embedding", True),
        (r"encoder/layers_[0-2]", "encoder/layers_2/wi", True),
        (r"encoder/layers_[0-2]", "encoder/layers_21/wi", False),
    ],
)
def test_expressions_mean_whole_paths_or_folders(pattern, path, expected):
    assert covers(pattern, path) is expected


@pytest.mark.parametrize(
    "multipliers, problem",
    [
        ({"token_embeder": 0.0}, "matches no parameter"),
        ({"(": 0.0}, "not a regular expression"),
        ({"a": -1.0}, "negative"),
        ({".*": 0.0}, "every parameter is frozen"),
    ],
)
def test_wrong_multipliers_are_refused(multipliers, problem):
    with pytest.raises(InputError, match=problem):
        adamw(1e-3, multipliers=multipliers).factors(["token_embedder/embedding", "a/b"])


def test_settings_are_json_and_tell_optimisers_apart():
    base = adamw(Schedule(1e-3, warmup_steps=5), multipliers={"a": 0.5})
    assert json.loads(json.dumps(base.settings)) == base.settings
    others = [adamw(1e-3, multipliers={"a": 0.5}), adamw(Schedule(1e-3, warmup_steps=5)), adafactor(1e-3)]
    assert all(other.settings != base.settings for other in others)

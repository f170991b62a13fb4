import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gr_jax.training.batches import make_batches
from gr_jax.training.optimizers import Schedule, adafactor, adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import Trainer, flatten, unflatten
from tests.training.toy import ToyModel, toy_store

MESHES = [(8, 1), (2, 4)]


def losses(model, optimizer, mesh, *, steps=5, microbatches=1, rows=16, sharding="tensor"):
    """Loss of every step, and the parameters after the last."""
    batches = make_batches(toy_store(), batch_size=rows, lengths={"inputs": 32, "targets": 8})
    trainer = Trainer.create(model, optimizer, make_mesh(*mesh), batches.input_shapes, sharding=sharding)
    learn, frozen = trainer.split(trainer.initial_params(1))
    state = trainer.initial_state(learn)
    update = trainer.update(seed=2, microbatches=microbatches)
    found = []
    for _, batch in zip(range(steps), batches, strict=False):
        state, metrics = update(state, frozen, trainer.place_batch(batch))
        found.append(float(metrics["loss"][0] / metrics["loss"][1]))
    return np.array(found), {path: np.asarray(value) for path, value in {**frozen, **state.params}.items()}


@pytest.mark.parametrize(
    "optimizer",
    [adamw(Schedule(3e-2, warmup_steps=2)), pytest.param(adafactor(Schedule(3e-2)), marks=pytest.mark.slow)],
    ids=lambda o: o.kind,
)
def test_every_mesh_has_the_same_losses_with_dropout(optimizer):
    model = ToyModel(dropout=0.3)
    reference, params = losses(model, optimizer, (1, 1))
    assert reference[-1] < reference[0]
    for mesh in MESHES:
        found, other = losses(model, optimizer, mesh)
        np.testing.assert_allclose(found, reference, atol=1e-5)
        for path in params:
            np.testing.assert_allclose(other[path], params[path], atol=2e-4)
    found, _ = losses(model, optimizer, (4, 2), sharding="fsdp")
    np.testing.assert_allclose(found, reference, atol=1e-5)


@pytest.mark.parametrize("mesh", [(4, 2), pytest.param((1, 1), marks=pytest.mark.slow)])
def test_microbatches_have_the_gradient_of_one_batch(mesh):
    # Rows weigh differently much: a mean of means would differ.
    model = ToyModel(dropout=0.0)
    reference, params = losses(model, adamw(1e-2), (1, 1))
    for microbatches in (4,) if mesh == (4, 2) else (2, 4):
        found, other = losses(model, adamw(1e-2), mesh, microbatches=microbatches)
        np.testing.assert_allclose(found, reference, rtol=1e-5)
        for path in params:
            np.testing.assert_allclose(other[path], params[path], atol=1e-4)


def test_microbatches_have_dropout_of_their_own():
    class Noise:
        """Its loss is the dropout key's noise, so that equal keys show."""

        def get_initial_variables(self, rng, input_shapes, input_types=None):
            return {"params": {"w": jnp.ones(())}}

        def loss_fn(self, params, batch, dropout_rng):
            noise = jax.random.uniform(dropout_rng)
            return params["w"] * noise, {"weight_sum": jnp.float32(1), "square": noise**2}

    trainer = Trainer.create(Noise(), adamw(0.0), make_mesh(1, 1), {"x": (4,)})
    update = trainer.update(seed=0, microbatches=2)
    state = trainer.initial_state(trainer.initial_params(0))
    sums = []
    for _ in range(2):
        state, metrics = update(state, {}, {"x": jnp.zeros(4)})
        total, square = float(metrics["loss"][0]), float(metrics["square"][0])
        assert abs(2 * square - total**2) > 1e-6  # a² + b² = (a + b)² / 2 only if a = b
        sums.append(total)
    assert sums[0] != sums[1]


def test_the_update_is_the_gradient_of_the_weighted_mean():
    model, optimizer = ToyModel(dropout=0.0), adamw(1e-2, clip=0.0)
    batches = make_batches(toy_store(), batch_size=4, lengths={"inputs": 32, "targets": 8})
    batch = next(iter(batches))
    trainer = Trainer.create(model, optimizer, make_mesh(1, 1), batches.input_shapes)
    params = trainer.initial_params(0)
    before = jax.tree.map(np.asarray, unflatten(params))

    def mean(p):
        loss, metrics = model.loss_fn(p, batch, None)
        return loss / metrics["weight_sum"]

    gradient = flatten(jax.jit(jax.grad(mean))(before))
    state, metrics = trainer.update(seed=0)(trainer.initial_state(params), {}, trainer.place_batch(batch))
    norm = np.sqrt(sum((np.asarray(g) ** 2).sum() for g in gradient.values()))
    np.testing.assert_allclose(metrics["gradient_norm"][0], norm, rtol=1e-5)
    # Adam's first step is the sign of the gradient times the learning rate.
    for path, value in flatten(before).items():
        g = np.asarray(gradient[path])
        np.testing.assert_allclose(state.params[path], value - 1e-2 * g / (np.abs(g) + 1e-8), rtol=1e-3, atol=1e-5)


def test_frozen_parameters_stay_and_are_not_differentiated():
    optimizer = adamw(1e-1, multipliers={"input_embedding": 0.0})
    _, params = losses(ToyModel(), optimizer, (1, 1), steps=2)
    _, initial = losses(ToyModel(), optimizer, (1, 1), steps=0)
    for path in params:
        assert np.array_equal(params[path], initial[path]) == (path == "input_embedding")


def test_frozen_parameters_are_not_differentiated():
    @jax.custom_vjp
    def forward_only(x):
        return x

    def backward(residuals, cotangent):
        raise AssertionError("differentiated")

    forward_only.defvjp(lambda x: (x, None), backward)

    class Guarded(ToyModel):
        def loss_fn(self, params, batch, dropout_rng):
            guarded = {**params, "input_embedding": forward_only(params["input_embedding"])}
            return super().loss_fn(guarded, batch, dropout_rng)

    with pytest.raises(AssertionError, match="differentiated"):
        losses(Guarded(), adamw(), (1, 1), steps=1)
    losses(Guarded(), adamw(multipliers={"input_embedding": 0.0}), (1, 1), steps=1)


def test_the_state_is_updated_in_place():
    batches = make_batches(toy_store(), batch_size=4)
    trainer = Trainer.create(ToyModel(), adamw(), make_mesh(1, 1), batches.input_shapes)
    state = trainer.initial_state(trainer.initial_params(0))
    trainer.update(seed=0)(state, {}, trainer.place_batch(next(iter(batches))))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_states_survive_the_way_through_arrays():
    batches = make_batches(toy_store(), batch_size=4)
    optimizer = adamw(multipliers={"input_embedding": 0.0})
    trainer = Trainer.create(ToyModel(), optimizer, make_mesh(2, 2), batches.input_shapes)
    learn, frozen = trainer.split(trainer.initial_params(0))
    state, _ = trainer.update(seed=0)(trainer.initial_state(learn), frozen, trainer.place_batch(next(iter(batches))))
    arrays = {g: {p: np.asarray(x) for p, x in flat.items()} for g, flat in trainer.to_arrays(state, frozen).items()}
    shapes = trainer.abstract_arrays()
    for group, flat in arrays.items():
        assert {p: (x.shape, x.dtype) for p, x in flat.items()} == {
            p: (x.shape, x.dtype) for p, x in shapes[group].items()
        }
    again, frozen_again = trainer.from_arrays(arrays)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    for left, right in zip(jax.tree.leaves((state, frozen)), jax.tree.leaves((again, frozen_again)), strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.sharding == right.sharding


@pytest.mark.parametrize(
    "optimizer",
    [adamw(Schedule(1e-2)), pytest.param(adafactor(Schedule(1e-2)), marks=pytest.mark.slow)],
    ids=lambda o: o.kind,
)
def test_an_update_that_is_left_out_moves_the_schedule_alone(optimizer):
    batches = make_batches(toy_store(), batch_size=8, lengths={"inputs": 32, "targets": 8})
    trainer = Trainer.create(ToyModel(), optimizer, make_mesh(1, 1), batches.input_shapes)
    state = trainer.initial_state(trainer.split(trainer.initial_params(1))[0])
    before = jax.tree.map(np.asarray, state)
    update = trainer.update(seed=2, skip=True)
    after, _ = update(state, {}, trainer.place_batch(next(iter(batches))), -1.0)

    def is_schedule(part):
        return isinstance(part, optax.ScaleByScheduleState)

    left, right = (jax.tree.leaves(one.opt_state, is_leaf=is_schedule) for one in (before, after))
    assert [(int(old.count), int(new.count)) for old, new in zip(left, right, strict=True) if is_schedule(old)] == [
        (0, int(after.step))
    ]
    for old, new in zip(left, right, strict=True):
        if not is_schedule(old):
            np.testing.assert_array_equal(old, new)
    for path, value in before.params.items():
        np.testing.assert_array_equal(value, after.params[path])

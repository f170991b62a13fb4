import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, T5Config
from tests import compiled

BERT = BertConfig(vocab_size=50, emb_dim=12, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=24)
T5 = T5Config(
    vocab_size=30, emb_dim=16, num_heads=2, head_dim=6, num_encoder_layers=1, num_decoder_layers=2, mlp_dim=20,
    mlp_activations=("gelu", "linear"),
)  # fmt: skip
TIED = T5Config(**{**vars(T5), "logits_via_embedding": True, "mlp_activations": ("relu",)})
MODULES = {
    "t5": EncoderDecoder(TIED),
    "bert_to_t5_residual": EncoderDecoder(BERT, T5, query_residual=True),
    "bert_to_t5_first_state": EncoderDecoder(BERT, T5, query_residual=True, query_pooling="cls"),
}


def make_params(module, seed=0, noise=0.3):
    """First parameters plus noise, so that nothing is zero or one."""
    tokens = np.ones((1, 4), np.int32)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(seed), tokens, tokens)["params"])
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + noise * rng.normal(size=leaf.shape).astype(np.float32), params)


SLOW = pytest.param("bert_to_t5_first_state", marks=pytest.mark.slow)  # see the untrained features


@pytest.fixture(scope="module", params=("t5", "bert_to_t5_residual", SLOW))
def network(request):
    return network_of(request.param)


@functools.cache
def network_of(name):
    return MODULES[name], make_params(MODULES[name])


def rows(rng, lengths, width, vocab_size):
    tokens = np.zeros((len(lengths), width), np.int32)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = rng.integers(1, vocab_size, length)
    return tokens


@functools.partial(jax.jit, static_argnums=0)
def _features(module, params, args, kwargs):
    return module.apply({"params": params}, *args, **kwargs, method="features")


def features(module, params, *args, **kwargs):
    return np.asarray(_features(module, params, args, kwargs))


def test_padding_changes_nothing(network):
    rng = np.random.default_rng(0)
    module, params = network
    source, target = rows(rng, (5, 3), 5, 30), rng.integers(1, 30, (2, 4)).astype(np.int32)
    target[:, 0] = 0
    padded = features(module, params, np.pad(source, ((0, 1), (0, 6))), np.pad(target, ((0, 1), (0, 2))))
    np.testing.assert_allclose(padded[:2, :4], features(module, params, source, target), atol=2e-5)


def test_packed_rows_equal_rows_of_their_own(network):
    rng = np.random.default_rng(1)
    module, params = network
    sources, targets = (4, 2, 5), (3, 2, 4)
    source, target = rows(rng, sources, 5, 30), rows(rng, targets, 4, 30)
    target = np.pad(target, ((0, 0), (1, 0)))[:, :-1]  # shifted right: starts with 0
    alone = features(module, params, source, target)

    def pack(rows_, lengths, width):
        row, segments, positions = (np.zeros((1, width), np.int32) for _ in range(3))
        at = 0
        for i, length in enumerate(lengths):
            row[0, at : at + length] = rows_[i, :length]
            segments[0, at : at + length], positions[0, at : at + length] = i + 1, np.arange(length)
            at += length
        return row, segments, positions

    packed_source, source_segments, positions = pack(source, sources, 13)
    packed_target, target_segments, _ = pack(target, targets, 11)
    segments = {"encoder_segment_ids": source_segments, "decoder_segment_ids": target_segments}
    packed = features(module, params, packed_source, packed_target, encoder_positions=positions, **segments)
    at = 0
    for i, length in enumerate(targets):
        np.testing.assert_allclose(packed[0, at : at + length], alone[i, :length], atol=2e-5)
        at += length
    # Positions follow from the segments where they are not given.
    derived = features(module, params, packed_source, packed_target, **segments)
    np.testing.assert_allclose(derived[0, :at], packed[0, :at], atol=1e-6)


STEPS = [(name, traced) for name in MODULES for traced in (False, True)]
STEPS_DEFAULT = {("t5", True), ("bert_to_t5_residual", False)}


@pytest.mark.parametrize(
    ("name", "traced"), [pytest.param(*one, marks=() if one in STEPS_DEFAULT else pytest.mark.slow) for one in STEPS]
)
def test_steps_equal_teacher_forcing_on_branching_paths(name, traced):
    """Hypotheses die and split at random; each step's features are those of the whole path, read from shared slots."""
    rng = np.random.default_rng(2)
    module, params = network_of(name)
    batch, beams, steps = 3, 4, 3
    source = rows(rng, (6, 2, 4), 6, 30)
    encode = jax.jit(lambda p, x: module.apply({"params": p}, x, method="encode"))
    start = jax.jit(lambda p, e, x: module.apply({"params": p}, e, x, beams, steps, method="init_cache"))

    def one_step(p, tokens, step, ancestors, cache):
        return module.apply({"params": p}, tokens, step, ancestors, cache, method="step")

    take_step = jax.jit(one_step) if traced else jax.jit(one_step, static_argnums=2)
    cache = start(params, encode(params, source), source)
    live = beams if traced else 1
    paths, ancestors = np.zeros((batch, live, 1), np.int32), np.full((batch, live, steps), beams - 1, np.int32)
    for step in range(steps):
        found, cache = take_step(params, paths[:, :, -1], jnp.int32(step) if traced else step, ancestors, cache)
        live = paths.shape[1]
        padded = np.zeros((batch, beams, steps), np.int32)
        padded[:, :live, : step + 1] = paths
        forced = features(module, params, source.repeat(beams, 0), padded.reshape(batch * beams, steps))
        expected = forced.reshape(batch, beams, steps, -1)[:, :live, step]
        np.testing.assert_allclose(found, expected, atol=3e-5)
        parents = rng.integers(0, live, (batch, beams))
        paths = np.take_along_axis(paths, parents[:, :, None], axis=1)
        paths = np.concatenate([paths, rng.integers(1, 30, (batch, beams, 1))], axis=2).astype(np.int32)
        ancestors = np.take_along_axis(ancestors, parents[:, :, None], axis=1)
        ancestors[:, :, step] = parents


def test_cross_attention_is_cached_once_per_query(network):
    module, params = network
    source = np.ones((2, 7), np.int32)
    encoded = jax.eval_shape(lambda p: module.apply({"params": p}, source, method="encode"), params)
    cache = jax.eval_shape(
        lambda p, e: module.apply({"params": p}, e, source, 9, 3, method="init_cache"), params, encoded
    )
    assert {leaf.shape for leaf in jax.tree.leaves(cache.cross_attention)} == {(2, 7, 2, 6)}
    assert {leaf.shape for leaf in jax.tree.leaves(cache.self_attention)} == {(2, 3, 9, 2, 6)}


@pytest.mark.parametrize(
    "module",
    (
        MODULES["bert_to_t5_residual"],
        MODULES["bert_to_t5_first_state"],
        EncoderDecoder(TIED, TIED, share_embeddings=False, query_residual=True),
    ),
    ids=("bert", "bert_first_state", "t5_tied"),
)
def test_untrained_features_are_the_query_vector(module):
    """The decoder adds nothing yet: what dense retrieval would compare is what the output table is multiplied by."""
    source = rows(np.random.default_rng(3), (5, 3), 6, 30)
    target = np.array([[0, 4, 5], [0, 6, 7]], np.int32)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(0), source, target)["params"])
    states = np.asarray(compiled.run(module, params, source, method="encode"))
    pooled = np.stack([states[0, :5].mean(0), states[1, :3].mean(0)])
    if module.query_pooling == "cls":
        pooled = states[:, 0]
    unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(features(module, params, source, target), unit[:, None].repeat(3, 1), atol=1e-5)
    scaled = {**params, "query_scale": np.full_like(params["query_scale"], 2)}
    twice = features(module, scaled, source, target)
    np.testing.assert_allclose(twice, 2 * unit[:, None].repeat(3, 1), atol=1e-5)


def test_the_decoder_learns_from_a_zero_start():
    module = MODULES["bert_to_t5_residual"]
    source, target = np.ones((1, 3), np.int32), np.array([[0, 4]], np.int32)
    params = jax.jit(module.init)(jax.random.key(0), source, target)["params"]
    gradient = jax.jit(jax.grad(lambda p: jnp.square(module.apply({"params": p}, source, target)).sum()))(params)
    assert np.abs(gradient["decoder"]["features_dense"]["kernel"]).max() > 0
    assert np.isfinite(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])).all()


def test_logits_are_features_times_output_table(network):
    rng = np.random.default_rng(4)
    module, params = network
    source, target = rows(rng, (5, 3), 5, 30), rows(rng, (3, 2), 3, 30)
    table = np.asarray(compiled.run(module, params, method="output_table"))
    assert table.shape == (30, module.feature_dim)
    logits = jax.jit(module.apply)({"params": params}, source, target)
    np.testing.assert_allclose(logits, features(module, params, source, target) @ table.T, rtol=1e-4, atol=1e-4)


def test_a_row_of_padding_alone_is_finite(network):
    module, params = network
    zeros = np.zeros((1, 4), np.int32)
    assert np.isfinite(features(module, params, zeros, zeros)).all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    (
        ({"encoder_config": BERT}, "needs a decoder"),
        ({"encoder_config": BERT, "decoder_config": T5, "share_embeddings": True}, "share"),
        ({"encoder_config": BERT, "decoder_config": TIED, "query_residual": True}, "tied"),
        ({"encoder_config": BERT, "decoder_config": T5, "query_pooling": "pooler"}, "query_pooling"),
    ),
)
def test_combinations_that_do_not_fit_are_refused(arguments, says):
    tokens = np.ones((1, 4), np.int32)
    with pytest.raises(InputError, match=says):
        jax.eval_shape(EncoderDecoder(**arguments).init, jax.random.key(0), tokens, tokens)

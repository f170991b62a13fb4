import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from gr_jax.models import BertConfig, EncoderDecoder, EncoderDecoderModel, T5Config
from gr_jax.models.network_folder import load_network, save_network
from gr_jax.models.pawa import bilinear
from gr_jax.systems.gdr.model import GDRModel

LEVELS = ((2, 4), (6, 5), (11, 5))
BERT = BertConfig(vocab_size=50, emb_dim=12, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=24)
T5 = T5Config(vocab_size=16, emb_dim=16, num_heads=2, head_dim=6, num_decoder_layers=1, mlp_dim=20)
PLAIN = EncoderDecoder(BERT, T5, query_residual=True)
MODULE = EncoderDecoder(BERT, T5, query_residual=True, pawa_layers=2)
SOURCES = np.array([[5, 6, 7, 0], [9, 8, 0, 0]], np.int32)


@functools.cache
def initial():
    tokens = np.ones((1, 4), np.int32)
    return jax.device_get(jax.jit(MODULE.init)(jax.random.key(0), tokens, tokens)["params"])


@functools.cache
def parameters():
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: leaf + 0.2 * rng.normal(size=leaf.shape).astype(np.float32), initial())


@functools.cache
def compiled(module, method):
    return jax.jit(lambda params, *args: module.apply({"params": params}, *args, method=method))


def apply(method, *args, module=MODULE, params=None):
    return np.asarray(compiled(module, method)(parameters() if params is None else params, *args), np.float64)


def test_logits_are_those_of_a_table_for_every_prefix():
    inputs = np.array([[0, 2, 7], [0, 4, 7]], np.int32)
    features, params = apply("features", SOURCES, inputs), parameters()
    own, prefix = features[..., :12], features[..., 12:]
    table = params["decoder"]["logits_dense"]["kernel"].T.astype(np.float64)  # W, [vocab, f]
    adapted = np.einsum("vkj,btj->btvk", params["pawa"]["kernel"].astype(np.float64), prefix)  # A of every position
    expected = np.einsum("btk,btvk->btv", own, table + adapted)
    assert np.abs(expected - own @ table.T).max() > 0.5
    np.testing.assert_allclose(apply(None, SOURCES, inputs), expected, atol=1e-4)


def test_what_is_made_of_a_prefix_knows_the_prefix_alone():
    inputs = np.array([[0, 2, 7], [0, 4, 7]], np.int32)
    prefix = apply("features", SOURCES, inputs)[..., 12:]
    swapped = apply("features", SOURCES[::-1], inputs)[..., 12:]
    np.testing.assert_allclose(prefix, swapped, atol=1e-6)  # whatever the query
    np.testing.assert_allclose(prefix[0, 0], prefix[1, 0], atol=1e-6)
    later = np.abs(prefix[0] - prefix[1]).max(-1)[1:]  # the same token at the end, after another one
    assert (later > 1e-2).all()


def test_a_layer_widens_what_is_made_of_a_prefix(tmp_path):
    """p is then gelu(states · kernel), in the rows of a batch and in decoding."""
    wide = EncoderDecoder(BERT, T5, query_residual=True, pawa_layers=2, pawa_width=40)
    wider = np.random.default_rng(1).normal(size=(16, 40)).astype(np.float32) / 4
    params = {**parameters(), "pawa": {**parameters()["pawa"], "wider": {"kernel": wider}}}
    params["pawa"]["kernel"] = np.zeros((16, 12, 40), np.float32)
    inputs = np.array([[0, 2, 7], [0, 4, 7]], np.int32)
    states = apply("features", SOURCES, inputs)[..., 12:]
    made = apply("features", SOURCES, inputs, module=wide, params=params)[..., 12:]
    x = states @ wider
    gelu = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(made, gelu, atol=1e-5)
    model = EncoderDecoderModel(wide, normalize="level", levels=LEVELS)
    decoder = model.decoder(params)

    @jax.jit
    def step(decoder):
        cache = decoder.start(SOURCES, beams=1, max_len=3)
        return decoder.step(np.zeros((2, 1), np.int32), 0, np.zeros((2, 1, 3), np.int32), cache)[0]

    features = step(decoder)
    np.testing.assert_allclose(features[:, 0, 12:], made[:, 0], atol=1e-5)
    save_network(tmp_path, wide, params)
    assert load_network(tmp_path)[0].pawa_width == 40


def test_without_training_the_table_is_the_one_that_it_would_be():
    params = initial()
    inputs = np.array([[0, 2, 7], [0, 4, 7]], np.int32)
    plain = {name: value for name, value in params.items() if name != "pawa"}
    expected = apply(None, SOURCES, inputs, module=PLAIN, params=plain)
    np.testing.assert_allclose(apply(None, SOURCES, inputs, params=params), expected, atol=1e-5)


def clusters(kind):
    rng = np.random.default_rng(2)
    if kind == "levels":
        rows = {tuple(int(rng.integers(start, start + size)) for start, size in LEVELS) for _ in range(24)}
        return Docids.build(sorted(rows), vocab_size=16, levels=LEVELS)
    rows = {tuple(rng.integers(2, 6, rng.integers(1, 4)).tolist()) for _ in range(24)}
    return Docids.build(sorted(rows), vocab_size=16, eos_id=1)


def brute_force(docids, levels):
    """Teacher-forced log-probability of every docid for every query: (target tokens, batch, scores)."""
    count, length = len(docids), docids.max_steps
    targets = np.zeros((count, length), np.int32)
    for row in range(count):
        targets[row, : len(docids.target(row))] = docids.target(row)
    batch = {
        "encoder_input_tokens": np.repeat(SOURCES, count, 0),
        "decoder_input_tokens": np.tile(np.pad(targets, ((0, 0), (1, 0)))[:, :-1], (2, 1)),
        "decoder_target_tokens": np.tile(targets, (2, 1)),
    }
    batch["decoder_loss_weights"] = (batch["decoder_target_tokens"] != 0).astype(np.float32)
    logits = apply(None, batch["encoder_input_tokens"], batch["decoder_input_tokens"])  # [2 · count, length, vocab]
    scores = np.zeros(2 * count)
    for position in range(length):
        start, size = (0, 16) if levels is None else levels[position]
        target = batch["decoder_target_tokens"][:, position]
        log_z = np.log(np.exp(logits[:, position, start : start + size]).sum(-1))
        chosen = logits[np.arange(2 * count), position, target]
        scores += (chosen - log_z) * batch["decoder_loss_weights"][:, position]
    return targets, batch, scores.reshape(2, count)


@pytest.mark.parametrize(
    "kind, beams, unroll",
    (("eos", None, None), ("levels", 4, 1), pytest.param("levels", None, None, marks=pytest.mark.slow)),
)
def test_beams_score_as_teacher_forcing_does(kind, beams, unroll):
    """With as many beams as docids all are found, best first. With few, hypotheses die and slots hold what others
    wrote; unroll=1 puts all steps but the first into a loop."""
    docids = clusters(kind)
    levels, normalize = (LEVELS, "level") if kind == "levels" else (None, "vocabulary")
    model = EncoderDecoderModel(MODULE, normalize=normalize, levels=levels, eos_id=docids.eos_id)
    targets, batch, scores = brute_force(docids, levels)
    settings = {"beams": beams or len(docids), "max_len": docids.max_steps}

    @jax.jit
    def search(decoder, constraint, sources):
        cache = decoder.start(sources, **settings)
        return beam_search(decoder, cache, constraint, normalize=normalize, unroll=unroll, **settings)

    found = search(model.decoder(parameters()), Trie.from_docids(docids), SOURCES)
    for row in range(2):
        if beams is None:
            order = np.argsort(-scores[row], kind="stable")
            np.testing.assert_array_equal(found.sequences[row], targets[order])
            np.testing.assert_allclose(found.scores[row], scores[row][order], atol=1e-4)
        known = {tuple(t): x for t, x in zip(targets.tolist(), scores[row].tolist(), strict=True)}
        for sequence, score in zip(found.sequences[row].tolist(), found.scores[row].tolist(), strict=True):
            assert score == pytest.approx(known[tuple(sequence)], abs=1e-4)
    if beams is None:  # and so does the loss
        np.testing.assert_allclose(jax.jit(model.score_batch)(parameters(), batch), scores.reshape(-1), atol=1e-4)


def sizes(jaxpr):
    """Elements of every array that a program makes on its way, those of the programs inside it included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for part in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(part, "eqns") or hasattr(part, "jaxpr"):
                yield from sizes(getattr(part, "jaxpr", part))


def test_no_table_is_made_for_any_prefix():
    rows, width, prefix, vocab = 640, 16, 8, 64
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((rows, width), (rows, prefix), (vocab, width, prefix))]
    program = jax.make_jaxpr(jax.grad(lambda *x: jnp.square(bilinear(*x)).sum(), argnums=(0, 1, 2)))(*shapes)
    largest = max(sizes(program.jaxpr))
    assert largest == rows * vocab < rows * vocab * prefix  # the logits themselves


def test_bilinear_and_its_gradient():
    random = np.random.default_rng(3)
    left, right, kernel = (random.normal(size=s).astype(np.float32) for s in ((2, 3, 5), (2, 3, 4), (11, 5, 4)))

    def plain(left, right, kernel):
        return jnp.einsum("btk,vkj,btj->btv", left, kernel, right)

    found, expected = (
        jax.jit(jax.value_and_grad(lambda *x, f=f: (jnp.sin(f(*x)).sum(), f(*x)), argnums=(0, 1, 2), has_aux=True))(
            left, right, kernel
        )
        for f in (bilinear, plain)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), found, expected)


@pytest.mark.slow
def test_gdr_trains_the_head():
    model = GDRModel(MODULE, levels=LEVELS, normalize="level")
    batch = {
        "encoder_input_tokens": SOURCES,
        "decoder_input_tokens": np.array([[0, 2, 7], [0, 4, 7]], np.int32),
        "decoder_target_tokens": np.array([[2, 7, 12], [4, 7, 15]], np.int32),
        "document_index": np.arange(2, dtype=np.int32),
        "document_vectors": np.random.default_rng(1).normal(size=(2, 12)).astype(np.float32),
    }
    key = jax.random.key(2)
    gradient = jax.jit(jax.grad(lambda p: model.loss_fn(p, batch, key)[0]))(parameters())["pawa"]
    assert all(float(jnp.abs(gradient[name]).max()) > 1e-4 for name in ("kernel", "source"))
    assert jax.tree.reduce(max, jax.tree.map(lambda x: float(jnp.abs(x).max()), gradient["decoder"])) > 1e-4


def test_a_folder_gives_the_same_network_back(tmp_path):
    save_network(tmp_path, MODULE, parameters())
    module, params = load_network(tmp_path)
    assert (module.pawa_layers, module.pawa_width) == (2, 0)
    jax.tree.map(np.testing.assert_array_equal, params, dict(parameters()))

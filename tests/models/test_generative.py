import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import BertConfig, EncoderDecoder, EncoderDecoderModel, GenerativeDecoder, T5Config

LEVELS = ((2, 4), (6, 5), (11, 5))
BERT = BertConfig(vocab_size=50, emb_dim=12, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=24)
T5 = T5Config(vocab_size=16, emb_dim=16, num_heads=2, head_dim=6, num_decoder_layers=1, mlp_dim=20, dropout_rate=0.2)
MODULE = EncoderDecoder(BERT, T5, query_residual=True)


@pytest.fixture(scope="module")
def params():
    tokens = np.ones((1, 4), np.int32)
    first = jax.device_get(jax.jit(MODULE.init)(jax.random.key(0), tokens, tokens)["params"])
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape).astype(np.float32), first)


@pytest.fixture(scope="module")
def batch():
    """Eight pairs; queries of 1 to 6 tokens, docids of one token per level, the last pair without weight."""
    rng = np.random.default_rng(1)
    source = rng.integers(1, 50, (8, 6)).astype(np.int32)
    source[np.arange(6)[None] >= rng.integers(1, 7, 8)[:, None]] = 0
    targets = np.stack([rng.integers(start, start + size, 8) for start, size in LEVELS], axis=1).astype(np.int32)
    weights = np.ones((8, 3), np.float32)
    weights[-1] = 0
    return {
        "encoder_input_tokens": source,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": weights,
    }


@pytest.fixture(scope="module")
def logits(params, batch):
    return np.asarray(
        jax.jit(MODULE.apply)({"params": params}, batch["encoder_input_tokens"], batch["decoder_input_tokens"]),
        np.float64,
    )


def packed(batch, per_row=2):
    """The same pairs, two in each row, padding between them."""
    count, (source, target) = len(batch["encoder_input_tokens"]), (6, 3)
    segments = np.tile(np.arange(1, per_row + 1), (count // per_row, 1))
    result = {name: array.reshape(count // per_row, -1) for name, array in batch.items()}
    result["encoder_segment_ids"] = segments.repeat(source, 1) * (result["encoder_input_tokens"] != 0)
    result["decoder_segment_ids"] = segments.repeat(target, 1)
    shape = (count // per_row, 1)
    result["encoder_positions"] = np.tile(np.arange(source), (shape[0], per_row))
    result["decoder_positions"] = np.tile(np.arange(target), (shape[0], per_row))
    return {name: array.astype(np.float32 if "weights" in name else np.int32) for name, array in result.items()}


def log_probs(logits, targets, normalize):
    """[rows, levels] from the definition."""
    found = np.zeros(targets.shape)
    for level, (start, size) in enumerate(LEVELS):
        block = slice(start, start + size) if normalize == "level" else slice(None)
        log_z = np.log(np.exp(logits[:, level, block]).sum(axis=-1))
        found[:, level] = np.take_along_axis(logits[:, level], targets[:, level, None], axis=1)[:, 0] - log_z
    return found


@pytest.mark.parametrize("normalize", ("vocabulary", "level"))
def test_loss_and_metrics(normalize, params, batch, logits):
    model = EncoderDecoderModel(MODULE, normalize=normalize, levels=LEVELS)
    loss, metrics = jax.jit(model.loss_fn)(params, batch)
    expected = log_probs(logits, batch["decoder_target_tokens"], normalize) * batch["decoder_loss_weights"]
    np.testing.assert_allclose(loss, -expected.sum(), rtol=1e-4)
    summary = model.summarize(metrics)
    assert metrics["weight_sum"] == 21
    assert summary["loss"] == pytest.approx(-expected.sum() / 21, rel=1e-4)
    assert summary["nll"] == pytest.approx(summary["loss"], rel=1e-6)
    for level, (start, size) in enumerate(LEVELS):
        block = slice(start, start + size) if normalize == "level" else slice(0, None)
        best = logits[:7, level, block].argmax(-1) + block.start
        right = best == batch["decoder_target_tokens"][:7, level]
        assert summary[f"accuracy/level_{level}"] == pytest.approx(right.mean())
    np.testing.assert_allclose(jax.jit(model.score_batch)(params, batch), expected.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", ("level", pytest.param("vocabulary", marks=pytest.mark.slow)))
def test_packing_leaves_the_loss_as_it_is(normalize, params, batch):
    model = EncoderDecoderModel(MODULE, normalize=normalize, levels=LEVELS, label_smoothing=0.1, z_loss=1e-3)
    compute = jax.jit(model.loss_fn)
    (loss, metrics), (packed_loss, packed_metrics) = (compute(params, b) for b in (batch, packed(batch)))
    np.testing.assert_allclose(packed_loss, loss, rtol=1e-5)
    for name, value in model.summarize(metrics).items():
        assert model.summarize(packed_metrics)[name] == pytest.approx(value, rel=1e-4), name


def test_sums_add_up_over_microbatches_and_devices(params, batch):
    model = EncoderDecoderModel(MODULE, levels=LEVELS)
    value_and_gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))
    (loss, metrics), gradient = value_and_gradient(params, batch)
    parts = [value_and_gradient(params, {k: v[i::2] for k, v in batch.items()}) for i in range(2)]
    sums = jax.tree.map(lambda *x: sum(x), *parts)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    placed = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    for (other_loss, other_metrics), other_gradient in (sums, value_and_gradient(params, placed)):
        np.testing.assert_allclose(other_loss, loss, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), other_metrics, metrics)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), other_gradient, gradient)


def test_rdrop_adds_what_two_dropout_passes_disagree_on(params, batch):
    key = jax.random.key(3)
    half, whole = (
        float(jax.jit(EncoderDecoderModel(MODULE, rdrop=weight).loss_fn)(params, batch, key)[0])
        for weight in (0.5, 1.0)
    )
    plain = jax.jit(EncoderDecoderModel(MODULE).loss_fn)
    passes = [float(plain(params, batch, one)[0]) for one in jax.random.split(key)]
    disagreement = 2 * (whole - half)
    assert disagreement > 1e-3
    assert whole == pytest.approx(np.mean(passes) + disagreement, rel=1e-4)
    # Without dropout the passes agree, and one is enough.
    without = jax.jit(EncoderDecoderModel(MODULE, rdrop=1.0).loss_fn)(params, batch)[0]
    assert without == pytest.approx(float(plain(params, batch)[0]), rel=1e-6)


def test_initial_variables_have_parameters_and_axes():
    model = EncoderDecoderModel(MODULE)
    shapes = {"encoder_input_tokens": (2, 6), "decoder_input_tokens": (2, 3), "decoder_target_tokens": (2, 3)}
    made = jax.eval_shape(lambda key: model.get_initial_variables(key, shapes), jax.random.key(0))
    count = len(jax.tree.leaves(made["params"]))
    is_axes = lambda x: hasattr(x, "names")  # noqa: E731
    assert len(jax.tree.leaves(made["params_axes"], is_leaf=is_axes)) == count


@pytest.fixture(scope="module")
def docids():
    rng = np.random.default_rng(2)
    rows = {tuple(int(rng.integers(start, start + size)) for start, size in LEVELS) for _ in range(30)}
    return Docids.build(sorted(rows), vocab_size=16, levels=LEVELS)


@pytest.mark.parametrize("normalize", ("level", pytest.param("vocabulary", marks=pytest.mark.slow)))
def test_beams_score_as_the_loss_does(normalize, params, batch, docids):
    """With as many beams as docids all are found, best first, each with its teacher-forced log-probability."""
    model = EncoderDecoderModel(MODULE, normalize=normalize, levels=LEVELS, constraint=Trie.from_docids(docids))
    sources, beams = batch["encoder_input_tokens"][:2], len(docids)

    @jax.jit
    def search(decoder, constraint, sources):
        cache = decoder.start(sources, beams=beams, max_len=3)
        return beam_search(decoder, cache, constraint, beams=beams, max_len=3, normalize=normalize)

    found = search(model.decoder(params), model.constraint, sources)
    score = jax.jit(model.score_batch)
    for row, source in enumerate(sources):
        targets = docids.tokens
        all_scores = score(
            params,
            {
                "encoder_input_tokens": np.repeat(source[None], beams, 0),
                "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
                "decoder_target_tokens": targets,
                "decoder_loss_weights": np.ones(targets.shape, np.float32),
            },
        )
        order = np.argsort(-np.asarray(all_scores), kind="stable")
        np.testing.assert_array_equal(found.sequences[row], targets[order])
        np.testing.assert_allclose(found.scores[row], np.asarray(all_scores)[order], atol=1e-4)


def test_predictions_are_t5xs_best_last(params, batch, docids):
    model = EncoderDecoderModel(MODULE, levels=LEVELS, constraint=Trie.from_docids(docids))
    predict = jax.jit(model.predict_batch_with_aux, static_argnames=("return_all_decodes", "num_decodes"))
    sequences, aux = predict(params, batch, return_all_decodes=True, num_decodes=4)
    assert sequences.shape == (8, 4, 3)
    assert (np.diff(aux["scores"], axis=1) >= 0).all()
    best, best_aux = predict(params, batch, num_decodes=4)
    np.testing.assert_array_equal(best, sequences[:, -1])
    np.testing.assert_allclose(best_aux["scores"], aux["scores"][:, -1], rtol=1e-5)
    with pytest.raises(InputError, match="prompt"):
        model.predict_batch_with_aux(params, batch, prompt_with_targets=True)


def test_settings_that_do_not_fit_are_refused(params):
    with pytest.raises(InputError, match="Choose one of"):
        EncoderDecoderModel(MODULE, normalize="softmax")
    with pytest.raises(InputError, match="needs docids with levels"):
        EncoderDecoderModel(MODULE, normalize="level")
    with pytest.raises(InputError, match="level"):
        GenerativeDecoder(MODULE, params).scores(jnp.zeros((1, 12)), 0, "level")

"""The generator of queries against its formula, written out here in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gr_jax.opening  # noqa: F401
from gr_jax.constraints import Everything
from gr_jax.decoding import beam_search
from gr_jax.decoding.sampling import sample
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.attention import causal_mask
from gr_jax.models.bert import BertConfig
from gr_jax.models.copy_network import CopyFeatures, CopyNetwork
from gr_jax.models.copy_scores import CopyScores, word_numbers
from gr_jax.models.copying import CopyDecoder, CopyNetworkModel
from gr_jax.models.t5 import T5Config, T5Decoder
from gr_jax.models.text_encoder import TextEncoder
from tests import compiled

VOCAB, EOS = 23, 2
SIZES = T5Config(
    vocab_size=VOCAB, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=2, mlp_dim=16
)
BERT = BertConfig(vocab_size=VOCAB, emb_dim=12, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=8)
ENCODERS = {"bert": BERT, "t5": SIZES}
WORDS = (EOS, 7, 9, 5)
# Repeats a token, copies one of the words, is padded; the second row is shorter.
SOURCE = np.array([[3, 7, 3, 11, 12, 0], [13, 9, 14, 0, 0, 0]], np.int32)


def model_of(encoder):
    return CopyNetworkModel(CopyNetwork(ENCODERS[encoder], SIZES, len(WORDS)), WORDS)


@functools.cache
def params_of(encoder):
    params = jax.device_get(jax.jit(model_of(encoder).module.init)(jax.random.key(1), SOURCE, SOURCE)["params"])
    if encoder == "bert":  # rows as long as a pretrained table's: the smaller ones of a new one would hardly matter
        params["token_embedder"]["embedding"] = 20.0 * params["token_embedder"]["embedding"]
    return params


@pytest.fixture(scope="module")
def model():
    return model_of("bert")


@pytest.fixture(scope="module")
def params(model):
    return params_of("bert")


def probabilities(own, copy, source):
    """Of every token: its mass as a word and at each of its places, over the whole mass."""
    mass = np.zeros(VOCAB)
    for word, logit in zip(WORDS, own, strict=True):
        mass[word] += np.exp(logit)
    for token, logit in zip(source, copy, strict=True):
        mass[token] += np.exp(logit) * (token != 0)
    return mass / mass.sum()


@pytest.mark.parametrize("normalize", ["vocabulary", "constraint"])
def test_scores_are_those_of_words_and_of_copies(normalize):
    rng = np.random.default_rng(0)
    own, copy = rng.normal(size=(2, 3, 4)) * 3, rng.normal(size=(2, 3, 6)) * 3
    masked = np.where(SOURCE[:, None] != 0, copy, -1e10)
    table, parents, chosen = word_numbers(np.array(WORDS), VOCAB), np.array([[2, 0], [1, 1]]), [[3, EOS], [14, 8]]

    @jax.jit
    def asked():
        features = CopyFeatures(jnp.zeros((2, 3, 1)), jnp.asarray(masked, jnp.float32), jnp.asarray(SOURCE))
        scores = CopyScores(jnp.asarray(own, jnp.float32), features, jnp.array(WORDS), table, normalize)
        assert scores.vocab_size == VOCAB
        every = scores.at(jnp.broadcast_to(jnp.arange(VOCAB), (2, 3, VOCAB)))
        total = scores.log_normalizer() if normalize == "constraint" else jnp.zeros((2, 3))
        tops = scores.top(5), scores.top(4, below=10)[0], scores.top(VOCAB)
        return every, total, *tops, scores.at_parents(jnp.asarray(parents), jnp.asarray(chosen))

    everything, total, (tokens, values), few, (many, all_values), found = jax.tree.map(np.asarray, asked())
    expected = np.array([[probabilities(own[b, k], copy[b, k], SOURCE[b]) for k in range(3)] for b in range(2)])
    np.testing.assert_allclose(np.exp(everything - total[..., None]), expected, atol=1e-5)
    assert np.isneginf(everything[expected == 0]).all()

    for b in range(2):
        for k in range(3):
            best = np.argsort(-expected[b, k])[:5]
            assert tokens[b, k].tolist() == best.tolist()
            np.testing.assert_allclose(values[b, k], everything[b, k, best], atol=1e-5)
    assert (few[0] < 10).all()
    assert many.shape == (2, 3, VOCAB) and np.isfinite(all_values).sum() == (expected > 0).sum()
    np.testing.assert_allclose(found, everything[np.arange(2)[:, None], parents, np.array(chosen)], rtol=1e-6)


def test_unlikely_tokens_are_not_impossible():
    """exp(−200) is 0 in float32, and so would be the probabilities of all that a constraint may leave."""
    own = np.array([[[0.0, -200.0, -90.0, -400.0]]])
    copy = np.array([[[-150.0, -210.0, -151.0, -300.0, -95.0, -1e10]]])  # 3, 7 (a word), 3, 11, 12, padding

    @jax.jit
    def asked():
        features = CopyFeatures(jnp.zeros((1, 1, 1)), jnp.asarray(copy, jnp.float32), jnp.asarray(SOURCE[:1]))
        table = word_numbers(np.array(WORDS), VOCAB)
        scores = CopyScores(jnp.asarray(own, jnp.float32), features, jnp.array(WORDS), table, "vocabulary")
        return scores.at(jnp.arange(VOCAB)[None, None])[0, 0], scores.top(7)[0][0, 0]

    found, best = asked()
    expected = np.full(VOCAB, -np.inf)
    expected[[EOS, 9, 5, 11, 12]] = 0.0, -90.0, -400.0, -300.0, -95.0
    expected[[3, 7]] = np.logaddexp(-150, -151), np.logaddexp(-200, -210)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert best.tolist() == [EOS, 9, 12, 3, 7, 11, 5]


def test_levels_are_refused(model, params):
    def asked():
        decoder = model.decoder(params)
        features, _ = decoder.step(jnp.zeros((2, 1), int), 0, jnp.zeros((2, 1, 4), int), cache_of(decoder, 1))
        return decoder.scores(features, 0, "level").at(jnp.zeros((2, 1, 1), int))

    with pytest.raises(InputError, match="no levels"):
        jax.eval_shape(asked)


def cache_of(decoder, beams, max_len=4):
    return decoder.start(jnp.asarray(SOURCE), beams=beams, max_len=max_len)


@functools.partial(jax.jit, static_argnums=0)
def states_of(config, params, tokens):
    return TextEncoder(config).apply({"params": params}, tokens)


@jax.jit
def decoded(params, embedded, states, mask):
    decoder = T5Decoder(dataclasses.replace(SIZES, logits_via_embedding=True))
    causal = causal_mask(embedded.shape[1], None)
    return decoder.apply({"params": params}, embedded, states, causal, mask[:, None, :], deterministic=True)


def log_prob(model, params, row, query):
    """Of one query of one document, by the formula: copying looks for the state at a place, its token and the one
    before it. Of the network only encoder and decoder are used."""
    config, tokens = model.module.encoder_config, SOURCE[row]
    # Rows of BERT's table have length 1 or so, and are made as long as the decoder's states; those of T5 are.
    table = np.asarray(params["token_embedder"]["embedding"]) * (12**0.5 if config is BERT else 1.0)
    encoder = {name: params[name] for name in ("token_embedder", "encoder")}
    states = np.asarray(states_of(config, encoder, tokens[None]))
    inputs = np.zeros(8, np.int32)  # one width, one compilation
    inputs[1 : len(query)] = query[:-1]
    embedded = table[inputs] @ params["input_dense"]["kernel"]
    features = np.asarray(decoded(params["decoder"], embedded[None], states, tokens[None] != 0))[0]
    before = np.concatenate([np.zeros_like(table[:1]), table[tokens[:-1]]])
    keys = np.concatenate([states[0], table[tokens], before], axis=1) @ params["copy_key"]["kernel"]
    copy = features @ params["copy_query"]["kernel"] @ keys.T / keys.shape[1] ** 0.5
    own = features @ params["words"]["kernel"]
    found = [probabilities(own[place], copy[place], tokens)[token] for place, token in enumerate(query)]
    return sum(np.log(p) for p in found if p > 0)


QUERIES = ([7, 11, EOS], [9, 3, 12, EOS])


def batch_of(rows):
    """Rows of (document, queries) with segments."""
    targets = np.zeros((len(rows), 9), np.int32)
    inputs, segments = np.zeros_like(targets), np.zeros_like(targets)
    for place, (_, queries) in enumerate(rows):
        start = 0
        for segment, query in enumerate(queries, 1):
            end = start + len(query)
            targets[place, start:end] = query
            inputs[place, start + 1 : end] = query[:-1]
            segments[place, start:end] = segment
            start = end
    return {
        "encoder_input_tokens": SOURCE[[document for document, _ in rows]],
        "decoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_segment_ids": segments,
        "decoder_loss_weights": (segments > 0).astype(np.float32),
    }


@pytest.mark.parametrize("encoder", ["bert", pytest.param("t5", marks=pytest.mark.slow)])
def test_loss_of_packed_queries_is_the_sum_of_each_alone(encoder):
    model, params = model_of(encoder), params_of(encoder)
    batch = batch_of([(0, QUERIES), (1, [[9, 14, EOS]])])
    loss, metrics = jax.jit(model.loss_fn)(params, batch)
    expected = -sum(log_prob(model, params, 0, query) for query in QUERIES) - log_prob(model, params, 1, [9, 14, EOS])
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    assert float(metrics["weight_sum"]) == 10
    # 7, 11, 3, 12 stand in the first document, 9 and 14 in the second; the ends stand nowhere.
    assert model.summarize(metrics)["copied"] == pytest.approx(6 / 10)
    encoded = compiled.run(model.module, params, batch["encoder_input_tokens"], method="encode")
    given, _ = jax.jit(model.loss_fn)(params, {**batch, "encoded": encoded})
    np.testing.assert_allclose(given, loss, rtol=1e-5)


@pytest.mark.parametrize("encoder", ["t5", pytest.param("bert", marks=pytest.mark.slow)])
def test_what_targets_begin_with_is_read_once(encoder):
    """7 11 EOS, 7 11 9, 7 9 EOS and 9 share a tree: each costs what it costs alone."""
    model, params = model_of(encoder), params_of(encoder)
    # Prefixes are (), 7, 7 11, 7 9; the one that is read last stands before what begins with it.
    prefixes, parents = [0, 7, 9, 11], [None, 0, 1, 1]
    mask = np.eye(4, dtype=bool)
    for place, parent in enumerate(parents[1:], 1):
        mask[place] |= mask[parent]
    behind = np.array([0, 1, 1, 3, 3, 2, 0], np.int32)
    written = np.array([7, 11, 9, EOS, 9, EOS, 9], np.int32)
    batch = {
        "encoder_input_tokens": SOURCE[:1],
        "decoder_input_tokens": np.array([prefixes], np.int32),
        "decoder_positions": np.array([[0, 1, 2, 2]], np.int32),
        "decoder_mask": mask[None],
        "decoder_target_tokens": written[None],
        "decoder_target_prefixes": behind[None],
    }
    found, possible, _ = jax.jit(model.token_log_probs)(params, batch)
    of_each = np.where(possible, found, 0.0)[0]
    for query, path in (([7, 11, EOS], [0, 1, 3]), ([7, 11, 9], [0, 1, 4]), ([7, 9, EOS], [0, 2, 5]), ([9], [6])):
        np.testing.assert_allclose(of_each[path].sum(), log_prob(model, params, 0, query), rtol=1e-4)


def test_dropout_reaches_an_encoder_that_is_trained():
    """And not states that were computed before, whose encoder is not."""
    encoder, decoder = dataclasses.replace(SIZES, dropout_rate=0.5), dataclasses.replace(SIZES, dropout_rate=0.0)
    model, params = CopyNetworkModel(CopyNetwork(encoder, decoder, len(WORDS)), WORDS), params_of("t5")
    batch = batch_of([(0, QUERIES)])
    given = {**batch, "encoded": compiled.run(model.module, params, batch["encoder_input_tokens"], method="encode")}
    loss = jax.jit(lambda batch, key: model.loss_fn(params, batch, key)[0])
    keys = jax.random.key(0), jax.random.key(1)
    trained, frozen = ([float(loss(b, key)) for key in keys] for b in (batch, given))
    assert abs(trained[0] - trained[1]) > 1e-3
    assert frozen[0] == pytest.approx(frozen[1], rel=1e-6)


def test_what_can_neither_be_written_nor_copied_counts_nothing(model, params):
    batch = batch_of([(0, [[7, 22, EOS]])])
    (loss, metrics), gradient = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))(params, batch)
    np.testing.assert_allclose(loss, -log_prob(model, params, 0, [7, 22, EOS]), rtol=1e-4)
    assert float(metrics["weight_sum"]) == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_decoding_step_by_step_scores_as_teacher_forcing_does(model, params):
    decoder = model.decoder(params)
    constraint = Everything(VOCAB, EOS)
    drawn = jax.jit(sample, static_argnames=("samples", "max_len", "batch", "top_k"))(
        decoder, cache_of(decoder, 5), constraint, samples=5, max_len=4, key=jax.random.key(0), batch=2, top_k=6
    )
    found = jax.jit(beam_search, static_argnames=("beams", "max_len", "batch"))(
        decoder, cache_of(decoder, 3), constraint, beams=3, max_len=4, batch=2
    )
    for sequences, scores in ((drawn.sequences, drawn.scores), (found.sequences, found.scores)):
        for row in range(2):
            for sequence, score in zip(np.asarray(sequences)[row].tolist(), np.asarray(scores)[row], strict=True):
                query = sequence[: sequence.index(EOS) + 1] if EOS in sequence else sequence
                assert set(query) <= {*WORDS, *SOURCE[row].tolist()} - {0}
                np.testing.assert_allclose(score, log_prob(model, params, row, query), rtol=1e-4, atol=1e-5)


def test_saved_and_loaded_it_writes_the_same(tmp_path):
    module = CopyNetwork(BERT, SIZES, len(WORDS), counted=True)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(2), SOURCE, SOURCE)["params"])
    params["copy_bias"] = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)
    made = CopyDecoder(module, params, np.array(WORDS, np.int32), EOS)
    made.save(tmp_path)
    loaded = network_folder.load_model(tmp_path)
    sizes = loaded.input_vocab_size, loaded.output_vocab_size
    assert (*sizes, loaded.eos_id, loaded.levels) == (VOCAB, VOCAB, EOS, None)
    settings = {"beams": 3, "max_len": 4}

    @jax.jit
    def search(model):
        cache = model.start(jnp.asarray(SOURCE), **settings)
        return beam_search(model.decoder(), cache, Everything(VOCAB, EOS), batch=2, **settings)

    first, second = map(search, (made, loaded))
    np.testing.assert_array_equal(first.sequences, second.sequences)
    np.testing.assert_array_equal(first.scores, second.scores)


def test_what_can_be_counted_is_added_to_the_logits():
    module = CopyNetwork(ENCODERS["t5"], SIZES, len(WORDS), counted=True)
    params = jax.device_get(jax.jit(module.init)(jax.random.key(2), SOURCE, SOURCE)["params"])
    written = np.array([[0, 7, 3], [0, 9, 9]], np.int32)

    def logits(**changes):
        features, copy = compiled.run(module, {**params, **changes}, SOURCE, written)
        words = compiled.run(module, {**params, **changes}, features, method="word_logits")
        return np.asarray(words), np.asarray(copy)

    plain, copy = logits()
    bias = np.arange(VOCAB, dtype=np.float32)
    added = logits(copy_bias=bias)[1] - copy
    real = SOURCE != 0
    np.testing.assert_allclose(added[0][:, real[0]], np.tile(bias[SOURCE[0][real[0]]], (3, 1)), atol=1e-4)
    np.testing.assert_allclose(
        logits(word_bias=np.array([0, 1, 2, 3], np.float32))[0] - plain,
        np.tile(np.arange(4.0), (2, 3, 1)), atol=1e-4,
    )  # fmt: skip
    # After 7 comes what stands behind a 7, and after 3 what stands behind either 3.
    behind = (logits(copy_next=np.float32(5.0))[1] - copy)[0][:, real[0]]
    np.testing.assert_allclose(behind, 5.0 * np.array([[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 1, 0]]), atol=1e-4)

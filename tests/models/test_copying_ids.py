"""What copying adds to logits, against loops over tokens; and beam search with it against teacher forcing."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import TokenTextTrie
from gr_jax.decoding import LogitScores, beam_search
from gr_jax.decoding.backoff import step_decoder
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models import T5Config, network_folder
from gr_jax.models.copying_id_scores import CopyingIdScores
from gr_jax.models.copying_ids import UNCOPIED, CopyingDecoder, CopyingEncoderDecoder, CopyingFeatures, CopyingModel
from tests import compiled

WORDS, END = 12, 11  # tokens of queries; ids of titles are twice as many, and one that ends them
# Titles' text tokens are 1 … 8; each has two ids, 1–2 … 15–16; 17 ends, 0 and 18 write nothing.
TEXT_OF = (UNCOPIED, *(1 + number // 2 for number in range(16)), UNCOPIED, UNCOPIED)
TITLES = [[1, 2], [1, 3, 4], [5], [6, 7, 8], [2, 1], [8, 6]]


@pytest.fixture(scope="module")
def network():
    sizes = T5Config(
        vocab_size=len(TEXT_OF), emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, num_decoder_layers=1,
        mlp_dim=16, dropout_rate=0.0,
    )  # fmt: skip
    encoder = T5Config(**{**sizes.__dict__, "vocab_size": WORDS})
    module = CopyingEncoderDecoder(encoder, sizes, share_embeddings=False, text_of=TEXT_OF)
    tokens = np.ones((1, 4), np.int32)
    params = dict(jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"])
    rng = np.random.default_rng(0)
    params["id_bias"] = rng.normal(size=len(TEXT_OF)).astype(np.float32)
    params["copy_token"] = rng.normal(size=WORDS).astype(np.float32)
    params["copy_next"] = np.float32(1.5)
    return module, jax.tree.map(np.asarray, params)


def slow(params, source, last):
    """What is added to each id's logit, of one query behind one id."""
    added = np.array(params["id_bias"])
    for one, text in enumerate(TEXT_OF):
        weights = []
        for place, token in enumerate(source):
            if token == 0 or token != text:
                continue
            goes_on = place > 0 and last != 0 and TEXT_OF[last] == source[place - 1] != 0
            weights.append(params["copy_token"][token] + (params["copy_next"] if goes_on else 0.0))
        if text != UNCOPIED and weights:
            added[one] += max(weights)
    return added


def test_what_is_added_is_that_of_loops_over_tokens(network):
    module, params = network
    rng = np.random.default_rng(1)
    source, last = rng.integers(0, WORDS, (6, 7)), rng.integers(0, len(TEXT_OF), (6, 5))
    source[:, 5:] = 0
    got = compiled.run(module, params, source, last, np.ones((1, 1, 1), bool), method="copied")
    expected = [[slow(params, source[row], one) for one in last[row]] for row in range(6)]
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert np.any(np.asarray(got) - params["id_bias"] != 0)


def test_few_ids_have_the_scores_that_they_have_among_all(network):
    """Beside loops over tokens, for each hypothesis and each way to ask."""
    module, params = network
    decoder = CopyingDecoder(module, jax.tree.map(jnp.asarray, params), eos_id=17)
    rng, ids = np.random.default_rng(2), len(TEXT_OF)
    source, last = np.array([[1, 3, 2, 0], [8, 6, 8, 5]]), rng.integers(0, ids, (2, 3))
    features = rng.normal(size=(2, 3, 16)).astype(np.float32)
    tokens, parent = rng.integers(0, ids, (2, 3, 4)), rng.integers(0, 3, (2, 5))

    @jax.jit
    def asked(decoder):
        weights = module.apply({"params": params}, source, last, method="copy_weights")
        each = jnp.broadcast_to(source[:, None], weights.shape)
        scores = decoder.scores(CopyingFeatures(features, weights, last, each), 0, "none")
        assert scores.vocab_size == ids and scores.normalize == "none"
        flat = scores.at_parents(parent, tokens.reshape(2, -1)[:, :5])
        return scores.at(tokens), flat, scores.top(3, below=9), scores.log_normalizer()

    own, flat, (best, value), total = asked(decoder)
    added = np.array([[slow(params, source[row].tolist(), one) for one in last[row]] for row in range(2)])
    expected = features @ np.asarray(decoder.table).T + added
    np.testing.assert_allclose(own, np.take_along_axis(expected, tokens, axis=-1), atol=1e-5)
    rows = np.arange(2)[:, None]
    np.testing.assert_allclose(flat, expected[rows, parent, tokens.reshape(2, -1)[:, :5]], atol=1e-5)
    np.testing.assert_array_equal(best, np.argsort(-expected[..., :9], axis=-1)[..., :3])
    np.testing.assert_allclose(value, -np.sort(-expected[..., :9], axis=-1)[..., :3], atol=1e-5)
    np.testing.assert_allclose(total, np.log(np.exp(expected).sum(axis=-1)), rtol=1e-5)


def test_padding_is_copied_by_no_id():
    """Not even by one that writes token 0."""
    nothing = LogitScores(jnp.zeros((1, 1, 3)), "none")
    weights, bias = jnp.full((1, 1, 2), 5.0), jnp.zeros(3)
    scores = CopyingIdScores(nothing, weights, jnp.array([[2, 0]]), (0, 1, 2), bias, lambda: jnp.zeros((1, 1, 3)))
    np.testing.assert_array_equal(scores.at(jnp.array([[[0, 1, 2]]])), [[[0, 0, 5]]])


def test_siblings_can_wait_for_a_step(network):
    """Backoff leaves some hypotheses out of a step, and pads what the decoder gives of the others."""
    module, params = network
    decoder = CopyingDecoder(module, jax.tree.map(jnp.asarray, params), eos_id=17)
    queries = np.array([[1, 3, 2, 0], [8, 6, 5, 1]])

    def step(decoder):
        live = jnp.zeros((2, 5), jnp.int32), 0, jnp.zeros((2, 5, 4), jnp.int32)
        cache = decoder.start(queries, beams=5, max_len=4)
        features, _ = step_decoder(decoder, *live, cache, jnp.zeros((2, 5)), beams=3)
        return decoder.scores(features, 0, "none").at(live[0][..., None])

    assert jax.eval_shape(step, decoder).shape == (2, 5, 1)


def test_examples_that_share_a_row_copy_each_from_its_own_query(network):
    module, params = network
    model = CopyingModel(module)
    alone = [
        {
            "encoder_input_tokens": [source],
            "decoder_input_tokens": [[0, *target[:-1]]],
            "decoder_target_tokens": [target],
        }
        for source, target in (([1, 2, 3], [2, 4, 17]), ([5, 6], [6, 10, 17]))
    ]
    packed = {
        "encoder_input_tokens": [[1, 2, 3, 5, 6, 0]],
        "encoder_segment_ids": [[1, 1, 1, 2, 2, 0]],
        "encoder_positions": [[0, 1, 2, 0, 1, 0]],
        "decoder_input_tokens": [[0, 2, 4, 0, 6, 10]],  # 6 writes what the first query ends in
        "decoder_target_tokens": [[2, 4, 17, 6, 10, 17]],
        "decoder_segment_ids": [[1, 1, 1, 2, 2, 2]],
    }
    as_arrays = {name: np.array(rows) for name, rows in packed.items()}
    loss = jax.jit(model.loss_fn)
    together, metrics = loss(params, as_arrays)
    apart = [loss(params, {name: np.array(rows) for name, rows in one.items()})[0] for one in alone]
    np.testing.assert_allclose(together, sum(apart), rtol=1e-5)
    assert float(metrics["weight_sum"]) == 6


def test_several_sequences_of_a_query_have_their_scores(network):
    module, params = network
    model, sources = CopyingModel(module), np.array([[1, 2, 3], [8, 6, 5]])
    sequences = np.array([[[2, 4, 17], [10, 17, 0]], [[16, 12, 17], [9, 17, 0]]])
    together = jax.jit(model.sequence_log_probs)(params, sources, sequences)
    alone = jax.jit(model.score_batch)
    for row, n in np.ndindex(2, 2):
        length = np.count_nonzero(sequences[row, n])
        batch = {
            "encoder_input_tokens": sources[row][None],
            "decoder_input_tokens": np.array([[0, *sequences[row, n, : length - 1]]]),
            "decoder_target_tokens": sequences[row, n, :length][None],
            "decoder_loss_weights": np.ones((1, length), np.float32),
        }
        np.testing.assert_allclose(together[row, n], alone(params, batch)[0], rtol=1e-5)


def test_there_are_no_levels(network):
    with pytest.raises(InputError, match="vocabulary"):
        CopyingModel(network[0], normalize="level", levels=((1, 5), (6, 5)))


def test_gradients_reach_what_copies(network):
    module, params = network
    batch = {
        "encoder_input_tokens": np.array([[1, 2, 3]]),
        "decoder_input_tokens": np.array([[0, 2]]),
        "decoder_target_tokens": np.array([[2, 4]]),
    }
    gradient = jax.jit(jax.grad(lambda params: CopyingModel(module).loss_fn(params, batch)[0]))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert np.asarray(gradient["copy_token"])[[1, 2, 3]].all()
    assert not np.asarray(gradient["copy_token"])[4:].any()  # of tokens that no query has
    assert gradient["copy_next"] < 0  # the second target stands behind the first


@pytest.mark.parametrize(
    "normalize, unroll", [("constraint", None), ("none", 1), pytest.param("vocabulary", None, marks=pytest.mark.slow)]
)
def test_beam_search_is_enumeration(network, normalize, unroll):
    """Of every way to write every title its score, by teacher forcing; of the ways the best."""
    module, params = network
    titles = Docids.build(TITLES, vocab_size=10, eos_id=9, scheme="titles")
    text_of = np.array([*TEXT_OF[:-2], 9, -1])
    text_of[0] = -1
    trie = TokenTextTrie.from_docids(titles, text_of)
    decoder = CopyingDecoder(module, jax.tree.map(jnp.asarray, params), eos_id=17)
    queries = np.array([[1, 3, 2, 0], [8, 6, 5, 1]])
    cache = jax.jit(lambda decoder: decoder.start(queries, beams=48, max_len=4))(decoder)
    settings = {"beams": 48, "max_len": 4, "normalize": normalize, "merge": "max", "unroll": unroll}
    found = jax.jit(functools.partial(beam_search, **settings))(decoder, cache, trie)
    for row, query in enumerate(queries):
        expected = sorted((best_way(module, params, trie, query, title, normalize) for title in TITLES), reverse=True)
        np.testing.assert_allclose(found.scores[row, : len(TITLES)], expected, atol=1e-4)


def best_way(module, params, trie, query, title, normalize):
    """The score of the likeliest ids that write a title."""
    ways: list[list[int]] = [[]]
    for text in [*title, 9]:
        ids = [17] if text == 9 else [one for one, own in enumerate(TEXT_OF) if own == text]
        ways = [[*way, one] for way in ways for one in ids]
    tokens = np.array([[0, *way[:-1]] for way in ways])
    queries = np.broadcast_to(query, (len(ways), len(query)))
    features = compiled.run(module, params, queries, tokens, method="features")
    table = compiled.run(module, params, method="output_table")
    scores = [
        score_of(params, trie, query, way, np.asarray(logits), normalize)
        for way, logits in zip(ways, features @ table.T, strict=True)
    ]
    return max(scores)


allowed = jax.jit(lambda trie, state: trie.allowed(state))
advance = jax.jit(lambda trie, state, token: trie.advance(state, token))


def score_of(params, trie, query, way, logits, normalize):
    """Of one way, from the network's logits."""
    logits = logits + [slow(params, query.tolist(), last) for last in [0, *way[:-1]]]
    if normalize == "constraint":
        state = trie.initial_state(1)
        for step, one in enumerate(way):
            logits[step, ~np.asarray(allowed(trie, state))[0, 0]] = -np.inf
            state = advance(trie, state, np.array([[one]]))
    if normalize != "none":
        logits = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return float(logits[np.arange(len(way)), way].sum())


def test_a_folder_holds_it(network, tmp_path):
    module, params = network
    CopyingDecoder(module, params, eos_id=17).save(tmp_path)
    loaded = network_folder.load_model(tmp_path)
    assert isinstance(loaded, CopyingDecoder)
    assert loaded.module == module and loaded.eos_id == 17
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


def test_a_folder_that_names_other_tokens(network, tmp_path):
    module, params = network
    CopyingDecoder(module, params, eos_id=17).save(tmp_path)
    file = tmp_path / network_folder.CONFIG_FILE
    for wrong in (module.text_of[:-1], (WORDS, *module.text_of[1:]), (-5, *module.text_of[1:])):
        file.write_text(json.dumps({**json.loads(file.read_text()), "text_of": wrong}))
        with pytest.raises(InputError, match="text_of must name"):
            network_folder.load_model(tmp_path)

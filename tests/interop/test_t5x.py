import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.constraints import Trie
from gr_jax.decoding import beam_search
from gr_jax.decoding.backoff import Backoff
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.interop.t5x import NOTHING, decode_fn
from tests.decoding.table_decoder import Reference, TableDecoder, exhaustive

VOCAB, BATCH, MAX_LEN, BEAMS, D = 11, 2, 6, 5, 8


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    sequences = sorted({tuple(rng.integers(2, 7, rng.integers(1, 4)).tolist()) for _ in range(30)})
    docids = Docids.build(sequences, vocab_size=VOCAB, eos_id=1)
    decoder = TableDecoder.random(0, VOCAB, docids.max_steps, eos_id=1)
    queries = rng.normal(size=(BATCH, D)).astype(np.float32)
    return docids, decoder, queries


def t5x_model(decoder, queries, beams, *, scanned=False, by="cache"):
    """The table decoder as T5X's models are called: flat rows, each of which reads and writes what is its own; and an
    empty cache of one row for each query."""
    max_len = decoder.places.shape[0]
    flat_queries = jnp.repeat(jnp.asarray(queries), beams, axis=0)

    def tokens_to_logits(state):
        written, index = state.cache["layer"]["written"], state.cache["layer"]["cache_index"]
        entry = decoder.embeddings[state.cur_token[:, 0]] * decoder.places[index]
        written = jax.lax.dynamic_update_slice_in_dim(
            written, entry.reshape(*written.shape[:-2], 1, D), index, axis=written.ndim - 2
        )
        cache = {"layer": {"written": written, "cache_index": index + 1}, "cached_bias": state.cache["cached_bias"]}
        if by == "cache":
            total = jnp.sum(written[0] if scanned else written, axis=-2)
        else:
            tokens = state.sequences[:, :max_len]
            kept = (jnp.arange(max_len) <= state.cur_index)[:, None]
            total = jnp.sum(jnp.where(kept, decoder.embeddings[tokens] * decoder.places, 0.0), axis=1)
        return jnp.tanh(flat_queries + total) @ decoder.table.T, cache

    rows = (1, len(queries)) if scanned else (len(queries),)
    cache = {
        "layer": {"written": jnp.zeros((*rows, max_len, D)), "cache_index": jnp.int32(0)},
        "cached_bias": jnp.zeros((1, 3)),
    }
    return tokens_to_logits, cache


def decode(function, tokens_to_logits, cache, *, beams=BEAMS, inputs=None, eos_id=1, **kwargs):
    inputs = jnp.zeros((BATCH, MAX_LEN), jnp.int32) if inputs is None else inputs
    return jax.jit(
        lambda inputs, cache: function(
            inputs=inputs,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            eos_id=eos_id,
            num_decodes=beams,
            decode_rng=None,
            **kwargs,
        )
    )(inputs, cache)


@pytest.mark.parametrize(
    ("normalize", "scanned", "by", "settings"),
    [
        ("vocabulary", False, "cache", {}),
        ("constraint", True, "cache", {"unroll": 1}),
        ("vocabulary", False, "sequences", {"length_penalty": 0.7}),
    ],
)
def test_as_beam_search_of_our_own_decoders(case, normalize, scanned, by, settings):
    docids, decoder, queries = case
    trie = Trie.from_docids(docids)
    tokens_to_logits, cache = t5x_model(decoder, queries, BEAMS, scanned=scanned, by=by)
    function = decode_fn(trie, normalize=normalize, **settings)
    sequences, scores = jax.jit(
        lambda trie, cache: decode(function, tokens_to_logits, cache, cache_offset=int(scanned), constraint=trie)
    )(trie, cache)
    assert sequences.shape == (BATCH, BEAMS, MAX_LEN)
    steps = docids.max_steps
    own = jax.jit(
        lambda trie: beam_search(
            decoder,
            decoder.init_cache(queries, BEAMS, steps),
            trie,
            beams=BEAMS,
            max_len=steps,
            normalize=normalize,
            **settings,
        )
    )(trie)
    np.testing.assert_array_equal(sequences[:, ::-1, :steps], own.sequences)  # best last
    assert (sequences[:, :, steps:] == 0).all()
    np.testing.assert_allclose(scores[:, ::-1], own.scores, atol=1e-5)
    assert own.valid.all()


def test_fewer_docids_than_beams_are_flagged_and_never_twice(case):
    _, decoder, queries = case
    whole = [[2, 3], [4], [4, 5, 6]]
    docids = Docids.build(whole, vocab_size=VOCAB, eos_id=1)
    tokens_to_logits, cache = t5x_model(decoder, queries, BEAMS)
    sequences, scores = map(np.asarray, decode(decode_fn(Trie.from_docids(docids)), tokens_to_logits, cache))
    assert np.isfinite(scores).all()
    assert (scores[:, :2] == NOTHING).all() and (sequences[:, :2] == 0).all()
    targets = [tuple(docids.target(row)) for row in range(3)]
    for query in range(BATCH):
        expected = exhaustive(Reference(decoder, queries[query], "vocabulary", targets), targets)
        assert [tuple(s[s > 0].tolist()) for s in sequences[query, :1:-1]] == [s for _, s in expected]
        np.testing.assert_allclose(scores[query, :1:-1], [score for score, _ in expected], atol=1e-4)


def test_a_prompt_gives_nothing_rather_than_something_else(case):
    docids, decoder, queries = case
    tokens_to_logits, cache = t5x_model(decoder, queries, 2)
    inputs = jnp.zeros((BATCH, MAX_LEN), jnp.int32).at[1, 0].set(3)
    sequences, scores = decode(decode_fn(Trie.from_docids(docids)), tokens_to_logits, cache, beams=2, inputs=inputs)
    assert (scores[0] > NOTHING).all() and (scores[1] == NOTHING).all() and (sequences[1] == 0).all()


def test_what_does_not_fit_is_refused(case):
    docids, decoder, queries = case
    function = decode_fn(Trie.from_docids(docids))
    tokens_to_logits, cache = t5x_model(decoder, queries, 2)
    with pytest.raises(InputError, match="target length"):
        decode(function, tokens_to_logits, cache, beams=2, inputs=jnp.zeros((BATCH, 3), jnp.int32))
    with pytest.raises(InputError, match="docids end in token 1"):
        decode(function, tokens_to_logits, cache, beams=2, eos_id=2)
    with pytest.raises(InputError, match="alpha"):
        decode(function, tokens_to_logits, cache, beams=2, alpha=0.6)
    with pytest.raises(InputError, match="none for backoff"):
        decode_fn(Trie.from_docids(docids), backoff=Backoff(1, 0.0))
    larger = Trie.from_docids(Docids.build([[VOCAB]], vocab_size=VOCAB + 1, eos_id=1))
    with pytest.raises(InputError, match="12 tokens.*scores 11"):
        decode(decode_fn(larger), tokens_to_logits, cache, beams=2)


def test_through_an_unmodified_model_of_t5x():
    """T5X's own encoder-decoder and its own scores of the docids, of which the search must find the best."""
    pytest.importorskip("t5x", reason="needs a clone of T5X on PYTHONPATH")
    seqio = pytest.importorskip("seqio")
    from t5x import adafactor, models
    from t5x.examples.t5 import network

    sizes = dict(vocab_size=40, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_encoder_layers=1)
    module = network.Transformer(
        network.T5Config(**sizes, num_decoder_layers=2, dtype="float32", logits_via_embedding=False)
    )
    vocabulary = seqio.PassThroughVocabulary(40, eos_id=1)
    rng = np.random.default_rng(0)
    whole = sorted({tuple(rng.integers(2, 39, rng.integers(1, 4)).tolist()) for _ in range(12)})
    docids = Docids.build(whole, vocab_size=40, eos_id=1)
    optimizer = adafactor.Adafactor(1e-3, logical_factor_rules=adafactor.HParamMap([]))
    model = models.EncoderDecoderModel(
        module, vocabulary, vocabulary, optimizer, decode_fn=decode_fn(Trie.from_docids(docids))
    )
    source = rng.integers(2, 39, (BATCH, 7)).astype(np.int32)
    source[1, 4:] = 0
    params = model.get_initial_variables(
        jax.random.key(0),
        {
            "encoder_input_tokens": source.shape,
            "decoder_input_tokens": (BATCH, 5),
        },
    )["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.2 * rng.normal(size=leaf.shape).astype(np.float32), params)
    batch = {"encoder_input_tokens": source, "decoder_input_tokens": np.zeros((BATCH, 5), np.int32)}
    predict = jax.jit(
        lambda params, batch, trie: model.predict_batch_with_aux(
            params, batch, decoder_params={"constraint": trie}, num_decodes=12, return_all_decodes=True
        )
    )
    sequences, aux = predict(params, batch, Trie.from_docids(docids))
    best, best_aux = model.predict_batch_with_aux(params, batch, num_decodes=12)
    np.testing.assert_array_equal(best, sequences[:, -1])
    np.testing.assert_allclose(best_aux["scores"], aux["scores"][:, -1], atol=1e-5)
    targets = np.zeros((len(docids), 5), np.int32)
    for row in range(len(docids)):
        targets[row, : docids.lengths[row] + 1] = docids.target(row)
    for query in range(BATCH):
        scored = model.score_batch(
            params,
            {
                "encoder_input_tokens": np.repeat(source[query : query + 1], len(docids), axis=0),
                "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
                "decoder_target_tokens": targets,
                "decoder_loss_weights": (targets > 0).astype(np.int32),
            },
        )
        order = np.argsort(-np.asarray(scored))
        np.testing.assert_array_equal(sequences[query, ::-1][: len(order)], targets[order])
        np.testing.assert_allclose(aux["scores"][query, ::-1][: len(order)], np.asarray(scored)[order], atol=1e-4)
        assert (aux["scores"][query, : 12 - len(order)] == NOTHING).all()

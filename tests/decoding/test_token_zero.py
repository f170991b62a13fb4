"""Token 0 is a token like any other where the network has a start token of its own: searched, sampled and scored
against the definition."""

import itertools

import jax
import numpy as np
import pytest

from gr_jax.constraints import FMIndex
from gr_jax.constraints.token_text_trie import TokenTextTrie
from gr_jax.decoding import beam_search, sample, score_docids
from gr_jax.docids import Docids
from gr_jax.docids.spans import TokenText
from tests.decoding.table_decoder import Reference, TableDecoder, exhaustive

VOCAB, START = 8, 7
TEXTS = [[2, 3], [2], [2, 3, 4], [4, 5], [5, 2], [4, 2, 2]]
# The decoder's 0 writes text token 2, as its 4 does; its 3 ends.
TEXT_OF = np.array([2, 3, 4, 1, 2, 5, -1, -1])
QUERIES = np.random.default_rng(1).normal(size=(2, 8))


def search(*arguments, **settings):
    jitted = jax.jit(beam_search, static_argnames=("beams", "max_len", "unroll"))
    return jax.tree.map(np.asarray, jitted(*arguments, **settings))


def draw(*arguments, **settings):
    jitted = jax.jit(sample, static_argnames=("samples", "max_len"))
    return jax.tree.map(np.asarray, jitted(*arguments, **settings))


def written(beams, query):
    return [
        tuple(tokens[:length].tolist())
        for tokens, length, valid in zip(
            *(np.asarray(x[query]) for x in (beams.sequences, beams.lengths, beams.valid)), strict=True
        )
        if valid
    ]


def all_ways():
    ids = {text: np.flatnonzero(TEXT_OF == text).tolist() for text in range(1, 6)}
    return [way for text in TEXTS for way in itertools.product(*(ids[token] for token in (*text, 1)))]


@pytest.mark.parametrize("unroll", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_texts_that_begin_and_end_in_token_0(unroll):
    trie = TokenTextTrie.from_docids(Docids.build(TEXTS, vocab_size=6, eos_id=1), TEXT_OF)
    decoder = TableDecoder.random(0, VOCAB, 4, start_token=START)
    ways = all_ways()
    assert (0, 3) in ways and (2, 0, 0, 3) in ways
    beams = len(ways)
    found = search(decoder, decoder.init_cache(QUERIES, beams, 4), trie, beams=beams, max_len=4, unroll=unroll)
    cache = decoder.init_cache(QUERIES, beams, 4)
    scores = np.asarray(jax.jit(score_docids)(decoder, cache, found.sequences, found.lengths))
    for query in range(2):
        expected = exhaustive(Reference(decoder, QUERIES[query], "vocabulary", ways), ways)
        assert sorted(written(found, query)) == sorted(ways)
        np.testing.assert_allclose(found.scores[query], [score for score, _ in expected], atol=1e-4)
        np.testing.assert_allclose(scores[query], found.scores[query], atol=1e-4)


def test_samples_are_scored_from_the_start_token():
    trie = TokenTextTrie.from_docids(Docids.build(TEXTS, vocab_size=6, eos_id=1), TEXT_OF)
    decoder = TableDecoder.random(2, VOCAB, 4, start_token=START)
    drawn = draw(decoder, decoder.init_cache(QUERIES, 16, 4), trie, samples=16, max_len=4, key=jax.random.key(0))
    ways = all_ways()
    for query in range(2):
        reference = Reference(decoder, QUERIES[query], "vocabulary", ways)
        expected = [reference.score(way) for way in written(drawn, query)]
        np.testing.assert_allclose(drawn.scores[query][drawn.valid[query]], expected, atol=1e-4)


def test_ngrams_with_token_0():
    pytest.importorskip("pydivsufsort")
    segments = [[0, 0, 1, 2], [2, 0, 5], [5, 5, 0]]
    index = FMIndex.from_text(TokenText.of(segments, VOCAB))
    ngrams = sorted({tuple(row[i : i + 2]) for row in segments for i in range(len(row) - 1)})
    decoder = TableDecoder.random(3, VOCAB, 2, start_token=START)
    found = search(decoder, decoder.init_cache(QUERIES, 12, 2), index, beams=12, max_len=2)
    for query in range(2):
        expected = exhaustive(Reference(decoder, QUERIES[query], "vocabulary", ngrams), ngrams)
        assert written(found, query) == [ngram for _, ngram in expected]

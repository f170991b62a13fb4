"""A beam that goes by what hypotheses could become."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import small_systems
from gr_jax.constraints import TokenTextTrie, Trie
from gr_jax.corpus import Corpus, Document
from gr_jax.decoding import Backoff, Lookahead, beam_search
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.retrievers import GenerativeRetriever
from gr_jax.text import ByteVocabulary
from tests.decoding.table_decoder import Reference, TableDecoder, exhaustive, plain_beam_search

VOCAB, BATCH, D, MOST = 12, 3, 8, 5
search = jax.jit(beam_search, static_argnames=("beams", "max_len", "normalize", "merge", "length_penalty", "unroll"))


def random_texts(seed, count=30, vocab=VOCAB, most=MOST):
    chosen = np.random.default_rng(seed)
    texts = {tuple(chosen.integers(2, vocab, chosen.integers(1, most)).tolist()) for _ in range(count)}
    return [list(text) for text in sorted(texts)]


def decoder_and_queries(seed, vocab=VOCAB, *, forgetful):
    """One whose scores depend on what was written, or on the query alone."""
    decoder = TableDecoder.random(seed, vocab, MOST, eos_id=1)
    if forgetful:
        decoder = dataclasses.replace(decoder, embeddings=jnp.zeros_like(decoder.embeddings))
    return decoder, np.random.default_rng(seed).normal(size=(BATCH, D))


def found_of(beams, query):
    rows = zip(
        *(np.asarray(x[query]) for x in (beams.sequences, beams.lengths, beams.scores, beams.valid)), strict=True
    )
    return [(tuple(s[:n].tolist()), float(score)) for s, n, score, valid in rows if valid]


def expected_of(decoder, query, texts, normalize, alpha):
    ways = {(*text, 1): tuple(text) for text in texts}
    reference = Reference(decoder, query, normalize, ways)
    scored = [(reference.score(way) / ((5 + len(way)) / 6) ** alpha, way) for way in ways]
    return sorted(scored, reverse=True)


ALL = list(itertools.product((1, 3), (None, 1)))
SLOW = [
    pytest.param(seed, alpha, ALL, marks=pytest.mark.slow) for seed, alpha in itertools.product(range(6), (0.0, 1.5))
]


@pytest.mark.parametrize(
    ("seed", "alpha", "searches"), [(1, 0.0, [(1, None), (3, 1)]), (1, 1.5, [(3, None), (1, 1)]), *SLOW]
)
def test_a_few_beams_find_the_best_where_nothing_depends_on_what_is_written(seed, alpha, searches):
    """As many as are asked for, however badly a text begins; one that goes by what is written misses some."""
    texts = random_texts(seed)
    docids = Docids.build(texts, vocab_size=VOCAB, eos_id=1)
    trie = Trie.from_docids(docids)
    decoder, queries = decoder_and_queries(seed, forgetful=True)
    ahead = Lookahead.of(docids, trie)
    for beams, unroll in searches:
        cache = decoder.init_cache(queries, beams, MOST)
        found = search(
            decoder, cache, trie, beams=beams, max_len=MOST, normalize="vocabulary", length_penalty=alpha,
            lookahead=ahead, unroll=unroll,
        )  # fmt: skip
        for query in range(BATCH):
            expected = expected_of(decoder, queries[query], texts, "vocabulary", alpha)[:beams]
            own = found_of(found, query)
            assert [way for way, _ in own] == [way for _, way in expected]
            np.testing.assert_allclose([s for _, s in own], [s for s, _ in expected], atol=1e-4)


def test_without_it_the_same_beams_miss_some():
    """A beam that goes by what is written misses the best text of each of the queries above."""
    decoder, queries = decoder_and_queries(1, forgetful=True)
    ways = {(*text, 1): text for text in random_texts(1)}
    for query in queries:
        reference = Reference(decoder, query, "vocabulary", ways)
        ((_, way),) = plain_beam_search(reference, ways, 1, MOST)
        assert way != exhaustive(reference, ways)[0][1]


@pytest.mark.parametrize("merge", [None, "max", "sum"])
def test_with_enough_beams_it_changes_nothing(merge):
    """Whatever scores depend on; ids of one token are told apart or merged."""
    texts, most = random_texts(7, count=12, vocab=6, most=MOST - 1), MOST - 1
    text_of = np.array([-1, 1, 2, 3, 4, 5, 2, 3, 4])
    docids = Docids.build(texts, vocab_size=6, eos_id=1)
    trie = TokenTextTrie.from_docids(docids, text_of)
    decoder, queries = decoder_and_queries(7, len(text_of), forgetful=False)
    beams = len(texts) * 2 ** (most - 1) if merge is None else len(texts)
    cache = decoder.init_cache(queries, beams, most)
    settings = {"beams": beams, "max_len": most, "normalize": "none", "merge": merge, "length_penalty": 1.0}
    found, plain = (
        search(decoder, cache, trie, lookahead=one, **settings) for one in (Lookahead.of(docids, trie), None)
    )
    for query in range(BATCH):
        one, other = found_of(found, query), found_of(plain, query)
        assert [way for way, _ in one] == [way for way, _ in other]
        np.testing.assert_allclose([s for _, s in one], [s for _, s in other], atol=1e-5)


def test_what_a_filter_excludes_leads_nowhere():
    """One beam finds the best allowed text, though a better one begins as others do."""
    texts = random_texts(3)
    docids = Docids.build(texts, vocab_size=VOCAB, eos_id=1)
    trie = Trie.from_docids(docids)
    decoder, queries = decoder_and_queries(3, forgetful=True)
    allowed = np.zeros((BATCH, len(texts)), bool)
    expected = [expected_of(decoder, queries[query], texts, "vocabulary", 0.0) for query in range(BATCH)]
    for query, scored in enumerate(expected):
        for _, way in scored[4:]:
            allowed[query, texts.index(list(way[:-1]))] = True
    ahead = Lookahead.of(docids, trie)
    restricted, ahead = jax.jit(lambda allowed: (trie.restrict(allowed), ahead.restrict(allowed)))(allowed)
    found = search(decoder, decoder.init_cache(queries, 1, MOST), restricted, beams=1, max_len=MOST, lookahead=ahead)
    for query in range(BATCH):
        ((way, score),) = found_of(found, query)
        assert allowed[query, texts.index(list(way[:-1]))]
        assert score == pytest.approx(expected[query][4][0], abs=1e-4)  # another order of the same words is as good


def test_what_does_not_go_together():
    docids = Docids.build([[2, 3]], vocab_size=VOCAB, eos_id=1)
    trie = Trie.from_docids(docids)
    decoder, queries = decoder_and_queries(0, forgetful=True)
    ahead, cache = Lookahead.of(docids, trie), decoder.init_cache(queries, 2, MOST)
    leveled = dataclasses.replace(decoder, levels=((2, 4), (6, 4)))
    with pytest.raises(InputError, match="only scores of the first level"):
        beam_search(leveled, cache, trie, beams=2, max_len=3, normalize="none", lookahead=ahead)
    with pytest.raises(InputError, match="normalised over what may follow"):
        beam_search(decoder, cache, trie, beams=2, max_len=3, normalize="constraint", lookahead=ahead)
    for changes in ({"groups": 2}, {"backoff": Backoff(extra=1, threshold=-0.1)}):
        with pytest.raises(InputError, match="neither groups of beams nor backoff"):
            beam_search(decoder, cache, trie, beams=2, max_len=3, lookahead=ahead, **changes)


def test_a_retriever_searches_with_it_or_without(tmp_path):
    """It is saved with the index; another search of the same retriever rebuilds nothing else."""
    documents = [Document(str(i), title, f"About {title}.") for i, title in enumerate(["ab", "ba", "aab", "b", "bab"])]
    corpus, asked = Corpus.from_documents(documents), ["where is ab", "b"]
    made = small_systems.contextual_titles(corpus, ByteVocabulary(), seed=2, normalize="vocabulary", beams=1)
    enough = small_systems.enough_beams(made, corpus)
    ahead = made.searching(lookahead=True, beams=enough)
    assert (made.lookahead, made.beams, ahead.lookahead, ahead.beams) == (False, 1, True, enough)
    assert ahead.model is made.model
    expected = made.searching(beams=enough).retrieve(asked, 5)
    found = ahead.retrieve(asked, 5)
    np.testing.assert_array_equal(found.doc_index, expected.doc_index)
    np.testing.assert_allclose(found.score, expected.score, atol=1e-5)
    ahead.save(tmp_path / "ahead", corpus=corpus.fingerprint)
    again = GenerativeRetriever.load(tmp_path / "ahead")
    assert again.lookahead
    # A filter holds, and documents that come or go are looked ahead to.
    allowed = np.array([True, False, True, False, False])
    assert set(again.retrieve(asked, 5, allowed=allowed).doc_index[0].tolist()) == {0, 2, -1}
    again.update(remove=[0])
    # What it looks ahead to is what is there now.
    jax.tree.map(np.testing.assert_array_equal, again._ahead, Lookahead.of(again.docids, again.constraint))

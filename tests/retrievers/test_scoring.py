"""Scores of given documents are those that the same retriever gives them in its own rankings."""

import numpy as np
import pytest

from gr_jax.corpus import Corpus, Document
from gr_jax.dense import ExactSearch
from gr_jax.errors import InputError
from gr_jax.retrievers import Ranking
from gr_jax.retrievers.hybrid import HybridRetriever
from gr_jax.retrievers.rerank import RerankRetriever
from gr_jax.retrievers.scoring import candidate_scores

BM25 = pytest.importorskip("gr_jax.retrievers.lexical").BM25
pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")

WORDS = np.array("red green blue tall small wide old new".split())
QUERIES = ["red small", "blue wide tall"]
COUNT = 80


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    return Corpus.from_documents(Document(f"d{n}", "", " ".join(rng.choice(WORDS, 6))) for n in range(COUNT))


@pytest.fixture(scope="module")
def bm25(corpus):
    return BM25(corpus)


class Vectors:
    """Documents by inner products with a vector of each query."""

    num_documents = COUNT

    def __init__(self):
        rng = np.random.default_rng(1)
        self.vectors, self.queries = (
            rng.normal(size=(COUNT, 4)),
            dict(zip(QUERIES, rng.normal(size=(2, 4)), strict=True)),
        )
        self.search = ExactSearch(self.vectors.astype(np.float32))

    def of(self, queries):
        return np.stack([self.queries[one] for one in queries]).astype(np.float32)

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        return Ranking(*self.search.search(self.of(queries), k, allowed=allowed))


def candidates(seed=2, width=9):
    rng = np.random.default_rng(seed)
    drawn = np.stack([rng.permutation(COUNT)[:width] for _ in QUERIES]).astype(np.int32)
    drawn[0, 2] = drawn[1, -1] = -1
    return drawn


def expected(retriever, wanted, missing):
    """Looked up in the ranking of all documents."""
    ranking = retriever.retrieve(QUERIES, COUNT)
    found = np.full(wanted.shape, np.nan)
    for row, column in np.ndindex(wanted.shape):
        at = np.flatnonzero(ranking.doc_index[row] == wanted[row, column])
        if wanted[row, column] >= 0:
            found[row, column] = ranking.score[row, at[0]] if len(at) else missing
    return found


def test_vectors(corpus):
    retriever, wanted = Vectors(), candidates()
    found = candidate_scores(retriever, QUERIES, wanted)
    products = np.einsum("bd,bcd->bc", retriever.of(QUERIES), retriever.vectors[np.maximum(wanted, 0)])
    np.testing.assert_allclose(found, np.where(wanted >= 0, products, np.nan), rtol=1e-5)


def test_words(bm25):
    """A document with none of the query's words is found by nobody."""
    wanted = candidates()
    found = candidate_scores(bm25, QUERIES, wanted)
    np.testing.assert_allclose(found, expected(bm25, wanted, np.nan), rtol=1e-6)
    assert np.isfinite(found).sum() > 8


def test_the_same_document_twice(bm25):
    wanted = np.tile(candidates()[:, :1], (1, 4))
    found = candidate_scores(bm25, QUERIES, wanted)
    np.testing.assert_array_equal(found, np.repeat(found[:, :1], 4, axis=1))


@pytest.mark.parametrize("normalize", ["min-max", "z"])
def test_a_combination(bm25, normalize):
    """Of a depth at which some candidates are in one part's best, some in both, some in none."""
    vectors = Vectors()
    both = HybridRetriever({"words": bm25, "vectors": vectors}, (0.3, 0.7), normalize=normalize, depth=15)
    wanted = candidates(width=40)
    found = candidate_scores(both, QUERIES, wanted)
    ranking = both.retrieve(QUERIES, 15)
    inside = outside = 0
    for row in range(len(QUERIES)):
        of = dict(zip(ranking.doc_index[row].tolist(), ranking.score[row].tolist(), strict=True))
        for column, document in enumerate(wanted[row].tolist()):
            if document in of:
                assert found[row, column] == pytest.approx(of[document], rel=1e-5)
                inside += 1
            elif document >= 0:
                assert found[row, column] <= min(of.values()) + 1e-6
                outside += 1
    assert inside > 5 and outside > 5
    assert (np.isnan(found) == (wanted < 0)).all()


def test_a_scorer_of_pairs_is_asked_whatever_the_first_stage_finds(corpus, bm25):
    def length(pairs):
        return np.array([len(document) + 0.01 * len(query) for query, document in pairs])

    reranker, wanted = RerankRetriever(bm25, length, corpus, depth=2), candidates()
    found = candidate_scores(reranker, QUERIES, wanted)
    for row, column in np.ndindex(wanted.shape):
        if wanted[row, column] >= 0:
            text = corpus[int(wanted[row, column])].text
            assert found[row, column] == pytest.approx(len(text) + 0.01 * len(QUERIES[row]))
        else:
            assert np.isnan(found[row, column])


class Wrong(Vectors):
    """One score of the second query is another."""

    def __init__(self, score):
        super().__init__()
        self.wrong = score

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        ranking = super().retrieve(queries, k, allowed=allowed)
        scores = np.array(ranking.score)
        scores[1, 0] = self.wrong
        return Ranking(ranking.doc_index, scores)


class Scorer:
    """Every candidate has the score of its place; some, those that are given."""

    num_documents = COUNT

    def __init__(self, *given):
        self.given = given  # (row, column, score)

    def score(self, queries, candidates):
        scores = np.tile(np.arange(candidates.shape[1], dtype=np.float64), (len(queries), 1))
        for row, column, score in self.given:
            scores[row, column] = score
        return scores


@pytest.mark.parametrize(("score", "said"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_score_that_is_no_number_is_refused(score, said):
    """It would pass for a document that is not found, and stand last."""
    wanted = candidates()
    with pytest.raises(InputError, match=rf"Scorer, gave {said} for .* document {wanted[1, 3]} .*'{QUERIES[1]}'"):
        candidate_scores(Scorer((1, 3, score)), QUERIES, wanted)
    with pytest.raises(InputError, match=rf"Wrong, gave {said} for .*'{QUERIES[1]}'"):
        candidate_scores(Wrong(score), QUERIES, wanted)
    # Where there is no candidate it does not matter what stands.
    found = candidate_scores(Scorer((0, 2, score)), QUERIES, wanted)
    assert np.isnan(found[0, 2]) and np.isfinite(found[wanted >= 0]).all()


def test_minus_infinity_is_no_score():
    wanted = candidates()
    found = candidate_scores(Scorer((1, 3, -np.inf)), QUERIES, wanted)
    expected = np.where(wanted >= 0, np.arange(9.0), np.nan)
    expected[1, 3] = np.nan
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32
    (missing,) = np.argwhere(np.isnan(candidate_scores(Wrong(-np.inf), QUERIES, wanted)) & (wanted >= 0))
    first = candidate_scores(Vectors(), QUERIES, wanted)[1]
    assert missing.tolist() == [1, int(np.nanargmax(first))]


def test_bad_input(bm25):
    with pytest.raises(InputError, match="no such document among the 80"):
        candidate_scores(bm25, QUERIES, np.array([[1], [COUNT]]))
    with pytest.raises(InputError, match="as many rows"):
        candidate_scores(bm25, QUERIES, np.zeros((3, 2), int))
    assert candidate_scores(bm25, QUERIES, np.zeros((2, 0), int)).shape == (2, 0)

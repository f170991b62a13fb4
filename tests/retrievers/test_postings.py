"""The compiled loop and NumPy against sums written out here, and against each other."""

import threading

import numpy as np
import pytest

from gr_jax.retrievers import postings as postings_lib
from gr_jax.retrievers.postings import Postings

DOCUMENTS, TERMS = 60, 25


@pytest.fixture(params=["numba", "numpy"])
def way(request, monkeypatch):
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setattr(postings_lib, "_compiled", lambda: request.param == "numba")
    return request.param


def draw(seed=0, *, ties=True) -> tuple[Postings, np.ndarray]:
    """Postings and the same as a matrix float64[terms, documents]; terms 3 and the last have no documents."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 4, (TERMS, DOCUMENTS)) / 2 if ties else rng.random((TERMS, DOCUMENTS)) + 0.01
    table = np.where(rng.random((TERMS, DOCUMENTS)) < 0.3, weights, 0).astype(np.float32)
    table[[3, TERMS - 1]] = 0
    terms, documents = np.nonzero(table)
    offsets = np.searchsorted(terms, np.arange(TERMS + 1)).astype(np.int64)
    return Postings(table[terms, documents], documents.astype(np.int32), offsets, DOCUMENTS), table.astype(np.float64)


def expected(table, queries, k, allowed=None):
    positions, scores = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
    for row, terms in enumerate(queries):
        sums = np.zeros(DOCUMENTS)
        for term in terms:
            sums += table[term]
        sums = sums.astype(np.float32)
        keep = np.ones(DOCUMENTS, bool) if allowed is None else allowed[min(row, len(allowed) - 1)]
        found = [d for d in np.lexsort((np.arange(DOCUMENTS), -sums)) if sums[d] > 0 and keep[d]][:k]
        positions[row, : len(found)], scores[row, : len(found)] = found, sums[found]
    return positions, scores


QUERIES = [[0, 1, 2], [], [5], [7, 7, 7, 1], [3], [24], [24, 9], list(range(25)), [4, 4], [11, 12]]


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("k", [1, 3, 20, DOCUMENTS, 500])
@pytest.mark.parametrize("rows", [0, 1, len(QUERIES)])
def test_the_best_sums(way, rows, k, ties):
    postings, table = draw(k, ties=ties)
    allowed = np.random.default_rng(1).random((rows, DOCUMENTS)) < 0.4 if rows else None
    found = postings.search(QUERIES, k, allowed)
    for one, other in zip(found, expected(table, QUERIES, k, allowed), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (found[0].dtype, found[1].dtype) == (np.int32, np.float32)


def test_one_query_is_answered_as_among_others(way):
    postings, _ = draw(ties=False)
    together = postings.search(QUERIES, 7)
    for row, query in enumerate(QUERIES):  # nothing is left behind of the query before
        for one, other in zip(postings.search([query], 7), together, strict=True):
            np.testing.assert_array_equal(one[0], other[row])


def test_both_ways_add_the_same_numbers_in_the_same_order(monkeypatch):
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    postings, _ = draw(ties=False)
    queries = [rng.integers(0, TERMS, rng.integers(0, 30)).tolist() for _ in range(40)]
    found = []
    for compiled in (True, False):
        monkeypatch.setattr(postings_lib, "_compiled", lambda compiled=compiled: compiled)
        found.append(postings.search(queries, 30))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_threads_share_a_batch(way, monkeypatch):
    parts, zeros = [], postings_lib._zeros
    monkeypatch.setattr(postings_lib, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(postings_lib, "_cores", lambda: 3)
    monkeypatch.setattr(postings_lib, "_zeros", lambda length: (parts.append(length), zeros(length))[1])
    postings, table = draw()
    for one, other in zip(postings.search(QUERIES, 9), expected(table, QUERIES, 9), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(parts) == (3 if way == "numba" else 0)


def test_a_thread_that_fails_is_heard_of(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(postings_lib, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(postings_lib, "_cores", lambda: 2)
    zeros = postings_lib._zeros

    def room(length):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("no room")
        return zeros(length)

    monkeypatch.setattr(postings_lib, "_zeros", room)
    with pytest.raises(MemoryError, match="no room"):
        draw()[0].search(QUERIES, 3)


@pytest.mark.parametrize("filtered", [False, True])
def test_many_documents_of_few_terms_and_of_many(filtered):
    """Sums are looked up where there are few postings, else all of them are looked at: both by the same rule."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    count = 3000
    table = np.where(
        rng.random((6, count)) < [[0.9], [0.5], [0.1], [0.02], [0.003], [0]], rng.integers(1, 9, (6, count)), 0
    )
    terms, documents = np.nonzero(table)
    offsets = np.searchsorted(terms, np.arange(7)).astype(np.int64)
    postings = Postings(table[terms, documents].astype(np.float32), documents.astype(np.int32), offsets, count)
    allowed = rng.random((1, count)) < 0.3 if filtered else None
    queries = [[0], [1, 2], [3], [4], [4, 3], [0, 1, 2, 3, 4, 5], [5], [2, 2]]
    found = postings.search(queries, 40, allowed)
    for row, query in enumerate(queries):
        sums = table[query].sum(axis=0)
        order = np.lexsort((np.arange(count), -sums))
        order = [d for d in order if sums[d] > 0 and (allowed is None or allowed[0, d])][:40]
        assert found[0][row, : len(order)].tolist() == order and (found[0][row, len(order) :] == -1).all()
        np.testing.assert_array_equal(found[1][row, : len(order)], sums[order])


def test_nothing_to_search(way):
    empty = Postings(np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64), 0)
    for found in (empty.search([[]], 3), draw()[0].search([[]], 3)):
        assert found[0].tolist() == [[-1] * 3] and np.isneginf(found[1]).all()
    assert draw()[0].search([], 3)[0].shape == (0, 3)

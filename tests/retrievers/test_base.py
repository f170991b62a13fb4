"""Rankings, and how they become runs."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gr_jax.corpus import Corpus, Document, Queries
from gr_jax.errors import InputError
from gr_jax.retrievers import Ranking, ranking_to_run, retrieve_run, stack_rankings
from gr_jax.retrievers.base import best, checked_allowed

CORPUS = Corpus.from_documents(Document(f"d{i}", "", f"text {i}") for i in range(5))


def ranking(rows: list[list[int]], k: int) -> Ranking:
    doc_index = np.full((len(rows), k), -1, np.int32)
    score = np.full((len(rows), k), -np.inf, np.float32)
    for place, row in enumerate(rows):
        doc_index[place, : len(row)] = row
        score[place, : len(row)] = -np.arange(len(row))
    return Ranking(doc_index, score)


def test_a_ranking_becomes_a_run_without_its_empty_places():
    run = ranking_to_run(ranking([[3, 0], [], [1]], 2), ["a", "b", "c"], CORPUS)
    assert dict(run) == {"a": [("d3", 0.0), ("d0", -1.0)], "b": [], "c": [("d1", 0.0)]}
    with pytest.raises(InputError, match="2 query ids for a ranking of 3"):
        ranking_to_run(ranking([[3], [], [1]], 2), ["a", "b"], CORPUS)


class Parrot:
    """Answers the query "2 0 1" with the documents 2, 0, 1."""

    def __init__(self):
        self.batches: list[int] = []

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        self.batches.append(len(queries))
        return ranking([list(map(int, query.split()))[:k] for query in queries], k)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_all_queries_are_answered_in_batches(batch_size):
    queries = Queries(("a", "b", "c"), ("2 0 1", "4", "1 3"))
    parrot = Parrot()
    run = retrieve_run(parrot, queries, CORPUS, k=2, batch_size=batch_size)
    assert {query: [doc for doc, _ in hits] for query, hits in run.items()} == {
        "a": ["d2", "d0"],
        "b": ["d4"],
        "c": ["d1", "d3"],
    }
    assert sum(parrot.batches) == 3 and max(parrot.batches) <= batch_size
    with pytest.raises(InputError, match="no queries"):
        retrieve_run(parrot, Queries((), ()), CORPUS, k=2)


def test_stacked_rankings_keep_evidence_only_where_all_have_it():
    with_evidence = Ranking(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32), (((),),))
    without = ranking([[0]], 1)
    assert stack_rankings([with_evidence, with_evidence]).evidence == (((),), ((),))
    assert stack_rankings([with_evidence, without]).evidence is None
    assert len(stack_rankings([with_evidence, without])) == 2


@hypothesis.given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40), st.integers(1, 45))
def test_best_sorts_by_score_then_position(items, k):
    scores = np.array([score for score, _ in items], np.float32)
    eligible = np.array([ok for _, ok in items], bool)
    expected = sorted(np.flatnonzero(eligible), key=lambda i: (-scores[i], i))[:k]
    assert best(scores, k, eligible).tolist() == expected


def test_allowed_is_checked():
    assert checked_allowed(None, 2, 3) is None
    one = checked_allowed(np.array([True, False, True]), 2, 3)
    assert one is not None and one.tolist() == [[True, False, True]] * 2
    each = np.eye(3, dtype=bool)
    assert checked_allowed(each, 3, 3) is not None
    with pytest.raises(InputError, match="booleans"):
        checked_allowed(np.array([0, 1, 2]), 2, 3)
    for shape in ((4,), (3, 3), (2, 4)):
        with pytest.raises(InputError, match="does not fit 2 queries over 3 documents"):
            checked_allowed(np.ones(shape, bool), 2, 3)

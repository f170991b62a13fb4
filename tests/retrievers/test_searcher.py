"""Searchers: queries as texts in, readable hits out."""

import numpy as np
import pytest

from gr_jax.corpus import Corpus, Document, Qrels, Queries
from gr_jax.errors import InputError
from gr_jax.retrievers import Evidence, Ranking, Searcher
from gr_jax.retrievers.searcher import Hit

CORPUS = Corpus.from_documents(Document(f"d{i}", f"Title {i}" if i else "", f"text {i}") for i in range(4))


class Echo:
    """Answers every query with the documents 2 and 0; remembers what it was asked."""

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        self.asked = (list(queries), k, allowed, explain)
        doc_index = np.full((len(queries), k), -1, np.int32)
        score = np.full((len(queries), k), -np.inf, np.float32)
        doc_index[:, :2], score[:, :2] = np.asarray([2, 0])[:k], np.asarray([-0.5, -1.25])[:k]
        reasons = ((Evidence("term", "text", 1.0), Evidence("docid", "7-3", -0.5, (7, 3))), ())[:k]
        evidence = (reasons,) * len(queries) if explain else None
        return Ranking(doc_index, score, evidence, lambda query, rank: ("7-3", "")[rank])


def test_hits_are_the_documents_with_what_was_generated():
    hits = Searcher(Echo(), CORPUS).search("anything", k=3)
    assert [(hit.doc_id, hit.title, hit.text, hit.score, hit.docid) for hit in hits] == [
        ("d2", "Title 2", "text 2", -0.5, "7-3"),
        ("d0", "", "text 0", -1.25, ""),
    ]
    assert str(hits[0]) == "   -0.50  Title 2  [7-3]"
    assert str(hits[1]) == "   -1.25  d0"
    assert [hit.doc_id for hit in Searcher(Echo(), CORPUS).search("anything", k=1)] == ["d2"]


def test_evidence_is_computed_where_it_is_asked_for():
    echo = Echo()
    assert [hit.evidence for hit in Searcher(echo, CORPUS).search("anything", k=3)] == [(), ()]
    assert echo.asked == (["anything"], 3, None, False)
    first, second = Searcher(echo, CORPUS).search("anything", k=3, explain=True)
    assert echo.asked == (["anything"], 3, None, True)
    assert [reason.kind for reason in first.evidence] == ["term", "docid"] and second.evidence == ()


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_texts_is_answered_in_one_batch(kind):
    echo = Echo()
    searcher = Searcher(echo, CORPUS)
    one, other = searcher.search(kind(["a", "b"]), k=2)
    assert echo.asked[0] == ["a", "b"]
    assert one == other == searcher.search("a", k=2)
    assert searcher.search(kind(["a"]), k=2) == [one]


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [("", 3, "the query is empty"), (" \n", 3, "the query is empty"), (["a", ""], 3, "query 1 is empty"),
     ([], 3, "list of queries is empty"), ("a", 0, "k"), ("a", -1, "k")],
)  # fmt: skip
def test_bad_queries(query, k, message):
    with pytest.raises(InputError, match=message):
        Searcher(Echo(), CORPUS).search(query, k)


def test_batches_go_to_the_retriever_as_they_are():
    echo, allowed = Echo(), np.ones(4, bool)
    ranking = Searcher(echo, CORPUS).retrieve(["a", "b"], 3, allowed=allowed, explain=True)
    assert ranking.doc_index.tolist() == [[2, 0, -1]] * 2
    assert echo.asked == (["a", "b"], 3, allowed, True)


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [(3, 3, "no text"), (None, 3, "no text"), (b"a", 3, "no text"), ({"a"}, 3, "no text"),
     (["a", 3], 3, "query 1 is no text"), ([None], 3, "query 0 is no text"), ("a\udc80", 3, "no valid Unicode"),
     ("a", "3", "k is how"), ("a", 2.0, "k is how"), ("a", True, "k is how"), ("a", None, "k is how")],
)  # fmt: skip
def test_what_is_no_query(query, k, message):
    with pytest.raises(InputError, match=message):
        Searcher(Echo(), CORPUS).search(query, k)


def test_more_than_there_are_is_all(monkeypatch):
    echo = Echo()
    assert len(Searcher(echo, CORPUS).search("anything", k=10**9)) == 2
    assert echo.asked[1] == len(CORPUS)


def test_control_characters_of_titles_are_not_printed():
    hit = Hit("d0", "red\x1b[31m\ncat\u202e", "", 1.0, "a\x07")
    assert str(hit) == "    1.00  red�[31m cat�  [a�]"


class Scores:
    """Scores every document by the number in the question; the answer is document 3 where that is even."""

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        score = np.stack([np.sort((np.arange(4) * (7 + int(query)) % 5) / 2.0)[::-1] for query in queries])
        doc_index = np.tile(np.arange(4), (len(queries), 1))
        return Ranking(
            doc_index[:, :k], score[:, :k].astype(np.float32), (((),) * k,) * len(queries) if explain else None
        )


def test_probabilities_are_measured_and_then_said():
    searcher = Searcher(Scores(), CORPUS)
    with pytest.raises(InputError, match="not measured.*gr-jax calibrate"):
        searcher.search("1", probability=True)
    queries = Queries([str(q) for q in range(30)], [str(q) for q in range(30)])
    qrels = Qrels({str(q): {f"d{q % 3}": 1} for q in range(20)})
    made = searcher.calibrate(queries, qrels)
    assert made == searcher.calibration and made.queries == 20 and made.depth == 4  # there are no more documents
    hits = searcher.search("2", k=2, probability=True)
    every = made.probabilities(np.array([hit.score for hit in searcher.search("2", k=4)]))
    assert [hit.probability for hit in hits] == pytest.approx(every[:2].tolist())
    assert [(hit.doc_id, hit.score) for hit in hits] == [(h.doc_id, h.score) for h in searcher.search("2", k=2)]
    assert f"{hits[0].probability:.1%}" in str(hits[0]) and searcher.search("2")[0].probability is None

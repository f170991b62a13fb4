"""Reranking: the scorer's order above, the first stage's below, and never a document that may not be found."""

import dataclasses

import numpy as np
import pytest

import gr_jax
from gr_jax import storage
from gr_jax.corpus import Corpus, Document
from gr_jax.errors import InputError
from gr_jax.registry import Registry
from gr_jax.retrievers import BM25, RerankRetriever, index, rerank

CORPUS = Corpus.from_documents(
    Document(f"d{n}", f"Title {n}" if n else "", "word " * (n + 1) + "other " * (6 - n)) for n in range(6)
)


@dataclasses.dataclass
class Lengths:
    """Prefers long texts, or short ones; remembers what it was asked."""

    sign: float = 1.0
    asked: list = dataclasses.field(default_factory=list)

    def __call__(self, pairs):
        self.asked.append(list(pairs))
        return [self.sign * text.count("word") for _, text in pairs]

    def save(self, folder):
        with storage.write_folder(folder, "lengths", meta={"sign": self.sign}):
            pass

    @classmethod
    def load(cls, folder, *, verify=True):
        return cls(storage.read_folder(folder, "lengths", verify=verify).meta["sign"])


class First:
    """Ranks the allowed documents by number."""

    num_documents = 6

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        mask = np.ones((len(queries), 6), bool) if allowed is None else np.broadcast_to(allowed, (len(queries), 6))
        doc_index, score = np.full((len(queries), k), -1, np.int32), np.full((len(queries), k), -np.inf, np.float32)
        for row, here in enumerate(mask):
            found = np.flatnonzero(here)[:k]
            doc_index[row, : len(found)], score[row, : len(found)] = found, -found
        from gr_jax.retrievers import Evidence, Ranking

        reasons = tuple(tuple((Evidence("term", f"d{d}", 1.0),) for d in row if d >= 0) for row in doc_index)
        return Ranking(doc_index, score, reasons if explain else None, lambda query, rank: f"d{doc_index[query, rank]}")


def test_the_first_are_ordered_anew_and_the_rest_stay_behind_them():
    scorer = Lengths()
    found = RerankRetriever(First(), scorer, CORPUS, depth=3).retrieve(["a", "b"], 5)
    assert found.doc_index.tolist() == [[2, 1, 0, 3, 4]] * 2
    np.testing.assert_array_equal(found.score, [[3, 2, 1, 0, -1]] * 2)
    (pairs,) = scorer.asked  # all at once
    assert [query for query, _ in pairs] == ["a"] * 3 + ["b"] * 3
    assert pairs[0][1].startswith("word other") and pairs[1][1].startswith("Title 1: word word other")


def test_a_ranking_shorter_than_the_depth():
    """Depth decides what is read, k what is returned."""
    found = RerankRetriever(First(), Lengths(), CORPUS, depth=4).retrieve(["a"], 2)
    assert found.doc_index.tolist() == [[3, 2]]
    allowed = np.array([True, False, True, False, False, False])
    few = RerankRetriever(First(), Lengths(), CORPUS, depth=4).retrieve(["a"], 6, allowed=allowed)
    assert few.doc_index.tolist() == [[2, 0, -1, -1, -1, -1]]
    assert np.isneginf(few.score[0, 2:]).all() and np.isfinite(few.score[0, :2]).all()
    none = RerankRetriever(First(), Lengths(), CORPUS).retrieve(["a"], 2, allowed=np.zeros(6, bool))
    assert none.doc_index.tolist() == [[-1, -1]]


def test_equal_scores_keep_the_first_stages_order():
    found = RerankRetriever(First(), Lengths(sign=0.0), CORPUS, depth=6).retrieve(["a"], 6)
    assert found.doc_index.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_explanations_move_with_their_documents():
    allowed = np.array([True, True, True, True, True, False])
    found = RerankRetriever(First(), Lengths(), CORPUS, depth=3).retrieve(["a"], 4, allowed=allowed, explain=True)
    (evidence,) = found.evidence
    for document, score, reasons in zip(found.doc_index[0], found.score[0], evidence, strict=True):
        assert reasons[-1].text == f"d{document}"
        judged = [reason.score for reason in reasons if reason.kind == "pair"]
        assert judged == ([score] if document < 3 else [])
    few = RerankRetriever(First(), Lengths(), CORPUS, depth=5).retrieve(["a"], 6, allowed=allowed[::-1], explain=True)
    assert [reasons[-1].text for reasons in few.evidence[0]] == [f"d{d}" for d in few.doc_index[0] if d >= 0]


def test_docids_move_with_their_documents():
    for depth in (3, 6):
        found = RerankRetriever(First(), Lengths(), CORPUS, depth=depth).retrieve(["a", "b"], 5)
        assert [found.docid_of(1, rank) for rank in range(5)] == [f"d{document}" for document in found.doc_index[1]]


def test_transforms_are_applied_to_both():
    scorer = Lengths()
    corpus = Corpus.from_documents([Document("d0", "jax.lax", "fooBar")])
    RerankRetriever(BM25(corpus), scorer, corpus, transform="split_identifiers").retrieve(["foobar fooBar"], 1)
    assert scorer.asked == [[("foobar foo Bar", "jax lax: foo Bar")]]


def test_what_was_saved_answers_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(rerank, "SCORERS", Registry("scorer"))
    rerank.SCORERS.register("lengths", f"{__name__}:Lengths")
    retriever = RerankRetriever(BM25(CORPUS), Lengths(sign=-1.0), CORPUS, depth=4)
    index.save(tmp_path / "index", retriever, CORPUS)
    searcher = gr_jax.load(tmp_path / "index")
    one, other = (r.retrieve(["word", "other"], 6) for r in (retriever, searcher.retriever))
    np.testing.assert_array_equal(one.doc_index, other.doc_index)
    np.testing.assert_array_equal(one.score, other.score)
    monkeypatch.setattr(rerank, "SCORERS", Registry("scorer"))
    with pytest.raises(InputError, match="lengths"):
        gr_jax.load(tmp_path / "index")


def test_updates():
    retriever = RerankRetriever(BM25(CORPUS), Lengths(), CORPUS, depth=10)
    retriever.update(add=Corpus.from_documents([Document("d6", "More", "word " * 20)]), remove=[5])
    assert retriever.num_documents == 7 and retriever.retrieve(["word"], 2).doc_index.tolist() == [[6, 4]]
    with pytest.raises(InputError, match="first stage"):
        RerankRetriever(First(), Lengths(), CORPUS).update(remove=[0])


def test_what_cannot_be(tmp_path):
    with pytest.raises(InputError, match="depth"):
        RerankRetriever(First(), Lengths(), CORPUS, depth=0)
    with pytest.raises(InputError, match="6 documents for a corpus of 2"):
        RerankRetriever(First(), Lengths(), CORPUS.subset([0, 1]))
    with pytest.raises(InputError, match="one finite number"):
        RerankRetriever(First(), lambda pairs: [0.0], CORPUS).retrieve(["a"], 3)
    with pytest.raises(InputError, match="one finite number"):
        RerankRetriever(First(), lambda pairs: [float("nan")] * len(pairs), CORPUS).retrieve(["a"], 3)
    with pytest.raises(InputError, match="cannot be saved"):
        RerankRetriever(BM25(CORPUS), lambda pairs: [0.0] * len(pairs), CORPUS).save(tmp_path / "x", corpus="c")

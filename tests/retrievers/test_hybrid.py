"""Combined retrievers: sums by hand, what filters and explanations do, weights that are the best there are."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gr_jax
from gr_jax import evaluation
from gr_jax.corpus import Corpus, Document
from gr_jax.errors import InputError
from gr_jax.retrievers import BM25, HybridRetriever, Ranking, index, ranking_to_run
from gr_jax.retrievers.hybrid import choose_weight, fuse, normalized

CORPUS = Corpus.from_documents(
    [
        Document("d0", "Cats", "They sleep on the warm roof."),
        Document("d1", "Dogs", "They run on the beach."),
        Document("d2", "Owls", "They see the roof at night."),
        Document("d3", "Eels", "They swim to the beach at night."),
    ]
)


def ranking(rows: list[list[tuple[int, float]]], k: int) -> Ranking:
    doc_index, score = np.full((len(rows), k), -1, np.int32), np.full((len(rows), k), -np.inf, np.float32)
    for row, found in enumerate(rows):
        for rank, (document, value) in enumerate(found):
            doc_index[row, rank], score[row, rank] = document, value
    return Ranking(doc_index, score)


class Table:
    """Answers every query with the same scores, of the documents that are allowed."""

    num_documents = 4

    def __init__(self, scores):
        self.scores = np.asarray(scores, np.float32)

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        mask = np.ones((len(queries), 4), bool) if allowed is None else np.broadcast_to(allowed, (len(queries), 4))
        rows = [[(int(d), float(self.scores[d])) for d in np.argsort(-self.scores) if here[d]][:k] for here in mask]
        return ranking(rows, k)


class Writer(Table):
    """A table whose documents were found by identifiers, all but document 2."""

    def retrieve(self, queries, k, *, allowed=None, explain=False):
        found = super().retrieve(queries, k, allowed=allowed)
        return dataclasses.replace(
            found, docid_of=lambda query, rank: ["a", "b", "", "d"][found.doc_index[query, rank]]
        )


def test_a_docid_is_of_the_first_part_that_wrote_one():
    writer, other = Writer([0, 4, 2, 0]), Table([1, 1, 1, 1])
    for parts in ({"a": other, "b": writer}, {"b": writer, "a": writer}):
        for explain in (False, True):
            found = HybridRetriever(parts, (0.5, 0.5)).retrieve(["x", "y"], 4, explain=explain)
            named = {found.doc_index[1, rank]: found.docid_of(1, rank) for rank in range(4)}
            assert named == {0: "a", 1: "b", 2: "", 3: "d"}


def test_a_sum_by_hand():
    first = ranking([[(3, 10.0), (1, 6.0), (0, 2.0)]], 3)  # min-max: 1, .5, 0
    second = ranking([[(1, 0.9), (2, 0.8), (3, 0.4)]], 3)  # 1, .8, 0
    fused, shares = fuse((first, second), (0.6, 0.4), 4)
    assert fused.doc_index.tolist() == [[1, 3, 2, 0]]
    np.testing.assert_allclose(fused.score, [[0.7, 0.6, 0.32, 0.0]], atol=1e-6)
    np.testing.assert_allclose(shares[0], [[0.3, 0.6, 0.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(shares[1], [[0.4, 0.0, 0.32, 0.0]], atol=1e-6)


def test_z_scores_by_hand():
    first = ranking([[(0, 3.0), (1, 1.0)]], 2)  # mean 2, deviation 1: 1, −1
    second = ranking([[(2, 5.0), (0, 3.0)]], 2)  # 1, −1
    fused, _ = fuse((first, second), (0.5, 0.5), 4, normalize="z")
    assert fused.doc_index.tolist() == [[0, 2, 1, -1]]
    np.testing.assert_allclose(fused.score[0, :3], [0.0, 0.0, -1.0], atol=1e-6)
    assert np.isneginf(fused.score[0, 3])


def test_a_document_that_one_part_found_alone_counts_there():
    """A list of one has no scale, and yet says more than nothing."""
    fused, _ = fuse((ranking([[(2, 7.0)]], 2), ranking([[(0, 1.0), (1, 0.5)]], 2)), (0.7, 0.3), 3)
    assert fused.doc_index.tolist() == [[2, 0, 1]]
    for how in ("min-max", "z"):
        values, floor = normalized(np.array([4.0, 4.0]), how)
        assert (values > floor).all()
        assert normalized(np.zeros(0), how)[0].shape == (0,)


@given(
    scores=st.lists(st.integers(-50, 50), min_size=2, max_size=8),
    scale=st.floats(0.1, 50),
    shift=st.floats(-50, 50),
    how=st.sampled_from(["min-max", "z"]),
)
def test_normalised_scores_do_not_depend_on_scale_and_shift(scores, scale, shift, how):
    values = np.array(scores, np.float64)
    for one, other in zip(normalized(values, how), normalized(scale * values + shift, how), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@given(data=st.data())
def test_fused_rankings_are_those_of_whole_tables(data):
    """Where both parts name every document, ranking is that of the weighted table."""
    tables = [np.array(data.draw(st.permutations(range(6))), np.float64) for _ in range(2)]
    weight = data.draw(st.floats(0, 1))
    rankings = [ranking([[(int(d), float(t[d])) for d in np.argsort(-t)]], 6) for t in tables]
    fused, _ = fuse(rankings, (1 - weight, weight), 6)
    table = (1 - weight) * tables[0] / 5 + weight * tables[1] / 5
    np.testing.assert_allclose(fused.score[0], np.sort(table)[::-1], atol=1e-6)
    np.testing.assert_allclose(table[fused.doc_index[0]], fused.score[0], atol=1e-6)


def test_filters_reach_every_part():
    hybrid = HybridRetriever({"a": Table([4, 3, 2, 1]), "b": Table([1, 2, 4, 3])}, (0.5, 0.5))
    allowed = np.array([[False, True, True, True], [True, False, False, True]])
    found = hybrid.retrieve(["x", "y"], 4, allowed=allowed)
    for row, mask in zip(found.doc_index, allowed, strict=True):
        assert sorted(d for d in row.tolist() if d >= 0) == np.flatnonzero(mask).tolist()
    np.testing.assert_array_equal(found.doc_index[0, :1], [2])  # min-max among the allowed: b puts it at 1, a at .5


def test_explanations_name_the_parts_and_their_reasons():
    hybrid = HybridRetriever({"BM25": BM25(CORPUS), "table": Table([1, 2, 3, 4])}, (0.7, 0.3))
    found = hybrid.retrieve(["the roof at night"], 2, explain=True)
    (evidence,) = found.evidence
    assert len(evidence) == 2
    for rank, reasons in enumerate(evidence):
        parts = {reason.text: reason.score for reason in reasons if reason.kind == "part"}
        assert list(parts) == ["BM25", "table"]
        assert sum(parts.values()) == pytest.approx(float(found.score[0, rank]), abs=1e-6)
    assert {reason.text for reason in evidence[0] if reason.kind == "term"} == {"roof", "night"}


def test_what_was_saved_answers_alike(tmp_path):
    parts = {"one": BM25(CORPUS), "other": BM25(CORPUS, b=0.9)}
    hybrid = HybridRetriever(parts, (0.25, 0.75), normalize="z", depth=7)
    index.save(tmp_path / "index", hybrid, CORPUS)
    searcher = gr_jax.load(tmp_path / "index")
    loaded = searcher.retriever
    assert (loaded.weights, loaded.normalize, loaded.depth) == ((0.25, 0.75), "z", 7)
    one, other = (r.retrieve(["beach", "roof at night"], 4) for r in (hybrid, loaded))
    np.testing.assert_array_equal(one.doc_index, other.doc_index)
    np.testing.assert_array_equal(one.score, other.score)


def test_updates_go_to_all_parts_or_to_none():
    more = Corpus.from_documents([Document("d4", "Bees", "They dance on the beach at night.")])
    hybrid = HybridRetriever({"one": BM25(CORPUS), "other": BM25(CORPUS, b=0.9)}, (0.5, 0.5))
    found = hybrid.update(add=more, remove=[3]).retrieve(["the beach at night"], 5).doc_index
    assert hybrid.num_documents == 5 and found[0, 0] == 4 and 3 not in found
    mixed = HybridRetriever({"one": BM25(CORPUS), "other": Table([1, 2, 3, 4])}, (0.5, 0.5))
    with pytest.raises(InputError, match="other"):
        mixed.update(add=more)
    assert mixed.parts["one"].num_documents == 4

    class Refusing(Table):
        def update(self, add=None, remove=()):
            raise InputError("a document without a title", "Give it one.")

    refused = HybridRetriever({"one": BM25(CORPUS), "other": Refusing([1, 2, 3, 4])}, (0.5, 0.5))
    with pytest.raises(InputError, match="without a title"):
        refused.update(add=more, remove=[0])
    assert refused.parts["one"].num_documents == refused.num_documents == 4
    assert 0 in refused.retrieve(["cats on the warm roof"], 4).doc_index


@pytest.mark.parametrize(
    ("parts", "weights", "settings", "message"),
    [
        (2, (0.5,), {}, "weight"),
        (2, (0.5, -0.5), {}, "weight"),
        (2, (0.5, float("nan")), {}, "weight"),
        (2, (0.0, 0.0), {}, "above 0"),
        (2, (0.5, 0.5), {"normalize": "max"}, "'max'"),
        (2, (0.5, 0.5), {"depth": 0}, "depth"),
    ],
)
def test_settings_that_make_no_sense(parts, weights, settings, message):
    with pytest.raises(InputError, match=message):
        HybridRetriever({str(n): Table([1, 2, 3, 4]) for n in range(parts)}, weights, **settings)


def test_parts_of_different_corpora():
    with pytest.raises(InputError, match="different corpora"):
        HybridRetriever({"a": Table([1, 2, 3, 4]), "b": BM25(CORPUS.subset([0, 1]))}, (0.5, 0.5))


def test_the_chosen_weight_is_the_best_of_all_that_were_tried():
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 4, 30)
    noisy = [np.eye(4)[truth] + generator.normal(0, spread, (30, 4)) for spread in (0.7, 0.9)]
    rankings = [ranking([[(int(d), float(row[d])) for d in np.argsort(-row)] for row in part], 4) for part in noisy]
    ids = [f"q{n}" for n in range(30)]
    qrels = {query: {f"d{t}": 1} for query, t in zip(ids, truth, strict=True)}
    choice = choose_weight(*rankings, ids, CORPUS, qrels, weights=(0.0, 0.3, 0.5, 1.0))
    assert len(choice.curve) == 8 and sum(choice.weights) == pytest.approx(1.0)
    for point in choice.curve:
        fused, _ = fuse(rankings, (1 - point["weight"], point["weight"]), 10, normalize=point["normalize"])
        expected = evaluation.evaluate(ranking_to_run(fused, ids, CORPUS), qrels, "RR@10")["RR@10"]
        assert point["RR@10"] == pytest.approx(expected)
    best = max(point["RR@10"] for point in choice.curve)
    chosen = [p for p in choice.curve if (p["normalize"], p["weight"]) == (choice.normalize, choice.weights[1])]
    assert chosen[0]["RR@10"] == best > min(point["RR@10"] for point in choice.curve)
    assert choice.retriever({"a": Table([1, 2, 3, 4]), "b": Table([4, 3, 2, 1])}).weights == choice.weights
    for bad in ({"weights": (2.0,)}, {"weights": ()}, {"normalizations": ("max",)}, {"measure": "Hits@x"}):
        with pytest.raises(InputError):
            choose_weight(*rankings, ids, CORPUS, qrels, **bad)

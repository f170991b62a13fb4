"""Measures against their definitions, written out here by hand."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gr_jax.corpus import Qrels, Run
from gr_jax.errors import InputError
from gr_jax.evaluation import DEFAULT_MEASURES, evaluate, parse_measures

QRELS = {"q1": {"a": 1, "b": 2}, "q2": {"c": 1}, "q3": {"d": 1, "e": 0}}
RUN = {"q1": [("x", 3.0), ("b", 2.0), ("a", 1.0)], "q2": [("c", 9.0)], "stranger": [("a", 1.0)]}
MEASURES = "Success@1 Success@2 R@2 R@100 RR@10 nDCG@10 AP Rprec P@2"


def by_definition(ranking: list[str], grades: dict[str, int]) -> dict[str, float]:
    relevant = {doc for doc, grade in grades.items() if grade > 0}
    hits = [doc in relevant for doc in ranking]
    gains = [max(grades.get(doc, 0), 0) for doc in ranking[:10]]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:10]

    def dcg(values):
        return sum(value / math.log2(rank + 2) for rank, value in enumerate(values))

    def share(numerator, denominator):
        return numerator / denominator if denominator else 0.0

    first = hits.index(True) + 1 if any(hits[:10]) else math.inf
    return {
        "Success@1": float(any(hits[:1])),
        "Success@2": float(any(hits[:2])),
        "R@2": share(sum(hits[:2]), len(relevant)),
        "R@100": share(sum(hits[:100]), len(relevant)),
        "RR@10": 1 / first,
        "nDCG@10": share(dcg(gains), dcg(ideal)),
        "AP": share(sum(sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit), len(relevant)),
        "Rprec": share(sum(hits[: len(relevant)]), len(relevant)),
        "P@2": sum(hits[:2]) / 2,
    }


documents = st.sampled_from([f"d{i}" for i in range(30)])


@hypothesis.given(
    st.dictionaries(st.sampled_from("abcdef"), st.dictionaries(documents, st.integers(0, 3), min_size=1), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), st.lists(documents, unique=True, max_size=25), min_size=1),
)
@hypothesis.settings(max_examples=60)
def test_values_are_those_of_the_definitions(qrels, rankings):
    hypothesis.assume(set(qrels) & set(rankings))
    # Equal scores throughout: only the order of the lists may count.
    run = {query: [(doc, 1.0) for doc in ranking] for query, ranking in rankings.items()}
    found = evaluate(run, qrels, MEASURES)
    assert found.query_ids == tuple(qrels)
    expected = {query: by_definition(rankings.get(query, []), grades) for query, grades in qrels.items()}
    for measure, values in found.per_query.items():
        np.testing.assert_allclose(values, [expected[query][measure] for query in qrels], atol=1e-9)
        assert found[measure] == pytest.approx(np.mean(values))


def test_a_worked_example():
    found = evaluate(RUN, QRELS, MEASURES)
    assert found["Success@1"] == pytest.approx(1 / 3)  # q2; q3 was not answered
    assert found["Success@2"] == pytest.approx(2 / 3)
    assert found["RR@10"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found["R@2"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found.per_query["RR@10"].tolist() == [0.5, 1.0, 0.0]
    assert dict(found) == {measure: found[measure] for measure in MEASURES.split()}


def test_scores_that_are_equal_in_float32_do_not_reorder_a_list():
    # trec_eval would sort equal scores by descending document id: "z" before "a".
    run = {"q": [("a", 1.0), ("z", 1.0 - 1e-12), ("b", 0.5)]}
    assert evaluate(run, {"q": {"a": 1}}, "Success@1 RR@10") == {"Success@1": 1.0, "RR@10": 1.0}


def test_run_and_qrels_of_the_corpus_layer_and_default_measures():
    found = evaluate(Run({query: hits for query, hits in RUN.items()}), Qrels(QRELS))
    assert list(found) == list(DEFAULT_MEASURES)
    assert found == evaluate(RUN, QRELS)


def test_a_run_of_scores_is_sorted_by_them():
    qrels = {"q": {"a": 1}}
    assert evaluate({"q": {"b": 1.0, "a": 2.0}}, qrels, "RR@10") == {"RR@10": 1.0}
    assert evaluate({"q": {"b": 2.0, "a": 2.0}}, qrels, "RR@10") == {"RR@10": 0.5}


def test_an_empty_run_counts_zero_everywhere():
    found = evaluate({}, QRELS, MEASURES)
    assert set(found.values()) == {0.0} and set(found) == set(MEASURES.split())
    assert evaluate({"q1": []}, QRELS, "Success@1 AP") == {"Success@1": 0.0, "AP": 0.0}


def test_counts_are_summed():
    assert evaluate(RUN, QRELS, "NumRelRet")["NumRet(rel=1)"] == 3.0


def test_names_become_those_of_ir_measures():
    assert list(parse_measures("MRR@10, Recall@5 AP(rel=2)")) == ["RR@10", "R@5", "AP(rel=2)"]
    assert list(parse_measures(["P(cutoff=5, rel=2)"])) == ["P(rel=2)@5"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Hits@10", "Write Success@10"),
        ("hits", "Write Success@10"),
        ("NDCG@5x", "Success@1, Success@10"),
        ("ndcg@5", "Write nDCG@5"),
        ("bogus@3", "Success@1, Success@10"),
        ("Success", "Success@1, Success@10"),
        ("Success@0", "a rank, 1 or more"),
        ("R@-1", "Success@1, Success@10"),
        ("Success@1.5", "Success@1, Success@10"),
        ("__import__('os')", "Success@1, Success@10"),
        ("alpha_nDCG@10", "Success@1, Success@10"),
        ("", "no measure is named"),
    ],
)
def test_an_unknown_measure_is_answered_with_right_ones(name, says):
    with pytest.raises(InputError, match=says):
        evaluate(RUN, QRELS, [name])


@pytest.mark.parametrize(
    ("run", "qrels", "says"),
    [
        (RUN, {}, "the qrels hold no query"),
        ({"other": [("a", 1.0)]}, QRELS, "no query of the run is in the qrels"),
        ({"q1": [("a", 2.0), ("b", 1.5), ("a", 1.0)]}, QRELS, "listed twice for query 'q1' .got 'a'"),
    ],
)
def test_wrong_input(run, qrels, says):
    with pytest.raises(InputError, match=says):
        evaluate(run, qrels, "Success@1")


def test_a_run_that_found_nothing(tmp_path):
    """Where it is kept in memory it counts 0; its file is empty, and says so."""
    run = Run({"q1": [], "q2": []})
    assert evaluate(run, QRELS, "RR@10") == {"RR@10": 0.0}
    run.save(tmp_path / "run.trec")
    with pytest.raises(InputError, match="run.trec: the file holds no results"):
        Run.load(tmp_path / "run.trec")

"""Answers as pages; and KILT's measures, as its published script computed them (kilt_golden.json: 60 random questions,
facebookresearch/KILT at 2664322)."""

import json
import pathlib

import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate, evidence_recall, qrels_of_pages, r_precision, run_of_pages

GOLDEN = json.loads((pathlib.Path(__file__).parent / "kilt_golden.json").read_text())
PAGES = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}


def test_as_kilt_measures():
    for case in GOLDEN:
        assert r_precision(case["answers"], case["evidence"]) == pytest.approx(case["Rprec"])
        for k in (1, 2, 5):
            assert evidence_recall(case["answers"], case["evidence"], k) == pytest.approx(case[f"recall@{k}"])


def test_without_evidence_there_is_nothing_to_find():
    assert r_precision(["a"], []) == r_precision(["a"], [[]]) == evidence_recall(["a"], [[]], 3) == 0
    with pytest.raises(InputError, match="k ≥ 1"):
        evidence_recall(["a"], [["a"]], 0)


def test_a_page_stands_where_its_best_passage_does():
    run = {"q": [("b1", 3.0), ("a2", 2.0), ("a1", 1.5), ("c1", 1.0)]}
    pages = run_of_pages(run, PAGES)
    assert pages["q"] == [("b", 3.0), ("a", 2.0), ("c", 1.0)]
    qrels = qrels_of_pages({"q": {"a1": 1, "a2": 2, "c1": 0}}, PAGES)
    assert dict(qrels["q"]) == {"a": 2, "c": 0}
    assert evaluate(pages, qrels, ["RR", "Success@2"]) == {"RR": 0.5, "Success@2": 1.0}
    # With one evidence set R-precision is that of ir_measures.
    relevant = [page for page, grade in qrels["q"].items() if grade]
    assert evaluate(pages, qrels, ["Rprec"])["Rprec"] == r_precision([page for page, _ in pages["q"]], [relevant])
    with pytest.raises(InputError, match="on no page"):
        run_of_pages({"q": [("z", 1.0)]}, PAGES)

"""Answers as pages."""

import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate, qrels_of_pages, r_precision, run_of_pages

PAGES = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}


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

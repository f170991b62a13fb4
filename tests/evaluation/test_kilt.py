"""KILT's measures, as its published script computed them.

kilt_golden.json has 1,000 random questions, their answers, and what `eval_retrieval.py` of facebookresearch/KILT at
2664322 says of them, in the order of `measures`.
"""

import json
import pathlib

import numpy as np
import pytest

from gr_jax.corpus.kilt import Output, Provenance, Question
from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate_kilt, evidence_recall, kilt, r_precision

GOLDEN = json.loads((pathlib.Path(__file__).parent / "kilt_golden.json").read_text())


def golden():
    """(question, answers, values) of each case; a page −1 has no id."""
    for number, case in enumerate(GOLDEN["cases"]):
        outputs = tuple(
            Output("a") if pages is None else Output(provenance=tuple(Provenance(named(p), "t") for p in pages))
            for pages in case["o"]
        )
        yield Question(str(number), "", outputs), [named(page) for page in case["a"]], case["v"]


def named(page: int) -> str:
    return "" if page < 0 else f"p{page}"


def test_as_kilt_measures():
    cases = list(golden())
    assert len(cases) == 1000
    for question, answers, expected in cases:
        found = kilt.measures(answers, question.evidence(), GOLDEN["cutoffs"])
        np.testing.assert_allclose(list(found.values()), expected, atol=1e-6)
    questions = [question for question, _, _ in cases]
    task = evaluate_kilt(questions, {q.id: a for q, a, _ in cases}, cutoffs=GOLDEN["cutoffs"])
    np.testing.assert_allclose(list(task.values()), np.mean([v for _, _, v in cases], axis=0), atol=1e-6)
    assert task.query_ids == tuple(question.id for question in questions)


def test_a_worked_example():
    """Two pages are needed together: they take one rank, where the second is found, and the page between moves up."""
    answers = ["a", "x", "b", "y"]
    assert kilt.ranks(answers, [{"a", "b"}]) == [False, True, False]
    assert kilt.ranks(["a", "x"], [{"a", "b"}]) == [False, False]
    assert evidence_recall(answers, [{"a", "b"}], 1) == 0 and evidence_recall(answers, [{"a", "b"}], 2) == 1
    assert evidence_recall(answers, [{"a", "b"}, {"z"}], 2) == 0.5
    assert r_precision(answers, [{"a", "b"}]) == 0.5 and r_precision(answers, [{"a", "b"}, {"a"}]) == 1


def test_without_evidence_there_is_nothing_to_find():
    assert r_precision(["a"], []) == r_precision(["a"], [[]]) == evidence_recall(["a"], [[]], 3) == 0
    assert set(kilt.measures([], [["a"]], [1]).values()) == {0.0}
    with pytest.raises(InputError, match="k ≥ 1"):
        evidence_recall(["a"], [["a"]], 0)


def test_a_null_page_is_nobody_s():
    assert r_precision(["None", "a"], [["", "a"]]) == 0 and r_precision(["a"], [["", "a"]]) == 1


def test_what_cannot_be_judged():
    asked = [Question("1", "who", (Output(provenance=(Provenance("p", "P"),)),)), Question("2", "what")]
    with pytest.raises(InputError, match="without an answer"):
        evaluate_kilt(asked, {"1": ["p"]})
    found = evaluate_kilt(asked, {"1": ["p"], "2": [], "3": []}, cutoffs=[1])
    assert found["Rprec"] == 0.5 and found["recall@1"] == 0.5
    assert evaluate_kilt(asked, {"1": ["P"], "2": []}, key="title", cutoffs=[1])["Rprec"] == 0.5
    with pytest.raises(InputError, match="have none"):
        evaluate_kilt(asked[1:], {"2": []})
    with pytest.raises(InputError, match="wikipedia_id or title"):
        evaluate_kilt(asked, {"1": [], "2": []}, key="url")

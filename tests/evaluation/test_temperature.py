"""Calibrations: what is fitted is measured on other questions, kept as JSON, and shown as tables."""

import io
import json
import math

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import calibration, temperature
from gr_jax.evaluation.calibration_pages import Page
from gr_jax.evaluation.temperature import Calibration


def drawn(queries: int, at: float, documents: int = 5, seed: int = 0):
    """Answers that are right as often as the softmax at a temperature says."""
    random = np.random.default_rng(seed)
    run, qrels = {}, {}
    for query in range(queries):
        scores = np.sort(random.normal(size=documents))[::-1]
        run[str(query)] = [(str(d), float(score)) for d, score in enumerate(scores)]
        shares = np.exp(scores / at)
        qrels[str(query)] = {str(random.choice(documents, p=shares / shares.sum())): 1}
    return run, qrels


def test_each_half_is_measured_by_the_temperature_of_the_other():
    run, qrels = drawn(60, 0.3)
    made = temperature.fit(run, qrels, depth=4)
    cut = {one: found[:4] for one, found in run.items()}
    halves = [{str(q): qrels[str(q)] for q in range(start, 60, 2)} for start in (0, 1)]
    said, right = {}, {}
    for measured, fitted in ((halves[0], halves[1]), (halves[1], halves[0])):
        at = temperature.fit_temperature(cut, fitted)
        for one in measured:
            shares = np.exp(np.array([score for _, score in cut[one]]) / at)
            said[one], right[one] = shares[0] / shares.sum(), float(qrels[one].get("0", 0))
    assert made.brier == pytest.approx(np.mean([(said[one] - right[one]) ** 2 for one in said]))
    before = calibration.of_list(cut, qrels)
    assert made.brier_before == pytest.approx(calibration.brier(before))
    assert made.error_before == pytest.approx(calibration.reliability(before).error)
    assert (made.depth, made.queries) == (4, 60)
    assert made.temperature == temperature.fit_temperature(cut, qrels)


def test_probabilities_are_a_softmax_of_the_first_scores():
    made = Calibration(0.5, 2, 10, 0.1, 0.1, 0.2, 0.2)
    found = made.probabilities(np.array([1.0, 0.5, 0.0]))
    total = math.exp(2) + math.exp(1)
    np.testing.assert_allclose(found, [math.exp(2) / total, math.exp(1) / total, 1 / total])
    assert made.probabilities(np.zeros(0)).tolist() == []
    assert made.probabilities(np.array([-1e5, -1e5 - 1])).sum() == pytest.approx(1)


def test_said_as_often_as_seen_on_questions_that_were_not_fitted():
    run, qrels = drawn(4000, 0.2)
    made = temperature.fit(run, qrels)
    assert made.error < 0.02 < 0.1 < made.error_before
    other, judged = drawn(4000, 0.2, seed=1)
    page = Page("a run")
    page.add_fitted("dev", "DPR", made)
    page.add("test", "DPR", other, judged, made)
    found = page.values["test"]["DPR"]
    assert found["ECE, calibrated"] < 0.02 < 0.1 < found["ECE"] and found["Brier, calibrated"] < found["Brier"]
    assert page.values["dev"]["DPR"]["Brier"] == made.brier_before


def test_a_page_is_written_and_printed(tmp_path):
    run, qrels = drawn(40, 0.2)
    made = temperature.fit(run, qrels)
    page = Page("<a> run")
    page.add_fitted("dev", "D|R", made)
    page.add("test", "D|R", run, qrels, made)
    page.save(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["test"]["D|R"]["temperature"] == made.temperature
    html = (tmp_path / "report.html").read_text()
    assert "&lt;a&gt; run" in html and "image/svg+xml" in html and html.count("<table>") == 2
    assert "D\\|R" in (tmp_path / "report.md").read_text()
    said = io.StringIO()
    page.print(said)
    assert "D|R" in said.getvalue() and "calibrated" in said.getvalue()


def test_json_there_and_back():
    made = temperature.fit(*drawn(20, 0.5))
    assert Calibration.from_json(json.loads(json.dumps(made.as_json()))) == made
    good = made.as_json()
    for wrong in (None, [], {}, {**good, "more": 1}, {**good, "depth": 1.5}, {**good, "temperature": "1"},
                  {**good, "temperature": 0.0}, {**good, "temperature": math.nan}, {**good, "brier": 1.5},
                  {**good, "depth": 0}, {**good, "queries": True}, {**good, "brier": 10**400}):  # fmt: skip
        with pytest.raises(InputError):
            Calibration.from_json(wrong)


def test_lists_of_both_runs_are_cut_to_one_depth():
    run, qrels = drawn(40, 0.3, documents=8, seed=1)
    dev, judged = drawn(40, 0.3, documents=8)
    cut = {one: found[:3] for one, found in run.items()}
    values = temperature.calibrated(cut, qrels, dev, judged)
    assert values == temperature.calibrated(run, qrels, {one: found[:3] for one, found in dev.items()}, judged)
    assert values["depth"] == 3 and values != temperature.calibrated(run, qrels, dev, judged)


def test_lists_without_a_spread_are_shared_out():
    """Two of four lists have scores that differ, each other one: both halves get one of them."""
    run = {one: [("x", 1.0), ("y", 0.0)][: 2 - place % 2] for place, one in enumerate("abcd")}
    made = temperature.fit(run, {one: {"x": 1} for one in run})
    assert made.queries == 4 and made.temperature > 0
    with pytest.raises(InputError, match="no list of these questions"):
        temperature.fit({one: run[one] for one in "bd"}, {one: {"x": 1} for one in "bd"})


def test_one_question_is_too_few():
    with pytest.raises(InputError, match="2 or more"):
        temperature.fit({"a": [("x", 1.0), ("y", 0.0)]}, {"a": {"x": 1}})

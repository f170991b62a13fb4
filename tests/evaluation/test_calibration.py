"""Calibration: worked examples, slow loops, scikit-learn, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from gr_jax.errors import InputError
from gr_jax.evaluation import calibration, calibration_plots, plots, temperature
from gr_jax.evaluation.calibration import Confidences


def confidences(count: int, seed: int = 0) -> Confidences:
    random = np.random.default_rng(seed)
    said = random.random(count)
    return Confidences(said, random.random(count) < said**2)


def test_a_worked_example():
    run = {"a": [("x", 2.0), ("y", 1.0)], "b": [("y", 0.0), ("x", 0.0), ("z", 0.0)], "c": [], "d": [("z", 5.0)]}
    qrels = {"a": {"x": 1}, "b": {"x": 2, "y": 0}, "c": {"x": 1}, "e": {"x": 1}}
    found = calibration.of_list(run, qrels)  # c and e have no results, d was not judged
    sure = math.e**2 / (math.e**2 + math.e)
    np.testing.assert_allclose(found.probability, [sure, 1 / 3])
    assert found.right.tolist() == [True, False]
    assert calibration.brier(found) == pytest.approx(((1 - sure) ** 2 + (1 / 3) ** 2) / 2)
    both = calibration.reliability(found, bins=1)
    assert both.error == pytest.approx(abs((sure + 1 / 3) / 2 - 1 / 2)) and both.queries.tolist() == [2]
    assert calibration.reliability(found).queries.tolist() == [2]  # too few for more bins
    hot = calibration.of_list(run, qrels, temperature=2.0)
    np.testing.assert_allclose(hot.probability, [math.e / (math.e + math.sqrt(math.e)), 1 / 3])


def test_a_writers_probabilities_are_taken_as_they_are():
    run = {"a": [("x", math.log(0.7)), ("y", math.log(0.2))], "b": [("y", math.log(0.4))]}
    found = calibration.of_log_probabilities(run, {"a": {"x": 1}, "b": {"x": 1}})
    np.testing.assert_allclose(found.probability, [0.7, 0.4])
    assert calibration.brier(found) == pytest.approx((0.3**2 + 0.4**2) / 2)


def test_over_the_corpus_as_over_a_list_of_all():
    random = np.random.default_rng(0)
    scores = random.normal(size=(20, 7))
    relevant = [random.choice(7, 2, replace=False) for _ in range(20)]
    run = {str(q): [(str(d), float(scores[q, d])) for d in np.argsort(-scores[q])] for q in range(20)}
    qrels = {str(q): {str(d): 1 for d in relevant[q]} for q in range(20)}
    expected = calibration.of_list(run, qrels, 0.3)
    found = calibration.of_corpus(scores, relevant, 0.3)
    np.testing.assert_allclose(found.probability, expected.probability)
    assert found.right.tolist() == expected.right.tolist() and found.right.any() and not found.right.all()


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 9), st.integers(1, 20))
def test_against_other_implementations(count, seed, bins):
    made = confidences(count, seed)
    assert calibration.brier(made) == pytest.approx(brier_score_loss(made.right, made.probability, pos_label=True))
    order = sorted(range(count), key=lambda one: made.probability[one])
    number = min(bins, max(1, count // 10))
    sizes = [count // number + (place < count % number) for place in range(number)]
    error, start = 0.0, 0
    for size in sizes:
        part = order[start : start + size]
        start += size
        said, seen = sum(made.probability[one] for one in part), sum(bool(made.right[one]) for one in part)
        error += abs(said - seen) / count
    found = calibration.reliability(made, bins)
    assert found.error == pytest.approx(error) and found.queries.tolist() == sizes


def test_the_order_of_queries_that_are_as_sure_does_not_matter():
    said = np.full(60, 0.5)
    first, turns = np.arange(60) < 30, np.arange(60) % 2 == 0
    errors = [calibration.reliability(Confidences(said, right)).error for right in (first, turns)]
    assert errors == [0.0, 0.0]
    # Twenty-five are surest, more than a bin's twelve: the third bin ends behind all of them.
    said = np.concatenate([np.linspace(0.1, 0.8, 35), np.full(25, 0.9)])
    found = calibration.reliability(Confidences(said, turns), bins=5)
    assert found.queries.tolist() == [12, 12, 36]


def test_few_questions_that_are_calibrated_have_no_error():
    made = Confidences(np.full(10, 0.8), np.arange(10) < 8)
    assert calibration.reliability(made).error == pytest.approx(0)


def test_the_temperature_is_the_likeliest_and_is_found_again():
    """Answers that are right as often as the softmax at a temperature of 0.2 says."""
    random = np.random.default_rng(0)
    run, qrels = {}, {}
    for query in range(4000):
        scores = np.sort(random.normal(size=5))[::-1]
        run[str(query)] = [(str(d), float(score)) for d, score in enumerate(scores)]
        chosen = random.choice(5, p=np.exp(scores / 0.2) / np.exp(scores / 0.2).sum())
        qrels[str(query)] = {str(chosen): 1}
    found = temperature.fit_temperature(run, qrels)
    assert found == pytest.approx(0.2, rel=0.1)

    def cost(at):
        made = calibration.of_list(run, qrels, at)
        return -np.mean(np.log(np.where(made.right, made.probability, 1 - made.probability)))

    assert all(cost(found) <= cost(found * factor) for factor in (0.5, 0.9, 0.97, 1.03, 1.1, 2.0))
    before, after = (calibration.reliability(calibration.of_list(run, qrels, t)).error for t in (1.0, found))
    assert after < 0.02 < 0.1 < before


def test_a_scale_of_scores_is_a_scale_of_the_temperature():
    run = {str(q): [("x", 3.0 + q % 3), ("y", 1.0)] for q in range(9)}
    qrels = {str(q): {"x" if q % 4 else "y": 1} for q in range(9)}
    larger = {one: [(d, 1e4 * score) for d, score in found] for one, found in run.items()}
    one, other = (temperature.fit_temperature(each, qrels) for each in (run, larger))
    assert other == pytest.approx(1e4 * one, rel=1e-3)


def test_a_picture():
    bins = calibration.reliability(confidences(200))
    figure = calibration_plots.reliability_diagram({"DPR": bins}, title="dev")
    assert b"<svg" in plots.to_svg(figure)
    line = figure.axes[0].get_lines()[1]
    np.testing.assert_array_equal(line.get_xydata(), np.stack([bins.said, bins.seen], axis=1))
    assert f"{bins.error:.3f}" in line.get_label()


def test_bad_input():
    run, qrels = {"a": [("x", 1.0), ("y", 0.0)]}, {"a": {"x": 1}}
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="above 0"):
            calibration.of_list(run, qrels, wrong)
    with pytest.raises(InputError, match="sum above 1"):
        calibration.of_log_probabilities(run, qrels)  # e¹ is no probability
    with pytest.raises(InputError, match="sum above 1 .got 2.46.*length penalty"):  # each alone could be one
        calibration.of_log_probabilities({"a": [("x", -0.1), ("y", -0.2), ("z", -0.3)]}, {"a": {"x": 1}})
    for score in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="no probability follows from a score of query 'a'"):
            calibration.of_list({"a": [("x", 1.0), ("y", score)]}, {"a": {"x": 1}})
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="are none"):
            Confidences(np.array([wrong]), np.array([True]))
    with pytest.raises(InputError, match="no judged query"):
        calibration.of_list(run, {"b": {"x": 1}})
    with pytest.raises(InputError, match="one query at least"):
        Confidences(np.zeros(0), np.zeros(0, bool))
    with pytest.raises(InputError, match="differ"):
        temperature.fit_temperature({"a": [("x", 1.0)]}, qrels)
    with pytest.raises(InputError, match="no system"):
        calibration_plots.reliability_diagram({}, title="dev")
    with pytest.raises(InputError, match="1 or more"):
        calibration.reliability(confidences(3), bins=0)

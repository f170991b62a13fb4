"""Tests and intervals against scipy's."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from gr_jax.errors import InputError
from gr_jax.evaluation import Evaluation, bootstrap_interval, compare, evaluate, paired_t_test, randomisation_test

floats = st.floats(-100, 100, allow_nan=False)
pairs = st.lists(st.tuples(floats, floats), min_size=2, max_size=40)


def scipy_permutation(a, b, **settings) -> float:
    found = stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", vectorized=True, **settings
    )
    return float(found.pvalue)


@hypothesis.given(pairs)
def test_t_test_is_scipys(values):
    a, b = np.array(values).T
    hypothesis.assume(np.std(a - b) > 1e-6)
    assert paired_t_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-6, abs=1e-12)


def test_t_test_without_spread():
    assert paired_t_test([1, 2, 3], [1, 2, 3]) == 1.0
    assert paired_t_test([1, 2, 3], [0, 1, 2]) == 0.0


@hypothesis.given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=9))
@hypothesis.settings(max_examples=40)
def test_few_queries_are_tested_exactly_as_scipy_does(values):
    a, b = np.array(values, float).T
    assert randomisation_test(a, b) == pytest.approx(scipy_permutation(a, b, n_resamples=np.inf), abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.12])
def test_many_queries_are_sampled(shift):
    rng = np.random.default_rng(1)
    a = (rng.random(400) < 0.5).astype(float)
    b = np.where(rng.random(400) < 0.8 - shift, a, 1 - a) + shift * (rng.random(400) < 0.5)
    expected = scipy_permutation(a, b, n_resamples=9999, rng=np.random.default_rng(2))
    found = randomisation_test(a, b, samples=9999, seed=3)
    # Both are estimates of one p from 9999 draws: five standard errors of their difference.
    assert abs(found - expected) < 5 * np.sqrt(2 * max(expected, 1e-3) / 9999)
    assert found == randomisation_test(a, b, samples=9999, seed=3)
    assert randomisation_test(b, a, samples=9999, seed=3) == pytest.approx(found, abs=0.02)


def test_p_of_a_sampled_test_is_never_zero():
    assert randomisation_test(np.ones(200), np.zeros(200), samples=999) == 1 / 1000
    assert randomisation_test(np.ones(200), np.ones(200)) == 1.0


def test_bootstrap_interval_is_scipys():
    values = (np.random.default_rng(5).random(500) < 0.3).astype(float)
    low, high = bootstrap_interval(values, seed=1)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(2)).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.006)
    assert low < values.mean() < high
    narrow = bootstrap_interval(values, level=0.5, seed=1)
    assert low < narrow[0] < narrow[1] < high
    assert bootstrap_interval([2.0, 2.0]) == (2.0, 2.0)


def test_bootstrap_interval_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(300):
        low, high = bootstrap_interval(rng.normal(1.0, 1.0, 60), samples=400, seed=trial)
        held += low <= 1.0 <= high
    assert 0.90 <= held / 300 <= 0.985


def test_compare_puts_the_queries_in_one_order():
    qrels = {f"q{i}": {"a": 1} for i in range(30)}
    good = {query: [("a", 1.0)] for query in qrels}
    bad = {query: [("b", 2.0), ("a", 1.0)] for query in list(qrels)[:20]}
    first = evaluate(good, qrels, "RR@10")
    second = evaluate(bad, dict(reversed(list(qrels.items()))), "RR@10")
    found = compare(first, second, "RR@10")
    assert (found.first, found.second) == (1.0, pytest.approx(1 / 3))
    assert found.difference == pytest.approx(2 / 3)
    assert found.interval[0] < 2 / 3 < found.interval[1]
    assert found.p_randomisation < 0.001 and found.p_t < 0.001
    same = compare(first, evaluate(good, qrels, "RR@10"), "RR@10")
    assert (same.difference, same.p_randomisation, same.p_t) == (0.0, 1.0, 1.0)


def test_wrong_input():
    qrels = {"q1": {"a": 1}, "q2": {"a": 1}}
    one = evaluate({"q1": [("a", 1.0)]}, qrels, "RR@10")
    other = evaluate({"q1": [("a", 1.0)]}, {"q1": {"a": 1}}, "RR@10")
    with pytest.raises(InputError, match="different queries"):
        compare(one, other, "RR@10")
    with pytest.raises(InputError, match="Name one of RR@10"):
        compare(one, one, "Success@1")
    with pytest.raises(InputError, match="two values for each query"):
        randomisation_test([1, 2], [1])
    with pytest.raises(InputError, match="two values for each query"):
        paired_t_test([], [])
    with pytest.raises(InputError, match="two queries or more"):
        paired_t_test([1], [2])
    with pytest.raises(InputError, match="one value for each query"):
        bootstrap_interval([])
    with pytest.raises(InputError, match="between 0 and 1"):
        bootstrap_interval([1.0], level=95)
    for test in (randomisation_test, paired_t_test):
        with pytest.raises(InputError, match="no finite number, at place 1"):
            test([0.1, float("nan"), 0.2], [0.0, 0.0, 0.0])
    with pytest.raises(InputError, match="no finite number, at place 0"):
        bootstrap_interval([float("inf"), 1.0])
    for samples in (0, -5):
        with pytest.raises(InputError, match="samples are 1 or more"):
            randomisation_test([1.0, 0.0], [0.0, 0.0], samples=samples)
        with pytest.raises(InputError, match="samples are 1 or more"):
            bootstrap_interval([1.0, 0.0], samples=samples)
    twice = Evaluation({"RR@10": 0.5}, ("q", "q"), {"RR@10": np.array([1.0, 0.0])})
    with pytest.raises(InputError, match="judged twice"):
        compare(twice, twice, "RR@10")

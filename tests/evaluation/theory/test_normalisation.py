"""The corrected bounds hold, by enumeration and by drawing; what is printed fails, each by a worked example."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gr_jax.errors import InputError
from gr_jax.evaluation.theory import LocalNormalisation


def random_query(seed: int, documents: int = 5, negatives: int = 3) -> LocalNormalisation:
    random = np.random.default_rng(seed)
    proposal = None if seed % 2 else random.dirichlet(np.full(documents, 0.5))
    return LocalNormalisation(
        random.normal(size=documents) * random.choice([0.3, 1.0, 3.0]), int(random.integers(documents)), negatives,
        float(random.choice([0.5, 1.0, 2.0])), proposal,
    )  # fmt: skip


def expectation(query: LocalNormalisation) -> float:
    """E[log Z_K − log Z], over all draws."""
    weights = np.exp(query.scores / query.temperature)
    chances = np.full(len(weights), 1 / len(weights)) if query.proposal is None else query.proposal
    total = 0.0
    for drawn in itertools.product(range(len(weights)), repeat=query.negatives):
        chance = math.prod(chances[list(drawn)])
        total += chance * math.log(weights[query.positive] + weights[list(drawn)].sum())
    return total - math.log(weights.sum())


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_the_corrected_bound_holds_over_all_draws(seed):
    query = random_query(seed)
    assert expectation(query) <= query.upper_bound + 1e-12
    assert query.upper_bound > query.without_positive


def test_the_bound_is_reached_where_all_scores_are_equal():
    query = LocalNormalisation(np.zeros(6), 0, 2)
    assert expectation(query) == pytest.approx(math.log(3 / 6)) == pytest.approx(query.upper_bound)


def test_draws_have_the_expectation_of_all_draws():
    for seed in range(4):
        query = random_query(seed)
        drawn = query.differences(40_000)
        error = drawn.std() / math.sqrt(len(drawn))
        assert abs(drawn.mean() - expectation(query)) < 5 * error + 1e-12


def test_as_printed_it_fails_for_different_documents():
    """Four documents, one negative: what is normalised over is a part of all, so that the difference is below 0, and
    Eq. 5 wants at least log 4."""
    scores = np.array([1.0, 0.0, 0.0, 0.0])
    query = LocalNormalisation(scores, 0, 1)
    others = [math.log(math.e + math.exp(scores[other])) - math.log(math.e + 3) for other in (1, 2, 3)]
    assert query.as_printed == pytest.approx(math.log(4)) and max(others) < 0


def test_without_the_positive_it_fails():
    """A positive that outweighs all: nothing is lost by drawing, and appendix E allows at most log(1/1000)."""
    query = LocalNormalisation(np.r_[20.0, np.zeros(999)], 0, 1)
    drawn = query.differences(1000)
    assert drawn.min() > -1e-4 and query.without_positive == pytest.approx(math.log(1 / 1000))
    assert drawn.mean() <= query.upper_bound


def spread_weights(negatives: int) -> LocalNormalisation:
    """Two documents, whose weights are nearly 0 and 2."""
    return LocalNormalisation(np.array([-50.0, math.log(2.0)]), 1, negatives)


def test_the_tail_as_printed_fails_and_as_corrected_holds():
    """The mean of 31 draws is at most e^−.9 where at most 6 of them are 2."""
    query, epsilon = spread_weights(31), 0.9
    most = math.floor(31 * math.exp(-epsilon) / 2)
    exact = stats.binom.cdf(most, 31, 0.5)
    assert exact == pytest.approx(4.4e-4, rel=0.02)
    assert query.tail_as_printed(epsilon) == pytest.approx(6.4e-5, rel=0.02) and query.tail_as_printed(epsilon) < exact
    assert query.tail(epsilon) == pytest.approx(0.0105, rel=0.02) and exact <= query.tail(epsilon)
    seen = query.tail_seen(epsilon, 200_000)
    assert seen == pytest.approx(exact, abs=5 * math.sqrt(exact / 200_000))


@settings(deadline=None)
@given(st.integers(1, 60), st.floats(0.05, 3.0))
def test_the_corrected_tail_holds_for_two_weights(negatives, epsilon):
    query = spread_weights(negatives)
    exact = stats.binom.cdf(math.floor(negatives * math.exp(-epsilon) / 2 + 1e-9), negatives, 0.5)
    assert exact <= query.tail(epsilon) + 1e-12


def test_large_scores_are_no_trouble():
    query = LocalNormalisation(np.array([1e4, 0.0, -1e4]), 0, 2, temperature=0.01)
    assert np.isfinite([query.bias, query.upper_bound, *query.differences(5)]).all()


def test_bad_input():
    scores = np.zeros(3)
    for wrong in (
        {"temperature": 0.0}, {"temperature": float("nan")}, {"negatives": 0}, {"positive": 3}, {"positive": -1},
        {"proposal": np.ones(3)}, {"proposal": np.array([0.5, 0.5])}, {"proposal": np.array([1.5, -0.5, 0.0])},
    ):  # fmt: skip
        with pytest.raises(InputError):
            LocalNormalisation(scores, **{"positive": 0, "negatives": 1, **wrong})
    for wrong in (np.array([0.0, np.nan]), np.array([0.0, -np.inf]), np.zeros((2, 2))):
        with pytest.raises(InputError, match="one finite number for each document"):
            LocalNormalisation(wrong, 0, 1)
    with pytest.raises(InputError, match="above 0"):
        LocalNormalisation(scores, 0, 1).tail(0.0)

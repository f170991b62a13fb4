"""Is a difference between two systems more than the luck of the queries? Tests on pairs of per-query values."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from gr_jax.errors import InputError
from gr_jax.evaluation.metrics import Evaluation

# How many signs are drawn at once: 2^22 booleans are 4 MiB.
_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two systems on the same queries.

    Attributes:
      measure: what was compared.
      first, second: the systems' means.
      difference: first − second.
      interval: where the difference lies, by bootstrap over queries, at `level`.
      level: confidence of `interval`.
      p_randomisation: two-sided p of the paired randomisation test.
      p_t: two-sided p of the paired t-test.
    """

    measure: str
    first: float
    second: float
    difference: float
    interval: tuple[float, float]
    level: float
    p_randomisation: float
    p_t: float


def compare(
    first: Evaluation,
    second: Evaluation,
    measure: str,
    *,
    samples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compares two evaluations over the same qrels on one measure.

    Args:
      first, second: results of `evaluate`.
      measure: one that both hold, as ir_measures spells it.
      samples: how many randomisations and bootstrap samples are drawn.
      level: confidence of the interval.
      seed: of both.

    Raises:
      InputError: they were not evaluated on the same queries, each once, or do not hold the measure.
    """
    for evaluation in (first, second):
        if measure not in evaluation.per_query:
            raise InputError(
                "this measure was not computed", f"Name one of {', '.join(evaluation.per_query)}.", value=measure
            )
    for evaluation in (first, second):
        if len(set(evaluation.query_ids)) != len(evaluation.query_ids):
            raise InputError("a query was judged twice", "Evaluate each query once.", value=len(evaluation.query_ids))
    if set(first.query_ids) != set(second.query_ids):
        raise InputError(
            f"the systems were judged on different queries ({len(first.query_ids)} and {len(second.query_ids)})",
            "Evaluate both with the same qrels.",
        )
    row = {query_id: place for place, query_id in enumerate(second.query_ids)}
    a = first.per_query[measure]
    b = second.per_query[measure][[row[query_id] for query_id in first.query_ids]]
    return Comparison(
        measure,
        float(a.mean()),
        float(b.mean()),
        float((a - b).mean()),
        bootstrap_interval(a - b, level=level, samples=samples, seed=seed),
        level,
        randomisation_test(a, b, samples=samples, seed=seed),
        paired_t_test(a, b),
    )


def randomisation_test(
    first: Float[np.ndarray, " queries"] | Sequence[float],
    second: Float[np.ndarray, " queries"] | Sequence[float],
    *,
    samples: int = 10_000,
    seed: int = 0,
) -> float:
    """Two-sided paired randomisation (Fisher–Pitman) test of equal means.

    Were the systems the same, each query's two values could as well be swapped. p is the share of swaps whose
    difference is at least as large as the one seen: of all 2^n of them where those are no more than `samples`, else of
    `samples` random ones and the one seen, so that p is never 0.

    Raises:
      InputError: the values are not pairs of numbers, or there are no samples.
    """
    _check_samples(samples)
    differences = _paired_differences(first, second)
    differences = differences[differences != 0]  # a swap of equals changes nothing
    n = len(differences)
    # Sums in another order differ by rounding; those are ties.
    seen = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    if n <= 62 and 2**n <= samples:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n))).reshape(2**n, n)
        return float((np.abs(signs @ differences) >= seen).mean())
    extreme = sum(
        int((np.abs(signs @ differences) >= seen).sum())
        for signs in _random_signs(np.random.default_rng(seed), samples, n)
    )
    return (1 + extreme) / (1 + samples)


def paired_t_test(
    first: Float[np.ndarray, " queries"] | Sequence[float], second: Float[np.ndarray, " queries"] | Sequence[float]
) -> float:
    """Two-sided p of the paired t-test; 1 where the systems never differ.

    Raises:
      InputError: the values are not pairs of numbers, or fewer than two.
    """
    from scipy import special

    differences = _paired_differences(first, second)
    n = len(differences)
    if n < 2:
        raise InputError("a t-test needs two queries or more", "Evaluate on more queries.", value=n)
    mean, spread = differences.mean(), differences.std(ddof=1)
    if spread == 0:
        return 1.0 if mean == 0 else 0.0
    t = mean / (spread / math.sqrt(n))
    return float(2 * special.stdtr(n - 1, -abs(t)))


def bootstrap_interval(
    values: Float[np.ndarray, " queries"] | Sequence[float],
    *,
    level: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean: queries are drawn with replacement.

    Args:
      values: one for each query; differences of two systems give the interval of their difference.
      level: how often the interval holds the mean over all such queries, 0 to 1.
      samples: how often the queries are drawn.
      seed: of the draws.

    Raises:
      InputError: there are no values, one is no finite number, `level` is not between 0 and 1, or there are no samples.
    """
    _check_samples(samples)
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size:
        raise InputError("an interval needs one value for each query", "Give a list of numbers.", value=array.shape)
    _check_finite(array)
    if not 0 < level < 1:
        raise InputError("a confidence level lies between 0 and 1", "Use level=0.95.", value=level)
    # Values repeat (0 and 1, mostly): how often each is drawn is all that matters, so draw the counts.
    distinct, counts = np.unique(array, return_counts=True)
    rng = np.random.default_rng(seed)
    means = np.concatenate(
        [
            rng.multinomial(len(array), counts / len(array), size=size) @ distinct / len(array)
            for size in _chunk_sizes(samples, len(distinct))
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _paired_differences(first: object, second: object) -> np.ndarray:
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.ndim != 1 or a.shape != b.shape or not a.size:
        raise InputError(
            "a paired test needs two values for each query",
            "Give both systems' values in the same order of queries.",
            value=(a.shape, b.shape),
        )
    _check_finite(a)
    _check_finite(b)
    return a - b


def _check_finite(values: np.ndarray) -> None:
    wrong = ~np.isfinite(values)
    if wrong.any():
        raise InputError(
            f"a query's value is no finite number, at place {int(np.argmax(wrong))}",
            "Leave out what was not measured, of both systems.",
            value=float(values[wrong][0]),
        )


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise InputError("samples are 1 or more", "Use samples=10_000.", value=samples)


def _random_signs(rng: np.random.Generator, samples: int, n: int) -> Iterator[np.ndarray]:
    for size in _chunk_sizes(samples, n):
        yield rng.integers(0, 2, (size, n), np.int8) * np.float64(2) - 1


def _chunk_sizes(samples: int, width: int) -> Iterator[int]:
    step = max(1, _CHUNK // max(width, 1))
    for start in range(0, samples, step):
        yield min(step, samples - start)

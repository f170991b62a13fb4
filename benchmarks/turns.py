"""Two sides that take turns on one machine: what disturbs it disturbs both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any


def median_seconds(function: Callable[..., Any], parts: Sequence[Any]) -> float:
    """Of one call for each part; the first part is done once before, so that all is compiled and caches are warm."""
    taken = []
    for part in [*parts[:1], *parts]:
        started = time.perf_counter()
        function(part)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def speeds(turns: Sequence[tuple[float, float]], count: int) -> dict[str, float]:
    """Medians over turns of (seconds of ours, of the peer), each for `count` things."""
    return {
        "times faster": statistics.median(theirs / ours for ours, theirs in turns),
        "a second": count / statistics.median(ours for ours, _ in turns),
        "peer's a second": count / statistics.median(theirs for _, theirs in turns),
    }

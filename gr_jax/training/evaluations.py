"""The evaluations of one training: which parameters are best, and whether to stop."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gr_jax.errors import InputError
from gr_jax.training.hooks import Arrays
from gr_jax.training.train_state import Flat


@dataclasses.dataclass(frozen=True)
class Choice:
    """By which metric parameters are chosen.

    Attributes:
      metric: the name, among what `evaluate` returns, that decides; the parameters with its best value are kept.
      patience: evaluations in a row without a better value after which training stops; 0 never stops.
      mode: "max" or "min": what is better.
    """

    metric: str
    patience: int = 0
    mode: str = "max"


class Evaluations:
    """All evaluations so far.

    Args:
      choice: how the best is found; None keeps the last.

    Attributes:
      records: all of them, in order.
      best_step: the step with the best value, None without a choice or before the first.
      best_params: all its parameters, where there is no checkpoint to keep them.
      best_tables: of hooks, likewise.
      stopped: no better value for too long.
    """

    def __init__(self, choice: Choice | None):
        self._choice = choice
        self.records: list[dict[str, float]] = []
        self.best_step: int | None = None
        self.best_params: Flat = {}
        self.best_tables: dict[str, Arrays] = {}
        self.stopped = False

    def add(self, step: int, scores: dict[str, float]) -> bool:
        """Records one evaluation; whether it is the best so far."""
        choice = self._choice
        if choice is not None and choice.metric not in scores:
            raise InputError(
                "the best parameters are chosen by a metric that evaluation does not return",
                f"Use one of {', '.join(sorted(scores)) or '(it returns none)'}.",
                value=choice.metric,
            )
        self.records.append({"step": step, **scores})
        if choice is None:
            return False
        values = [record[choice.metric] for record in self.records]
        sign = 1 if choice.mode == "max" else -1
        ranked = [-math.inf if math.isnan(value) else sign * value for value in values]
        best = max(range(len(ranked)), key=lambda n: (ranked[n], -n))  # of equal ones the first
        self.best_step = int(self.records[best]["step"])
        self.stopped = bool(choice.patience) and len(ranked) - 1 - best >= choice.patience
        return self.best_step == step

    def last(self) -> int | None:
        """Step of the latest."""
        return int(self.records[-1]["step"]) if self.records else None

    def progress(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"evaluations": [dict(r) for r in self.records], "best_step": self.best_step, "stopped": self.stopped}

    def restore(self, progress: Mapping[str, Any]) -> None:
        """Goes on from what `progress` gave."""
        self.records = [dict(record) for record in progress["evaluations"]]
        self.best_step, self.stopped = progress["best_step"], progress["stopped"]

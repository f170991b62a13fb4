"""Negatives that are mined again during training, by the model that is being trained (ANCE, Xiong et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gr_jax.training.hooks import Hook
from gr_jax.training.negatives import Negatives


class RefreshedNegatives:
    """A table that a hook makes again every so many steps: batches draw from this, and `train` is given its `hook`.

    What is mined with the parameters of step s is used from step s + `lag` on. A teacher's scores are of the first
    table alone: a teacher has seen no others.

    Args:
      first: the table until the first refresh.
      mine: parameters, and the step from which the table is used → table, of the shape of `first`.
      every: steps between refreshes.
      lag: steps from the parameters to the use of the table; None takes `every`, so that it is mined while training
        goes on until the next refresh.
      settings: what decides `mine` besides, JSON.

    Raises:
      InputError: `every` or `lag` makes no sense.
    """

    def __init__(
        self,
        first: Negatives,
        mine: Callable[[Any, int], Negatives],
        *,
        every: int,
        lag: int | None = None,
        settings: Any = None,
    ):
        self.first, self._mine = first, mine
        tables = {"documents": first.documents}
        self.hook = Hook("negatives", self._run, every, every if lag is None else lag, tables, settings=settings)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def width(self) -> int:
        """Most negatives of a query."""
        return self.first.width

    @property
    def settings(self) -> Any:
        """What decides all tables besides the hook, JSON."""
        return {"first": self.first.fingerprint, "hook": self.hook.name}

    def at(self, step: int) -> Negatives:
        """The table that the batch of this step draws from; waits until it is mined."""
        tables = self.hook.at(step)
        return Negatives(tables["documents"]) if self.hook.source(step) else self.first

    def _run(self, params: Any, step: int) -> dict[str, np.ndarray]:
        return {"documents": self._mine(jax.device_put(params), step + self.hook.lag).documents}

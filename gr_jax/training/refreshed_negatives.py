"""Negatives that are mined again during training, by the model that is being trained (ANCE, Xiong et al. 2021).

Who mines a table writes it to `path(step)`, and batches draw from it from that step on. Since every table is a file of
its own, a run that was killed goes on with the tables that it had.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

from gr_jax.errors import InputError
from gr_jax.training.negatives import Negatives


class RefreshedNegatives:
    """Tables by step, from files.

    Args:
      first: the table until the first refresh.
      folder: where the others are found.
      every: steps between refreshes.
      start: step of the first refresh, a multiple of `every`; None takes `every`. 2 · `every` lets training go on
        while a table is mined: what is mined with the parameters of step s is used from s + `every` on.
      ready: told the step of a table before it is read for the first time; may wait until it is there, but must not
        wait for training to go on: batches are made ahead of it, by a thread that its end waits for. A batch whose
        table is not there is tried again when training has come to it.

    Raises:
      InputError: `every` or `start` makes no sense.
    """

    def __init__(
        self,
        first: Negatives,
        folder: str | os.PathLike,
        *,
        every: int,
        start: int | None = None,
        ready: Callable[[int], None] | None = None,
    ):
        start = every if start is None else start
        if every < 1 or start < 1 or start % every:
            raise InputError(
                "negatives are refreshed every so many steps, first at a multiple of that",
                "Give every ≥ 1, and start = every or 2 · every.",
                value=(every, start),
            )
        self.first, self.folder, self.every, self.start = first, pathlib.Path(folder), every, start
        self._ready = ready
        self._loaded: dict[int, Negatives] = {}

    def __len__(self) -> int:
        return len(self.first)

    @property
    def width(self) -> int:
        """Most negatives of a query."""
        return self.first.width

    @property
    def settings(self) -> Any:
        """What decides all tables, given the training run that mines them; JSON."""
        return {"first": self.first.fingerprint, "every": self.every, "start": self.start}

    def path(self, step: int) -> pathlib.Path:
        """Where the table lies that is used from this step on, a multiple of `every`."""
        return self.folder / f"step_{step:08d}"

    def at(self, step: int) -> Negatives:
        """The table that the batch of this step draws from.

        Raises:
          InputError: it is not there, is damaged, or has another shape than the first one.
        """
        if step < self.start:
            return self.first
        due = step - step % self.every
        if due not in self._loaded:
            if self._ready is not None:
                self._ready(due)
            table = Negatives.load(self.path(due))
            if table.documents.shape != self.first.documents.shape:
                raise InputError(
                    "refreshed negatives must have as many queries and columns as the first ones",
                    f"Mine a table of the shape {self.first.documents.shape}.",
                    file=self.path(due),
                    value=table.documents.shape,
                )
            self._loaded = {due: table}  # batches are made in order, so that one table at a time is enough
        return self._loaded[due]

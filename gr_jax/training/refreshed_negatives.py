"""Negatives that are mined again during training, by the model that is being trained (ANCE, Xiong et al. 2021).

The table of refresh r is used from step r · every on. Who mines it writes it to `path(step)`; training may go on
meanwhile, and waits only where the table is not there yet when its first batch is due. Since every table is a file of
its own, a run that was killed goes on with the tables that it had.
"""

from __future__ import annotations

import os
import pathlib
import time
from typing import Any

from gr_jax.errors import InputError
from gr_jax.training.negatives import Negatives

_LOOK_AGAIN = 0.2  # seconds


class RefreshedNegatives:
    """Tables by step, from files.

    Args:
      first: the table until the first refresh.
      folder: where the others are found.
      every: steps between refreshes.
      wait: seconds that a batch waits for its table; 0 does not wait.

    Raises:
      InputError: `every` is not positive.
    """

    def __init__(self, first: Negatives, folder: str | os.PathLike, *, every: int, wait: float = 0.0):
        if every < 1:
            raise InputError("negatives are refreshed every so many steps", "Give a number above 0.", value=every)
        self.first, self.folder, self.every, self._wait = first, pathlib.Path(folder), every, wait
        self._loaded: dict[int, Negatives] = {0: first}

    def __len__(self) -> int:
        return len(self.first)

    @property
    def width(self) -> int:
        """Most negatives of a query."""
        return self.first.width

    @property
    def settings(self) -> Any:
        """What decides all tables, given the training run that mines them; JSON."""
        return {"first": self.first.fingerprint, "every": self.every}

    def path(self, step: int) -> pathlib.Path:
        """Where the table lies that is used from this step on, a multiple of `every`."""
        return self.folder / f"step_{step:08d}"

    def at(self, step: int) -> Negatives:
        """The table that the batch of this step draws from.

        Raises:
          InputError: it is not there (any more, or after waiting), is damaged, or belongs to other queries.
        """
        due = step - step % self.every
        if due not in self._loaded:
            table = self._load(self.path(due))
            if table.documents.shape != self.first.documents.shape:
                raise InputError(
                    "refreshed negatives must have as many queries and columns as the first ones",
                    f"Mine a table of the shape {self.first.documents.shape}.",
                    file=self.path(due),
                    value=table.documents.shape,
                )
            self._loaded = {0: self.first, due: table}  # reading ahead goes forwards, over one refresh at a time
        return self._loaded[due]

    def _load(self, path: pathlib.Path) -> Negatives:
        end = time.monotonic() + self._wait
        while not (path / "manifest.json").exists() and time.monotonic() < end:
            time.sleep(_LOOK_AGAIN)
        return Negatives.load(path)

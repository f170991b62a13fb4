"""ANCE (Xiong et al. 2021): negatives mined by the model that is being trained, while training goes on."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.training.loop import Evaluate
from gr_jax.training.negatives import KIND, Negatives
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.train_state import flatten, unflatten

SNAPSHOT = "snapshot"
_FILE = "parameters.safetensors"


class Refresher:
    """Mines with the parameters of every `every`-th step, in a thread of its own.

    What is mined with the parameters of step s is used from step s + `every` on; batches wait for it if they must. So
    what is trained on depends on steps alone, not on how long mining takes. Parameters are put on disk before training
    goes on: a run that is killed mines again what was not finished.

    Args:
      folder: of snapshots and tables; it survives interruptions.
      first: the table until the first refresh.
      every: steps between refreshes.
      steps: of the training; what would be used after them is not mined.
      mine: parameters, and the step from which the table is used → table, of the shape of `first`.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        first: Negatives,
        every: int,
        steps: int,
        mine: Callable[[Mapping[str, Any], int], Negatives],
    ):
        # One step of mining lies between the parameters and the use of what they found.
        self.negatives = RefreshedNegatives(first, folder, every=every, start=2 * every, ready=self.wait)
        self._folder, self.every, self._steps, self._mine = folder, every, steps, mine
        self._threads: dict[int, threading.Thread] = {}
        self._failures: dict[int, BaseException] = {}
        for snapshot in sorted(folder.glob(f"{SNAPSHOT}_*")):
            self._start(int(snapshot.name.rpartition("_")[2]))

    def before(self, evaluate: Evaluate | None) -> Evaluate:
        """`evaluate`, after the parameters were looked at; called at least at every `every`-th step."""

        def look(params: Any, step: int) -> Mapping[str, float]:
            self.note(params, step)
            return {} if evaluate is None else evaluate(params, step)

        return look

    def note(self, params: Mapping[str, Any], step: int) -> None:
        """Begins to mine, where it is time to."""
        due = step + self.every
        if not step or step % self.every or due >= self._steps or step in self._threads or self._mined(due):
            return
        arrays = {path: np.asarray(value, order="C") for path, value in flatten(params).items()}
        with storage.write_folder(self._snapshot(step), SNAPSHOT) as folder:
            safetensors.numpy.save_file(arrays, folder / _FILE)
        self._start(step)

    def wait(self, due: int) -> None:
        """Returns when the table of this step was written; raises what mining it raised. Where training has not come
        to the parameters that it is mined with, which few steps between refreshes allow, it returns at once: see
        `RefreshedNegatives`."""
        thread = self._threads.get(due - self.every)
        if thread is not None:
            thread.join()
        if due - self.every in self._failures:
            raise self._failures[due - self.every]

    def used(self, steps: int) -> int:
        """How many refreshed tables the first `steps` steps drew from; waits for what is being mined."""
        for thread in self._threads.values():
            thread.join()
        return sum(self._mined(due) for due in range(self.negatives.start, steps, self.every))

    def _start(self, step: int) -> None:
        self._threads[step] = threading.Thread(target=self._run, args=(step,), daemon=True, name=f"refresh {step}")
        self._threads[step].start()

    def _run(self, step: int) -> None:
        try:
            storage.read_folder(self._snapshot(step), SNAPSHOT)
            params = unflatten(safetensors.numpy.load_file(self._snapshot(step) / _FILE))
            due = step + self.every
            self._mine(jax.device_put(params), due).save(self.negatives.path(due))
            shutil.rmtree(self._snapshot(step))
        except BaseException as error:  # raised where the table is waited for
            if not self._mined(step + self.every):  # by a thread of an earlier start, which takes the snapshot away
                self._failures[step] = error

    def _mined(self, due: int) -> bool:
        with contextlib.suppress(InputError):
            storage.read_folder(self.negatives.path(due), KIND, verify=False)
            return True
        return False

    def _snapshot(self, step: int) -> pathlib.Path:
        return self._folder / f"{SNAPSHOT}_{step:08d}"

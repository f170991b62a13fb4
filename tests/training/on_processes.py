"""A small training of one or several processes that can be stopped, killed and started again.

Each prints the number of every step, so that whoever disturbs it knows where it is, and writes what it ends with into
`result_0.npz`.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from gr_jax import processes
from gr_jax.training import loop
from gr_jax.training.batches import make_batches
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import flatten
from launch import hosts, program
from tests import forking
from tests.training import hooked
from tests.training.toy import ToyModel, learn, toy_store

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Run:
    """What the processes are told.

    Attributes:
      folder: of checkpoints and result.
      processes: how many.
      devices: of each.
      steps, every: updates, and updates between checkpoints.
      slow: seconds that a step takes longer.
      look: whether there is an evaluation that chooses the best parameters.
      model: devices along the model axis.
      hooks: whether two hooks run: one relabels targets while training goes on, both swap parameters.
    """

    folder: pathlib.Path
    processes: int = 2
    devices: int = 1
    steps: int = 20
    every: int = 5
    slow: float = 0.0
    look: bool = False
    model: int = 1
    hooks: bool = False

    def start(self) -> list[BaseProcess]:
        devices = "--xla_force_host_platform_device_count="
        # Otherwise as here, so that the programs, and so the bits, are the same.
        port, flags = free_port(), re.sub(rf"{devices}\d+", f"{devices}{self.devices}", os.environ["XLA_FLAGS"])
        for index in range(self.processes):
            self._output(index).unlink(missing_ok=True)
        return [
            forking.start(_process, self, index, port, output=self._output(index), XLA_FLAGS=flags)
            for index in range(self.processes)
        ]

    def finish(self) -> dict[str, np.ndarray]:
        """Runs it to its end; what it ends with."""
        started = self.start()
        for one in started:
            one.join(300)
        assert all(one.exitcode == 0 for one in started), self.said()
        return dict(np.load(self.folder / "result_0.npz"))

    def said(self) -> list[str]:
        """What each process has printed."""
        return [self._output(index).read_text() for index in range(self.processes)]

    def _output(self, index: int) -> pathlib.Path:
        return self.folder / f"output_{index}"

    def steps_of(self, process: BaseProcess, index: int) -> Iterator[int]:
        """The steps that a process says it has made, as long as it runs."""
        seen = 0
        while process.is_alive():
            lines = self._output(index).read_text().splitlines() if self._output(index).exists() else []
            steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
            yield from steps[seen:]
            seen = len(steps)
            time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def kill(started: Sequence[BaseProcess]) -> None:
    for one in started:
        one.kill()
    for one in started:
        one.join()


def train(run: Run) -> dict[str, np.ndarray]:
    """Trains, as one process of the run or alone; what it ends with."""
    batches, looks = make_batches(toy_store(), batch_size=8, lengths={"inputs": 32, "targets": 8}), {}
    if run.look:
        looks = {"evaluate": _look, "eval_every": 4, "keep_best": "dev/norm"}
    if run.hooks:
        looks["hooks"] = hooked.hooks_of()
        looks["multipliers"] = hooked.FROZEN
        batches = hooked.batches_of(looks["hooks"][0], batch_size=8)
    result = learn(
        ToyModel(),
        batches,
        model_dir=run.folder,
        steps=run.steps,
        checkpoint_every=run.every,
        optimizer=adamw(Schedule(1e-2, warmup_steps=4)),
        mesh=make_mesh(run.processes * run.devices // run.model, run.model),
        log_every=1,
        **looks,
    )
    return {"step": result.step, "last_step": result.last_step, **flatten(result.params)}


def _look(params, step):
    """Of the parameters, so that an evaluation of others would choose others."""
    total = sum(float(np.abs(np.asarray(value)).sum()) for value in flatten(params).values())
    return {"dev/norm": -abs(total % 7 - 3)}


def _process(run: Run, index: int, port: int) -> None:
    class Log(loop.StepLog):
        def add(self, step: int, metrics: Any, examples: int) -> None:
            super().add(step, metrics, examples)
            print("step", step, flush=True)
            time.sleep(run.slow)

    loop.StepLog = Log  # type: ignore[misc]
    warnings.showwarning = lambda message, *_: print("note:", message, file=sys.stderr)  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if run.processes > 1:
        hosts.start(hosts.Cluster(f"127.0.0.1:{port}", run.processes, index))
    else:
        program.stop_on_sigterm()
    np.savez(run.folder / f"result_{processes.index()}.npz", **train(run))

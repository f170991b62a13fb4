"""A small training of one or several processes, as a process that can be stopped, killed and started again.

`python -m tests.training.on_processes '{"folder": …, "port": …, "processes": 2, "process": 0, …}'`

Prints the number of every step, so that whoever disturbs it knows where it is, and writes what it ends with into
`result_0.npz`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

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

    def start(self, *, supervisor: Sequence[str] = ()) -> list[subprocess.Popen]:
        port = free_port()
        started = []
        for process in range(self.processes):
            told = {**dataclasses.asdict(self), "folder": str(self.folder), "port": port, "process": process}
            environment = {
                **os.environ, "PYTHONPATH": str(CHECKOUT), "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={self.devices}",
            }  # fmt: skip
            started.append(
                subprocess.Popen(
                    [*supervisor, sys.executable, "-m", "tests.training.on_processes", json.dumps(told)],
                    cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        return started

    def finish(self) -> Any:
        """Runs it to its end; what it ends with."""
        import numpy as np

        said = [one.communicate(timeout=300) + (one.returncode,) for one in self.start()]
        assert all(code == 0 for _, _, code in said), said
        self.said = [errors for _, errors, _ in said]
        return dict(np.load(self.folder / "result_0.npz"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def steps_of(process: subprocess.Popen) -> Iterator[int]:
    """The steps that it says it has made."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step "):
            yield int(line.split()[1])


def kill(started: Sequence[subprocess.Popen]) -> None:
    for one in started:
        one.send_signal(signal.SIGKILL)
    for one in started:
        one.communicate()


def _main(told: dict[str, Any]) -> None:
    import time

    import numpy as np

    from gr_jax import processes
    from gr_jax.training import loop
    from gr_jax.training.batches import make_batches
    from gr_jax.training.optimizers import Schedule, adamw
    from gr_jax.training.partitioning import make_mesh
    from gr_jax.training.train_state import flatten
    from launch import hosts, program
    from tests.training import hooked
    from tests.training.toy import ToyModel, learn, toy_store

    warnings.showwarning = lambda message, *_: print("note:", message, file=sys.stderr)  # type: ignore[assignment]
    if told["processes"] > 1:
        hosts.start(hosts.Cluster(f"127.0.0.1:{told['port']}", told["processes"], told["process"]))
    else:
        program.stop_on_sigterm()
    batches = make_batches(toy_store(), batch_size=8, lengths={"inputs": 32, "targets": 8})
    folder = pathlib.Path(told["folder"])

    class Log(loop.StepLog):
        def add(self, step, metrics, examples):
            super().add(step, metrics, examples)
            print("step", step, flush=True)
            time.sleep(told["slow"])

    loop.StepLog = Log  # type: ignore[misc]
    looks: dict[str, Any] = {}
    if told["look"]:
        looks = {"evaluate": _look, "eval_every": 4, "keep_best": "dev/norm"}
    if told["hooks"]:
        looks["hooks"] = hooked.hooks_of()
        looks["multipliers"] = hooked.FROZEN
        batches = hooked.batches_of(looks["hooks"][0], batch_size=8)
    result = learn(
        ToyModel(),
        batches,
        model_dir=folder,
        steps=told["steps"],
        checkpoint_every=told["every"],
        optimizer=adamw(Schedule(1e-2, warmup_steps=4)),
        mesh=make_mesh(told["processes"] * told["devices"] // told["model"], told["model"]),
        log_every=1,
        **looks,
    )
    name = folder / f"result_{processes.index()}.npz"
    np.savez(name, step=result.step, last_step=result.last_step, **flatten(result.params))


def _look(params, step):
    """Of the parameters, so that an evaluation of others would choose others."""
    import numpy as np

    from gr_jax.training.train_state import flatten

    total = sum(float(np.abs(np.asarray(value)).sum()) for value in flatten(params).values())
    return {"dev/norm": -abs(total % 7 - 3)}


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

"""One training run with hooks, as a process that can be killed."""

import time
from typing import Any

import numpy as np

from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.train_state import flatten
from tests.training import hooked

STEPS = 40


class Slow:
    """Batches that take a while and say so."""

    def __init__(self, batches, seconds):
        self.settings, self.input_shapes = batches.settings, batches.input_shapes
        self._batches, self._seconds = batches, seconds

    def __iter__(self):
        iterator, seconds = iter(self._batches), self._seconds

        class Iterator:
            def __next__(self):
                time.sleep(seconds)
                batch = next(iterator)
                if seconds:
                    print("batch", iterator.get_state()["position"], flush=True)
                return batch

            get_state, set_state = iterator.get_state, iterator.set_state

        return Iterator()


def evaluate(params, step):
    """Of the parameters, so that an evaluation of others would choose others."""
    return {"dev/norm": -float(sum(np.square(value).sum() for value in flatten(params).values()))}


def run(model_dir, seconds: float = 0.0) -> dict[str, Any]:
    """Trains, where each batch takes so many seconds longer; what it ends with."""

    def slow(params, step):
        time.sleep(5 * seconds)  # so that it is killed while it runs, too
        return hooked.relabel(params, step)

    hooks = hooked.hooks_of(every=6, lag=4, other=(7, 2), run=slow)
    rates = {"query": 1, "document": 1, "pseudo": 3}
    batches = hooked.batches_of(hooks[0], batch_size=8, lengths={"inputs": 32, "targets": 8}, rates=rates)
    result = hooked.train_with(
        hooks,
        model_dir,
        Slow(batches, seconds),
        steps=STEPS,
        optimizer=adamw(Schedule(1e-2, warmup_steps=5, decay="linear", total_steps=STEPS)),
        multipliers=hooked.FROZEN,
        microbatches=2,
        evaluate=evaluate,
        eval_every=8,
        keep_best="dev/norm",
        checkpoint_every=5,
    )
    tables = {f"tables/{name}": array for name, array in result.tables["relabel"].items()}
    return dict(step=result.step, last_step=result.last_step, **flatten(result.params), **tables)

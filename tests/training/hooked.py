"""A training with two hooks: one relabels targets and swaps a table of a network, the other does not overlap with it.

What the hooks make follows from the parameters of the step and from the step alone, so that a mistake in either shows.
"""

import numpy as np

from gr_jax.training.batches import make_batches
from gr_jax.training.hooks import Hook
from gr_jax.training.optimizers import adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.relabelling import Relabelled
from gr_jax.training.train_state import flatten
from tests.training.toy import ToyModel, learn, toy_store

EXAMPLES, STEPS = 40, 20
FROZEN = {"input_embedding": 0.0, "target_embedding": 0.0}
FIRST = {"targets": np.stack([np.arange(EXAMPLES) % 30 + 2, np.full(EXAMPLES, -1)], axis=1).astype(np.int32)}


def number(params, step):
    """A number that other parameters or another step would not give."""
    return round(1e4 * float(sum(np.abs(value).sum() for value in flatten(params).values()))) + step


def relabel(params, step):
    """New targets, of one or two tokens, and another embedding of inputs."""
    chosen = np.random.default_rng(number(params, step))
    targets = chosen.integers(2, 32, (EXAMPLES, 2)).astype(np.int32)
    targets[chosen.random(EXAMPLES) < 0.5, 1] = -1
    return {"targets": targets, "input_embedding": chosen.normal(size=(64, 16)).astype(np.float32)}


def mix(params, step):
    """Another embedding of targets."""
    return {"target_embedding": np.random.default_rng(number(params, step)).normal(size=(32, 16)).astype(np.float32)}


def hooks_of(*, every=4, lag=2, other=(3, 0), run=relabel):
    return [
        Hook("relabel", run, every, lag, tables=FIRST, parameters=["input_embedding"]),
        Hook("mix", mix, *other, parameters=["target_embedding"]),
    ]


def batches_of(hook, **changes):
    labels = np.where(np.arange(EXAMPLES) % 5, np.arange(EXAMPLES), -1)  # every fifth example keeps its own targets
    store = Relabelled(toy_store(EXAMPLES), labels, hook)
    return make_batches(store, **{"batch_size": 4, "lengths": {"inputs": 24, "targets": 6}, "seed": 3, **changes})


def train_with(hooks, folder=None, batches=None, **changes):
    arguments = {
        "steps": STEPS,
        "optimizer": adamw(1e-2),
        "multipliers": FROZEN,
        "mesh": make_mesh(1, 1),
        "seed": 4,
        "log_every": 1,
        **changes,
    }
    batches = batches_of(hooks[0]) if batches is None else batches
    return learn(ToyModel(dropout=0.3), batches, hooks=hooks, model_dir=folder, **arguments)

"""What gin binds of functions and classes that stages call without saying all of their arguments.

A run's own settings are dataclasses, and stand in the keys of its stages. Gin can bind more: `adamw.b2 = 0.98`,
`kmeans.max_points = 100000`. A stage whose result that changes has it in its key, too; where nothing is bound, keys are
what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin

from gr_jax import models
from gr_jax.training import batches, contrastive_batches, gdr_batches, loop, optimizers, vector_batches

# Optimisers, batches, the loop, and what every network is made of.
_TRAINED_WITH = (
    optimizers.Schedule,
    optimizers.adamw,
    optimizers.adafactor,
    batches.make_batches,
    contrastive_batches.ContrastiveBatches,
    gdr_batches.GDRBatches,
    vector_batches.VectorBatches,
    loop.train,
    loop.EarlyStopping,
    models.T5Config,
    models.BertConfig,
)
# Arguments of the loop that change what is seen of it, and not its result.
_SEEN = ("log_every", "tensorboard", "progress", "keep_checkpoints")


def of(*configurables: Callable[..., Any]) -> dict[str, Any]:
    """What gin binds of their arguments: "module.name.argument" → value."""
    return {
        f"{one.__module__}.{one.__name__}.{argument}": value
        for one in configurables
        for argument, value in gin.get_bindings(one).items()
    }


def of_training(*networks: Callable[..., Any]) -> dict[str, Any]:
    """What gin binds of what trains a network.

    Args:
      networks: its own classes: configuration, loss.
    """
    bound = of(*_TRAINED_WITH, *networks)
    return {name: value for name, value in bound.items() if name.rpartition(".")[2] not in _SEEN}

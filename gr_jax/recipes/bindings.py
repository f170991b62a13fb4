"""What gin binds of functions and classes that stages call without saying all of their arguments.

A run's own settings are dataclasses, and stand in the keys of its stages. Gin can bind more: `adamw.b2 = 0.98`,
`kmeans.max_points = 100000`. What is bound so belongs to the keys, too; where nothing is, they are what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin

from gr_jax import models, training

# Networks, losses and optimisers.
_TRAINED_WITH = (
    training.Schedule,
    training.adamw,
    training.adafactor,
    models.T5Config,
    models.BertConfig,
    models.BiEncoderConfig,
    models.BiEncoderModel,
    models.CrossEncoderConfig,
    models.CrossEncoderModel,
    models.LateInteractionConfig,
    models.LateInteractionModel,
    models.EncoderDecoderModel,
    models.GDRModel,
)


def of(*configurables: Callable[..., Any]) -> dict[str, Any]:
    """ "module.name.argument" → what gin binds to it."""
    return {
        f"{one.__module__}.{one.__name__}.{argument}": value
        for one in configurables
        for argument, value in gin.get_bindings(one).items()
    }


def of_training() -> dict[str, Any]:
    """What gin binds of what trains a network."""
    return of(*_TRAINED_WITH)

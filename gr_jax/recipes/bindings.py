"""What gin binds of functions and classes that stages call without saying all of their arguments.

A run's own settings are dataclasses, and stand in the keys of its stages. Gin can bind more:
`kmeans.max_points = 100000`. A stage whose result that changes has it in its key, too; where nothing is bound, keys are
what they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin


def of(*configurables: Callable[..., Any]) -> dict[str, Any]:
    """What gin binds of their arguments: "module.name.argument" → value."""
    return {
        f"{one.__module__}.{one.__name__}.{argument}": value
        for one in configurables
        for argument, value in gin.get_bindings(one).items()
    }


def of_training(*networks: Callable[..., Any]) -> dict[str, Any]:
    """Nothing: gin binds no part of what trains a network."""
    del networks
    return {}

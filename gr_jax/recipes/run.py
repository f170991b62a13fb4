"""Runs whatever recipe gin names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin


@gin.configurable(module="gr_jax.recipes", allowlist=["recipe"])
def run(recipe: Callable[..., Any] = gin.REQUIRED, *, until: str | None = None) -> Any:
    """Calls the recipe (`run.recipe = @dsi`), up to and including the stage `until`."""
    return recipe(until=until)

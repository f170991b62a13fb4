"""Runs whatever system gin names."""

from __future__ import annotations

import os

import gin

from gr_jax.errors import InputError
from gr_jax.retrievers import Searcher
from gr_jax.stages.sources import Source
from gr_jax.systems import configuration
from gr_jax.systems.base import System


@gin.configurable(module="gr_jax", denylist=["until"])
def run(
    system: type[System] = gin.REQUIRED,
    source: Source = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    shared_dir: str | os.PathLike | None = None,
    calibrate: bool = False,
    *,
    until: str = "",
) -> Searcher | None:
    """Makes the system that gin's bindings make, and runs it; see `System.run`.

    Args:
      system: its class: `run.system = @GDR`.
      source: of the documents: `run.source = @BeirFolder()`.
      model_dir, shared_dir, calibrate, until: see `System.run`.

    Raises:
      InputError: settings that are wrong, named with what would be right.
    """
    every = configuration.registered(System)
    cls = next((one for one in getattr(system, "__mro__", ()) if one in every), None)  # gin gives a subclass of it
    if cls is None:
        known = ", ".join(f"@{one.__name__}" for one in every)
        raise InputError("run.system is no system", f"Bind it to one of: {known}.", value=system)
    if isinstance(source, type) or not (hasattr(source, "identity") and hasattr(source, "load")):
        raise InputError("run.source is no source of documents", "Bind it to one: @BeirFolder().", value=source)
    for name, folder in (("model_dir", model_dir), ("shared_dir", shared_dir)):
        if folder is not None and not isinstance(folder, str | os.PathLike):
            raise InputError(f"run.{name} is no path", "Give a text, in quotes.", value=folder)
    made = configuration.from_gin(cls, every)
    return made.run(source, model_dir, shared_dir=shared_dir, until=until, calibrate=calibrate)

"""What gin files and flags make of a system, without running it: its settings, and the versions of its stages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks import harness

if TYPE_CHECKING:
    from gr_jax.stages.graph import StageFunction
    from gr_jax.systems import System


@dataclasses.dataclass(frozen=True)
class _Nowhere:
    """A source of no documents: which stages there are follows from settings alone."""

    def identity(self) -> str:
        return "nowhere"

    def load(self, store: Any) -> Any:
        raise AssertionError("stages are listed, not run")


@functools.cache
def resolve(gin_files: tuple[str, ...], bindings: tuple[str, ...]) -> tuple[System, Mapping[str, Any]]:
    """The system that gin files and bindings make, and what they say of the source beside where it lies.

    Args:
      gin_files: in the order in which they are read, from the checkout.
      bindings: as on the command line, without "--gin.".

    Raises:
      InputError: settings that are wrong, named with what would be right.
    """
    import gin

    import launch.show  # noqa: F401  gin files name it
    from gr_jax.systems import SYSTEMS, configuration

    gin.add_config_file_search_path(str(harness.CHECKOUT))
    with gin.unlock_config():
        gin.clear_config()
        try:
            gin.parse_config_files_and_bindings(list(gin_files), list(bindings))
            bound = gin.get_bindings("gr_jax.run", resolve_references=True)
            cls = next(one for one in bound["system"].__mro__ if one in SYSTEMS)  # gin's is a subclass of it
            source = bound["source"]
            system = configuration.from_gin(cls, SYSTEMS)
        finally:
            gin.clear_config()
    about = {name: value for name, value in plain(source).items() if name not in ("folder", "subset")}
    return system, {"class": type(source).__name__, **about}


def plain(value: Any) -> Any:
    """A value as JSON. A field of settings is left out at its neutral value, or where it is of speed alone. What is
    named stays a name, and nothing is read for it."""
    from gr_jax.stages.settings import UNSET, rules_of

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in dataclasses.fields(value):
            rules, one = rules_of(type(value), field.name), getattr(value, field.name)
            if not rules.speed and (rules.neutral is UNSET or one != rules.neutral):
                found[field.name] = plain(one)
        return found
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def versions(system: System, instead: Mapping[str, StageFunction] | None = None) -> dict[str, int]:
    """ "SYSTEM.KIND" → version of every stage of a system; two functions of one name are told apart by their modules.

    Args:
      system: as it is.
      instead: stage's name → the function that is run in the place of the one that the settings name.
    """
    from gr_jax.stages import documents
    from gr_jax.stages.graph import read_by

    functions = {
        (instead or {}).get(stage.name, stage.function)
        for stage in read_by(system.stages(documents.corpus(_Nowhere())))
    }
    kinds = [function.name for function in functions]
    found = {}
    for function in functions:
        kind = function.name
        if kinds.count(kind) > 1:
            kind = f"{function.__module__.rpartition('.')[2]}.{kind}"
        found[f"{type(system).__name__}.{kind}"] = function.version
    return dict(sorted(found.items()))

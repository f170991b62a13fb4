"""Stages: each is a function that reads finished folders and settings, and fills one folder.

    @stage(shared=True, version=1)
    def vectors(place: Place, corpus: pathlib.Path, *, settings: Vectors) -> None: ...

    embedded = vectors(corpus_stage, settings=Vectors())          # makes nothing yet

Called without its place, the function gives a `Stage`. Parameters that are bound to stages are its inputs: one, none,
or a list of them. All others are its key, together with the keys of its inputs. So a stage takes exactly what it reads,
and what it does not take cannot make it stale.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gr_jax.errors import InputError
from gr_jax.stages import keys

# Part of every key: raise it when the meaning of stages' folders changes, and everything is made again.
FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a stage works.

    Attributes:
      folder: the folder to fill; it becomes the artefact when the function returns.
      work: a folder that survives interruptions; not part of the artefact.
      notes: counts to record in the manifest, JSON.
      common: where all processes of a run work together: checkpoints, shares of an encoding, blocks. On process 0 it is
        `work`; the others have a `folder` and a `work` of their own, of which nothing is kept.
    """

    folder: pathlib.Path
    work: pathlib.Path
    notes: dict[str, Any]
    common: pathlib.Path = None  # type: ignore[assignment]

    def __post_init__(self):
        if self.common is None:
            object.__setattr__(self, "common", self.work)


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """A function of folders and settings, with what it is to be called with.

    Attributes:
      function: of `stage`.
      inputs: parameter → the stage, or the stages, whose finished folders it gets.
      settings: parameter → value.
      name: of its folder in MODEL_DIR, unique among the stages of a system.
      shared: it lives in the common folder under its key, for all systems, instead of in MODEL_DIR.
    """

    function: StageFunction
    inputs: Mapping[str, Stage | tuple[Stage, ...]]
    settings: Mapping[str, Any]
    name: str
    shared: bool

    @property
    def kind(self) -> str:
        """The function's name, which manifests say."""
        return self.function.name

    @property
    def version(self) -> int:
        """Of the function."""
        return self.function.version

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Its settings, as its key and its manifest say them."""
        return {name: keys.canonical(value) for name, value in sorted(self.settings.items())}

    @functools.cached_property
    def key(self) -> str:
        """16 hex digits over the function, its version, all settings and the inputs' keys."""
        inputs = {name: [one.key for one in each(value)] for name, value in sorted(self.inputs.items())}
        return keys.digest([FORMAT, self.kind, self.version, self.config, inputs])

    def named(self, name: str) -> Stage:
        """The same stage under another name, where a system has two of one function."""
        return dataclasses.replace(self, name=name)

    def for_all(self) -> Stage:
        """The same stage in the common folder, whatever its function says."""
        return dataclasses.replace(self, shared=True)

    def upstream(self) -> Iterator[Stage]:
        """The stages that it reads, in the order of its parameters."""
        for value in self.inputs.values():
            yield from each(value)


class StageFunction:
    """What `stage` makes of a function."""

    def __init__(self, function: Callable[..., None], *, shared: bool, version: int, trains: bool, together: bool):
        functools.update_wrapper(self, function)
        self.function, self.name = function, function.__name__
        self.shared, self.version, self.trains = shared, version, trains
        self.together = together or trains
        self._signature = inspect.signature(function)

    def __call__(self, *arguments: Any, **named: Any) -> Stage:
        """Binds all parameters but the place."""
        try:
            bound = self._signature.bind(None, *arguments, **named)
        except TypeError as error:
            raise TypeError(f"the stage {self.name}: {error}") from error
        bound.apply_defaults()
        inputs: dict[str, Stage | tuple[Stage, ...]] = {}
        settings: dict[str, Any] = {}
        for name, value in list(bound.arguments.items())[1:]:
            if isinstance(value, Stage):
                inputs[name] = value
            elif isinstance(value, Sequence) and value and all(isinstance(one, Stage) for one in value):
                inputs[name] = tuple(value)
            else:
                settings[name] = value
        return Stage(self, inputs, settings, self.name, self.shared)


def stage(
    *, shared: bool = False, version: int = 1, trains: bool = False, together: bool = False
) -> Callable[[Callable], StageFunction]:
    """Makes a stage of a module-level function whose first parameter is its `Place`.

    Args:
      shared: its folder lives in the common folder under its key, and is made once for all systems.
      version: raise it when the function's result changes for the same settings.
      trains: it trains a network; `gr-jax train` makes everything that does.
      together: of several processes all work at it, as at what trains, and share out what is long
        (`processes.together`); what processes other than 0 write is thrown away. Any other is made by process 0 while
        the others wait.
    """

    def make(function: Callable[..., None]) -> StageFunction:
        return StageFunction(function, shared=shared, version=version, trains=trains, together=together)

    return make


def read_by(*stages: Stage) -> list[Stage]:
    """These stages and all that they read, each once. No key is asked for, so no file is read."""
    seen: dict[int, Stage] = {}
    waiting = list(stages)
    while waiting:
        one = waiting.pop(0)
        if id(one) not in seen:
            seen[id(one)] = one
            waiting += one.upstream()
    return list(seen.values())


def in_order(*wanted: Stage) -> list[Stage]:
    """These stages and all that they read, each after what it reads; those that fill one folder once.

    Raises:
      InputError: two different stages have one name, and would write one folder.
    """
    found: dict[str, Stage] = {}
    seen: set[tuple[str, str]] = set()

    def add(one: Stage) -> None:
        place = one.key, "" if one.shared else one.name
        if place in seen:
            return
        seen.add(place)
        for upstream in one.upstream():
            add(upstream)
        if one.name in found:
            raise InputError(
                "two stages have one name", "Give one of them another: stage(...).named(...).", value=one.name
            )
        found[one.name] = one

    for one in wanted:
        add(one)
    return list(found.values())


def each(value: Stage | tuple[Stage, ...]) -> tuple[Stage, ...]:
    """The stages that a parameter is bound to."""
    return (value,) if isinstance(value, Stage) else value

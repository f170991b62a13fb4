"""Every setting of a system, each with another valid value, and what a change of it does to the stages' keys."""

from __future__ import annotations

import dataclasses
import pathlib
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax.stages import documents
from gr_jax.stages.graph import Stage, in_order
from gr_jax.stages.settings import Settings, fields_of, rules_of, settings_class, types_of
from gr_jax.systems import System

# Other values where the next number or another choice would not do.
OTHER: dict[str, Any] = {
    "Vectors.encoder": "lsa",
    "Search.searcher": "clustered",
    "Encoders.width": 390,
    "Encoders.heads": 12,
    "Encoders.projection": 384,
    "Network.width": 390,
    "Network.heads": 12,
    "QueryGenerating.width": 390,
    "QueryGenerating.heads": 12,
    "Training.steps": 1204,
    "Training.keep_best": "dev/Success@1",
    "CGRAsync.rebuilds": 1,
    "Aligning.keep_best": "dev/Success@1",
    "Aligning.evaluate_every": 50,
    "ContrastiveTraining.keep_best": "dev/Success@1",
    "QueryGenerating.keep_best": None,
    "NgramWriting.keep_best": "dev/Success@1",
    "Distilling.keep_best": "dev/Success@1",
    "Distilling.margins": (300.0, 100.0),
    "DocidDistilling.keep_best": "dev/Success@1",
    "DocidDistilling.margins": (300.0, 100.0),
    "NgramWriting.width": 390,
    "NgramWriting.heads": 12,
    "ClusterSearch.measure": "nDCG@10",
    "Clusters.branching": 30,
    "Clusters.algorithm": "kmeans",
    "Identifiers.scheme": "atomic",
}


class Nowhere:
    """A source of documents that nobody reads."""

    def identity(self) -> str:
        return "nowhere"


CORPUS = documents.corpus(Nowhere())


def stages(system: System) -> dict[str, Stage]:
    """The system's stages by name. Nothing is made, so each key is reckoned from settings alone."""
    return {one.name: one for one in in_order(system.stages(CORPUS))}


def settings_of(system: System) -> Iterator[tuple[str, str]]:
    """Every setting: ("training", "steps") of settings in a field, ("name", "") of the system, and ("training", "") to
    turn a field off or on."""
    for field in fields_of(system):
        held = settings_class(types_of(type(system))[field.name])
        if held is None or type(None) in typing.get_args(types_of(type(system))[field.name]):
            yield field.name, ""
        if held is not None:
            yield from ((field.name, one.name) for one in fields_of(held))


def with_value(system: System, field: str, name: str, value: Any) -> System:
    """The same with another value of one setting."""
    if name:
        value = dataclasses.replace(held(system, field), **{name: value})
    return dataclasses.replace(system, **{field: value})


def held(system: System, field: str) -> Settings:
    """The settings in a field, or those that it would start from."""
    cls, value = type(system), getattr(system, field)
    if value is not None:
        return value
    found = settings_class(types_of(cls)[field])
    assert found is not None
    return rules_of(cls, field).when_on or found()


def other(system: System, field: str, name: str, folders: Mapping[str, pathlib.Path]) -> Any:
    """Another valid value of a setting.

    Args:
      folders: what paths name instead, by "Class.name"; an encoder's by "encoder".
    """
    cls, owner = type(system), None
    if not name and settings_class(types_of(cls)[field]) is not None:
        return held(system, field) if getattr(system, field) is None else None
    if name:
        owner = held(system, field)
        cls, field = type(owner), name
    said = f"{cls.__name__}.{field}"
    if said in OTHER:
        return OTHER[said]
    path = "encoder" if field in ("encoder", "decoder") else said
    if path in folders:
        return str(folders[path])
    value, rules = getattr(system if owner is None else owner, field), rules_of(cls, field)
    if rules.choices:
        return next(one for one in rules.choices if one != value)
    return _next(value, types_of(cls)[field])


def _next(value: Any, kind: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 + 0.013
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple):
        return tuple(_next(one, None) for one in value)
    if isinstance(value, Mapping):
        return {name: _next(one, None) for name, one in value.items()} or {"other": 1}
    assert value is None
    plain: dict[Any, Any] = {int: 7, float: 0.5, str: "x"}
    found = next(one for one in typing.get_args(kind) if one is not type(None))
    return plain.get(found, {"x": 0.5})


Stages = Mapping[str, Stage]


def changed(before: Stages, after: Stages) -> set[str]:
    """The names of the stages that come or go, or have another key."""
    names = {*before, *after}
    return {name for name in names if name not in before or name not in after or before[name].key != after[name].key}


def first_changed(before: Stages, after: Stages) -> set[str]:
    """Those among them that read the setting themselves: not only stages that changed before them."""

    def alike(one: Stage, other: Stage) -> bool:
        return (one.kind, one.config, _names(one)) == (other.kind, other.config, _names(other))

    return {
        name
        for name in changed(before, after)
        if name not in before or name not in after or not alike(before[name], after[name])
    }


def _names(stage: Stage) -> list[str]:
    return [one.name for one in stage.upstream()]

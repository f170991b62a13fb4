"""Systems from gin, and systems to gin.

A field of a system is resolved when the system is made: its default, then what is bound without a scope to the class of
its settings, then what is bound in the scope that is named after the field:

    ContrastiveTraining.batch_size = 16            # all trainings
    joint/ContrastiveTraining.steps = 100          # the field `joint`: the second training, which is off by default
    GDR.joint = None                               # off, whatever is bound for it

Gin binds systems, settings and sources, and nothing that stages call.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import gin

from gr_jax.errors import InputError
from gr_jax.stages.settings import Settings, default_of, fields_of, rules_of, settings_class, types_of
from gr_jax.stages.sources import InMemory

MODULE = "gr_jax"
T = TypeVar("T", bound=Settings)
C = TypeVar("C")


def from_gin(system: type[T], every: Sequence[type[Settings]]) -> T:
    """The system that gin's bindings make.

    Args:
      system: its class.
      every: the classes of all systems, whose fields scopes may name.

    Raises:
      InputError: a value of the wrong type or out of its range, a field without value, a scope that is no field, or a
        binding to a system that this one extends.
    """
    check_scopes(system, every)
    check_parents(system)
    own = _bindings(system)
    values = {}
    for field in fields_of(system):
        cls = settings_class(types_of(system)[field.name])
        if field.name in own:
            values[field.name] = own[field.name]
        elif cls is not None:
            values[field.name] = _resolved(system, field, cls)
        elif default_of(field) is dataclasses.MISSING:
            raise InputError(f"{system.__name__}.{field.name} has no value", f"Bind {system.__name__}.{field.name}.")
    return system(**values)


def _resolved(system: type[Settings], field: dataclasses.Field, cls: type[Settings]) -> Settings | None:
    default, scoped = default_of(field), _bindings(cls, field.name)
    if default is None and not scoped:
        return None
    start = rules_of(system, field.name).when_on if default is None else default
    values = {**_bindings(cls), **scoped}
    return cls(**values) if start is None or start is dataclasses.MISSING else dataclasses.replace(start, **values)


def check_scopes(system: type[Settings], every: Sequence[type[Settings]]) -> None:
    """Raises InputError for bindings in scopes that name no field of this system: nothing would read them."""
    for (scope, selector), bound in gin.config._CONFIG.items():
        cls = _registered(selector)
        if not scope or cls is None or not bound or scope in _fields(system, cls):
            continue
        value = f"{scope}/{cls.__name__}.{next(iter(bound))}"
        owners = [one.__name__ for one in every if scope in _fields(one, cls)]
        if owners:
            raise InputError(
                f"{system.__name__} has no {cls.__name__} called {scope}, which is of {', '.join(owners)}",
                f"Leave it out, or name one of: {', '.join(_fields(system, cls)) or '(none)'}.",
                value=value,
            )
        known = sorted({name for one in every for name in _fields(one, cls)})
        raise InputError(
            f"no system has a {cls.__name__} called {scope}",
            f"Leave the scope out to bind all of them, or name one of: {', '.join(known)}.",
            value=value,
        )


def check_parents(system: type[Settings]) -> None:
    """Raises InputError for bindings to a system that this one extends: nothing would read them. Bindings to any other
    are no mistake, for a file of budgets or ablations is of several."""
    for (_, selector), bound in gin.config._CONFIG.items():
        cls = _registered(selector)
        if bound and cls is not None and cls is not system and issubclass(system, cls):
            field = next(iter(bound))
            raise InputError(
                f"{cls.__name__}.{field} is bound, and the system that runs is {system.__name__}, which does not read "
                "it",
                f"Bind {system.__name__}.{field}.",
                value=f"{cls.__name__}.{field}",
            )


def _fields(system: type[Settings], cls: type[Settings]) -> list[str]:
    """The system's fields that hold settings of this class."""
    return [field.name for field in fields_of(system) if settings_class(types_of(system)[field.name]) is cls]


def _registered(selector: str) -> type[Settings] | None:
    """The class of settings that gin knows by this name."""
    found = gin.config._REGISTRY.get(selector)
    wrapped = None if found is None else found.wrapped
    return wrapped if isinstance(wrapped, type) and issubclass(wrapped, Settings) else None


def registered(base: type[C]) -> list[type[C]]:
    """The classes that gin knows and that extend this one."""
    found = (one.wrapped for _, one in gin.config._REGISTRY.items())
    return [one for one in found if isinstance(one, type) and issubclass(one, base)]


def _bindings(cls: type, scope: str = "") -> dict[str, Any]:
    selector = f"{scope}/{MODULE}.{cls.__name__}" if scope else f"{MODULE}.{cls.__name__}"
    return gin.get_bindings(selector, resolve_references=True, inherit_scopes=False)


def to_gin(
    system: Settings,
    source: Any = None,
    model_dir: str | os.PathLike | None = None,
    shared_dir: str | os.PathLike | None = None,
) -> str:
    """The full configuration as gin text, one line a value; reading it makes an equal system.

    Args:
      system: as it is.
      source: of the documents.
      model_dir, shared_dir: of the run.
    """
    name = type(system).__name__
    lines = [f"import {MODULE}.systems", *_imports(system, source), "", f"run.system = @{name}"]
    kind = type(source).__name__
    if isinstance(source, InMemory):
        lines.append(f"# run.source was given in memory, which gin cannot name: {source.dataset.summary()}")
    elif source is not None and type(source) not in registered(object):
        lines.append(f"# run.source was a {kind}, which gin does not know.")
    elif source is not None:
        lines.append(f"run.source = @{kind}()")
        lines += [f"{kind}.{field.name} = {_text(getattr(source, field.name))}" for field in dataclasses.fields(source)]
    for argument, value in (("model_dir", model_dir), ("shared_dir", shared_dir)):
        if value is not None:
            lines.append(f"run.{argument} = {_text(os.fspath(value))}")
    for field in fields_of(system):
        value = getattr(system, field.name)
        if isinstance(value, Settings):
            cls = type(value).__name__
            lines += [
                "",
                *(f"{field.name}/{cls}.{one.name} = {_text(getattr(value, one.name))}" for one in fields_of(value)),
            ]
        else:
            lines += [f"{name}.{field.name} = {_text(value)}"]
    return "\n".join(lines) + "\n"


def _imports(*objects: Any) -> list[str]:
    """What registers classes from elsewhere than this package."""
    modules = {type(one).__module__ for one in objects if one is not None} - {"__main__", "builtins"}
    return [f"import {name}" for name in sorted(modules) if name.split(".")[0] != MODULE]


def _text(value: Any) -> str:
    """A value as gin reads it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name!r}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return repr(value)

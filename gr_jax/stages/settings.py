"""Settings: frozen dataclasses whose fields know their types, their ranges and how a key says them.

    @gin.register(module="gr_jax")
    @dataclasses.dataclass(frozen=True)
    class Decoding(Settings):
        beams: int = setting(100, at_least=1)
        normalize: str = setting("level", choices=("vocabulary", "level"))

Types come from the annotations. What is wrong is said when the settings are made, by name and with what would be right.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from gr_jax.errors import InputError

_RULES = "rules"
_LARGEST_INT = 2**31 - 1  # what devices count with
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "UNSET"})()  # where None would be a value


@dataclasses.dataclass(frozen=True)
class _Rules:
    """What a field accepts besides its type, and how a key says it."""

    choices: tuple[Any, ...] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    neutral: Any = UNSET
    identity: Callable[[Any], Any] | None = None
    when_on: Any = None
    speed: bool = False


def setting(
    default: Any = dataclasses.MISSING,
    *,
    choices: tuple[Any, ...] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    neutral: Any = UNSET,
    identity: Callable[[Any], Any] | None = None,
    when_on: Any = None,
    speed: bool = False,
) -> Any:
    """A field of settings.

    Args:
      default: its value where nobody says otherwise. A mapping is copied for each instance.
      choices: the values that it may have.
      at_least, above, at_most, below: bounds of a number, or of each number of a list or mapping.
      neutral: the value at which a key leaves the field out: that by which all was made before there was the field.
      identity: what a key says instead of the value; of a path its content, for instance.
      when_on: of a field that is None by default: the settings from which it starts where something is bound for it.
      speed: it says where or how fast something is computed and not what: keys leave it out.
    """
    rules = _Rules(choices, at_least, above, at_most, below, neutral, identity, when_on, speed)
    metadata = {_RULES: rules}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=functools.partial(dict, default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Settings:
    """Base of settings, which are frozen dataclasses."""

    def __post_init__(self) -> None:
        for field in fields_of(self):
            name = f"{type(self).__name__}.{field.name}"
            value = checked(name, getattr(self, field.name), types_of(type(self))[field.name])
            _check_rules(name, value, rules_of(type(self), field.name))
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Raises InputError for fields that do not go together; each by itself is right."""


def fields_of(settings: Settings | type[Settings]) -> tuple[dataclasses.Field, ...]:
    """The fields of settings, or of their class."""
    return dataclasses.fields(settings)  # type: ignore[arg-type]


def rules_of(cls: type, name: str) -> _Rules:
    """What `setting` was told of a field, by the class or by one that it extends with another default."""
    for one in cls.__mro__:
        field = one.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and _RULES in field.metadata:
            return field.metadata[_RULES]
    return _Rules()


def types_of(cls: type) -> Mapping[str, Any]:
    """field → its type, annotations resolved."""
    return _hints(typing.cast(Any, cls))


_hints = functools.cache(typing.get_type_hints)


def settings_class(annotation: Any) -> type[Settings] | None:
    """The class of settings that a field of this type holds; None where it holds something else."""
    for one in _options(annotation):
        if isinstance(one, type) and issubclass(one, Settings):
            return one
    return None


def default_of(field: dataclasses.Field) -> Any:
    """A field's default; MISSING where it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def checked(name: str, value: Any, annotation: Any) -> Any:
    """The value as its field keeps it: numbers of a float as floats, lists as tuples.

    Raises:
      InputError: it is of another type.
    """
    found = _as_one_of(value, annotation)
    if found is not dataclasses.MISSING:
        return found
    wanted = " or ".join(dict.fromkeys(_describe(one) for one in _options(annotation)))
    raise InputError(f"{name} is not {wanted}", f"Give {wanted}.", value=value)


def _options(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _as(value: Any, wanted: Any) -> Any:
    """The value as one of this type; MISSING where it is none."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if wanted in (None, type(None)):
        return None if value is None else dataclasses.MISSING
    if wanted is bool:
        return value if isinstance(value, bool) else dataclasses.MISSING
    if wanted is int:
        return (
            int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else dataclasses.MISSING
        )
    if wanted is float:
        return float(value) if _is_finite(value) else dataclasses.MISSING
    if wanted is str:
        return os.fspath(value) if isinstance(value, str | os.PathLike) else dataclasses.MISSING
    if origin is collections.abc.Mapping:
        return _mapping(value, arguments)
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        if (
            not isinstance(value, collections.abc.Sequence)
            or isinstance(value, str | bytes)
            or len(value) != len(arguments)
        ):
            return dataclasses.MISSING
        return _all(_as(one, kind) for one, kind in zip(value, arguments, strict=True))
    if origin in (collections.abc.Sequence, tuple):
        if not isinstance(value, collections.abc.Sequence) or isinstance(value, str | bytes):
            return dataclasses.MISSING
        return _all(_as(one, arguments[0]) for one in value)
    return value if isinstance(wanted, type) and isinstance(value, wanted) else dataclasses.MISSING


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _mapping(value: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, collections.abc.Mapping) or not all(isinstance(name, str) for name in value):
        return dataclasses.MISSING
    found = {name: _as_one_of(one, arguments[1]) for name, one in value.items()}
    return dataclasses.MISSING if any(one is dataclasses.MISSING for one in found.values()) else found


def _as_one_of(value: Any, annotation: Any) -> Any:
    """The value as one of a type's options; MISSING where it is none of them."""
    found = (_as(value, option) for option in _options(annotation))
    return next((one for one in found if one is not dataclasses.MISSING), dataclasses.MISSING)


def _all(values: typing.Iterable[Any]) -> Any:
    found = tuple(values)
    return dataclasses.MISSING if any(one is dataclasses.MISSING for one in found) else found


def _describe(wanted: Any) -> str:
    """A type as a sentence says it."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    plain = {
        bool: "True or False",
        int: "a whole number",
        float: "a number",
        str: "a text",
        type(None): "None",
        Any: "a value",
    }
    if wanted in plain:
        return plain[wanted]
    if origin is collections.abc.Mapping:
        return f"a dictionary from names to {_describe(arguments[1]).removeprefix('a ')}s"
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return f"{len(arguments)} values"
    if origin in (collections.abc.Sequence, tuple):
        return f"a list of {_describe(arguments[0]).removeprefix('a ')}s"
    return getattr(wanted, "__name__", str(wanted))


def _check_rules(name: str, value: Any, rules: _Rules) -> None:
    if rules.choices and value not in rules.choices:
        shown = ", ".join(map(str, rules.choices))
        raise InputError(f"{name} is not a known choice", f"Choose one of: {shown}.", value=value)
    numbers_in = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
    for one in numbers_in:
        if isinstance(one, bool) or not isinstance(one, int | float):
            continue
        if isinstance(one, int) and abs(one) > _LARGEST_INT:
            raise InputError(
                f"{name} is no number of 32 bits", f"Set it between -{_LARGEST_INT} and {_LARGEST_INT}.", value=value
            )
        if rules.at_least is not None and one < rules.at_least:
            raise InputError(f"{name} is too small", f"Set it to {rules.at_least:g} or more.", value=value)
        if rules.above is not None and one <= rules.above:
            raise InputError(f"{name} is not above {rules.above:g}", "Give a larger number.", value=value)
        if rules.at_most is not None and one > rules.at_most:
            raise InputError(f"{name} is too large", f"Set it to {rules.at_most:g} or less.", value=value)
        if rules.below is not None and one >= rules.below:
            raise InputError(f"{name} is not below {rules.below:g}", "Give a smaller number.", value=value)


def check_heads(settings: str, width: int, heads: int) -> None:
    """Raises InputError unless each head gets an equal part of the width."""
    if width % heads:
        raise InputError(
            f"{settings}.width is not a multiple of {settings}.heads",
            f"With {heads} heads, {width // heads * heads + heads} is one.",
            value=width,
        )


def check_shares(name: str, shares: Mapping[str, float], kinds: collections.abc.Iterable[str], what: str) -> None:
    """Raises InputError unless these are shares of known kinds, of 0 or more and not all 0."""
    kinds = tuple(kinds)
    if not set(shares) <= set(kinds) or not any(shares.values()) or min(shares.values()) < 0:
        raise InputError(
            f"{name} are not shares of {what}",
            f"Give numbers of 0 or more for {', '.join(kinds)}, not all 0.",
            value=dict(shares),
        )

"""Every setting of every system with values that it cannot have, by rule from its type and its range."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from gr_jax import systems
from gr_jax.errors import InputError
from gr_jax.stages.settings import Settings, fields_of, rules_of, settings_class, types_of
from gr_jax.stages.sources import BeirFolder, PythonDocs

STRANGE = (object(), 1 + 2j, b"bytes", {1: 2}, float("nan"), float("inf"), 10**400, -(10**400), [[[]]], lambda: 0, type)


def _classes() -> list[type[Settings]]:
    """The classes of settings that systems have fields of, systems included."""
    found: dict[type[Settings], None] = {BeirFolder: None, PythonDocs: None}
    waiting: list[type[Settings]] = list(systems.SYSTEMS)
    while waiting:
        cls = waiting.pop()
        if cls not in found:
            found[cls] = None
            types = (settings_class(types_of(cls)[field.name]) for field in fields_of(cls))
            waiting += [one for one in types if one is not None]
    return sorted(found, key=lambda cls: cls.__name__)


def _wrong(cls: type[Settings], field: dataclasses.Field) -> Iterator[Any]:
    """Values of another type, and those just outside the range."""
    annotation, rules = types_of(cls)[field.name], rules_of(cls, field.name)
    yield from STRANGE
    if "int" in str(annotation) and "str" not in str(annotation):
        yield from ("3", 2**31, 2**63)
    if rules.choices:
        yield "no such choice"
    for bound, beyond in ((rules.at_least, -1), (rules.above, 0), (rules.at_most, 1), (rules.below, 0)):
        if bound is not None:
            yield bound + beyond


def _cases() -> list[tuple[type[Settings], str]]:
    return [(cls, field.name) for cls in _classes() for field in fields_of(cls)]


def test_there_are_many():
    assert len(_cases()) >= 145


@pytest.mark.parametrize(("cls", "name"), _cases(), ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_value(cls, name):
    field = next(field for field in fields_of(cls) if field.name == name)
    others = {"folder": "documents"} if cls is BeirFolder and name != "folder" else {}
    for value in _wrong(cls, field):
        with pytest.raises(InputError) as caught:
            cls(**others, **{name: value})
        said = str(caught.value)
        assert f"{cls.__name__}.{name}" in said and len(said) < 600

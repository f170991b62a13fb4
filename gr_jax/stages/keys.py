"""Values as keys say them: JSON in which equal values are equal text, and paths are their content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import numbers
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.stages.settings import UNSET, Settings, rules_of


@runtime_checkable
class Identified(Protocol):
    """What says by itself what identifies it, as a source of documents does."""

    def identity(self) -> Any:
        """JSON; equal values mean equal content."""
        ...


def canonical(value: Any) -> Any:
    """A value as JSON.

    A field of settings is left out at its neutral value, or where it is of speed alone, and says its identity where it
    has one. A path is its content.

    Raises:
      InputError: it is nothing that a key can say, or a path that cannot be read.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) in (int, float):  # most are: the checks below take longer
        return value
    if isinstance(value, Identified):
        return canonical(value.identity())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in sorted(dataclasses.fields(value), key=lambda one: one.name):
            rules, one = rules_of(type(value), field.name), getattr(value, field.name)
            if rules.speed or (rules.neutral is not UNSET and one == rules.neutral):
                continue
            found[field.name] = canonical(one if rules.identity is None else rules.identity(one))
        return found if isinstance(value, Settings) else {"class": type(value).__name__, **found}
    if isinstance(value, os.PathLike):
        return {"content": content(value)}
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(name): canonical(one) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [canonical(one) for one in value]
    raise InputError(
        f"a key cannot say a {type(value).__name__}", "Give settings, numbers, texts, lists or paths.", value=value
    )


def digest(value: Any) -> str:
    """16 hex digits of a JSON value. The order of a mapping counts: kinds of pseudo-queries are made in theirs."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def content(path: str | os.PathLike) -> str:
    """16 hex digits of what a file or a folder holds: of an artefact by its manifest, which has checksums.

    Raises:
      InputError: it cannot be read.
    """
    path = pathlib.Path(path)
    if (path / storage.MANIFEST).is_file():
        files = storage.read_folder(path, verify=False).files
        return digest({name: entry["sha256"] for name, entry in sorted(files.items())})
    try:
        if not path.is_dir():
            return _of_file(path)
        files_there = sorted(file for file in path.rglob("*") if file.is_file())
        return digest({file.relative_to(path).as_posix(): _of_file(file) for file in files_there})
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "Name what can be read.", file=path) from error


def content_or_name(name: str, names: Sequence[str]) -> Any:
    """What identifies something that has one of these names, or else lies at a path."""
    return name if name in names else {"content": content(name)}


def _of_file(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]

"""Fields of JSON records, with errors that say which line is at fault."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from gr_jax.corpus import lines
from gr_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Place:
    """A line of a file, and the fields of its record; each raises InputError where there is something else.

    Attributes:
      file, number: which line.
    """

    file: str | os.PathLike
    number: int

    def error(self, what: str, instead: str, value: Any) -> InputError:
        """What is wrong here, and what would be right."""
        return InputError(what, instead, file=self.file, line=self.number, value=value)

    def identifier(self, record: Mapping[str, Any], name: str = "id") -> str:
        """A text or a whole number, as a text without spaces around it."""
        value = record.get(name)
        if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
            raise self.error(f"no {name}", f'Give every record a text "{name}".', value)
        return str(value).strip()

    def text(self, record: Mapping[str, Any], name: str, default: str | None = None) -> str:
        """A text; `default` where it is absent or null, if given."""
        return lines.string(dict(record), name, self.file, self.number, default)

    def objects(self, record: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        """A list of objects; [] where it is absent."""
        value = record.get(name, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(f"{name} is no list of objects", "Give [] or a list of {…}.", value)
        return value

    def whole(self, record: Mapping[str, Any], name: str) -> int:
        """A whole number; −1 where it is absent or null."""
        value = record.get(name, -1)
        if value is None:
            return -1
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{name} is no whole number", "Give one, or leave it out.", value)
        return value

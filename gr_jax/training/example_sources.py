"""The kinds of training examples, by name and number: what an example teaches.

Three are there from the start: to answer a question that somebody asked, to name a document from its own text, and to
answer a question that was made from the document. Others are registered. A token store says its numbers' names, so that
the order of registration may differ from process to process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int8

from gr_jax.errors import InputError

BUILT_IN = ("query", "document", "pseudo")
_MOST = 127  # numbers are int8
_names: list[str] = list(BUILT_IN)


def register_source(name: str) -> int:
    """Makes a kind known, or finds it known; returns its number.

    Raises:
      InputError: no name that can stand in a setting, or more kinds than there are numbers.
    """
    if name in _names:
        return _names.index(name)
    if not name.isidentifier():
        raise InputError("a source has a name of letters, digits and _", 'Call it "title", say.', value=name)
    if len(_names) > _MOST:
        raise InputError(f"at most {_MOST + 1} sources can be told apart", "Register fewer.", value=name)
    _names.append(name)
    return len(_names) - 1


def source_names() -> tuple[str, ...]:
    """All kinds, in the order of their numbers."""
    return tuple(_names)


def source_number(name: str) -> int:
    """The number of a kind.

    Raises:
      InputError: it is not known.
    """
    if name not in _names:
        raise InputError("unknown source of a pair", f"Use one of {', '.join(_names)}, or register it.", value=name)
    return _names.index(name)


def renumbered(source: Int8[np.ndarray, " rows"], names: Sequence[str]) -> Int8[np.ndarray, " rows"]:
    """Numbers of another process as those of this one; kinds that are not known here become known.

    Args:
      source: of rows.
      names: of their numbers.
    """
    numbers = [register_source(name) for name in names]
    if numbers == list(range(len(numbers))):
        return source
    return np.asarray(numbers, np.int8)[source]

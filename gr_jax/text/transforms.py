"""Named transforms that documents and queries go through before anything reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gr_jax.errors import InputError

# Between two parts of one identifier: "_" runs and "." before a letter ("jax.lax", "__init__", not "0.5" or "end. A"),
# and the places where a capital starts a word ("fooBar", "HTTPServer").
_SEPARATORS = re.compile(r"_+|(?<=\w)\.(?=[^\W\d])")
_CAPITALS = re.compile(r"(?<=[^\W\d_])(?<=[^A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def split_identifiers(text: str) -> str:
    """Splits identifiers into words at `_`, `.` and capitals, so that the words of a question can meet them.

    >>> split_identifiers("jax.lax.scan_fooBar of HTTPServer v0.5.")
    'jax lax scan foo Bar of HTTP Server v0.5.'
    """
    return _CAPITALS.sub(" ", _SEPARATORS.sub(" ", text))


TRANSFORMS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"none": lambda text: text, "split_identifiers": split_identifiers}
)


def get_transform(name: str) -> Callable[[str], str]:
    """The transform of this name.

    Raises:
      InputError: there is none.
    """
    if name not in TRANSFORMS:
        raise InputError("no such transform", f"Choose one of {', '.join(TRANSFORMS)}.", value=name)
    return TRANSFORMS[name]

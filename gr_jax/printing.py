"""Somebody else's text on a terminal or on a page: titles, questions, names of files."""

from __future__ import annotations

import re

# What moves a terminal's cursor, colours it, turns the direction of writing, or ends a line unseen.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text on one line, with U+FFFD in place of control characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", " ".join(text.split()))


def escaped(text: str) -> str:
    """The text with control characters as Python escapes them, so that it still says what is there."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)

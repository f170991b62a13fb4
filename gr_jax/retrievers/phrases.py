"""Where the words by which a document was found stand in it, and how they are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

BEFORE, AFTER = "»", "«"
_STANDS_BEFORE = 24  # characters of a passage in front of the first mark

Spans = tuple[tuple[int, int], ...]


def find_phrase(phrase: str, text: str) -> Spans:
    """(start, end) of each place of a phrase, whatever the case and the white space: tokens do not keep them."""
    letters = [re.escape(letter) for letter in phrase if not letter.isspace()]
    if not letters:
        return ()
    before = r"(?<!\w)" if phrase[:1].isascii() and phrase[:1].isalnum() else ""
    return tuple(match.span() for match in re.finditer(before + r"\s*".join(letters), text, re.IGNORECASE))


def marked(text: str, spans: Sequence[tuple[int, int]], length: int) -> str:
    """The passage of a text that has the most marked characters, with marks around them.

    Args:
      text: of the document.
      spans: (start, end) of what is marked; they may overlap.
      length: characters of the passage, marks not counted.
    """
    joined = _joined(spans)
    if not joined:
        return text[:length]
    starts = [0, *(max(0, start - _STANDS_BEFORE) for start, _ in joined)]
    covered = [sum(max(0, min(end, at + length) - max(start, at)) for start, end in joined) for at in starts]
    first = starts[covered.index(max(covered))]
    parts, at, last = ["…" if first else ""], first, min(len(text), first + length)
    for start, end in joined:
        start, end = max(start, first), min(end, last)
        if start < end:
            parts += [text[at:start], BEFORE, text[start:end], AFTER]
            at = end
    return "".join([*parts, text[at:last]])


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same characters, without overlaps, in order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif start < end:
            joined.append((start, end))
    return joined

"""The opening sentences of a docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ABBREVIATIONS = (
    "e.g.",
    "i.e.",
    "etc.",
    "vs.",
    "cf.",
    "resp.",
    "approx.",
    "Eq.",
    "Fig.",
    "Sec.",
    "No.",
    "vol.",
    "al.",
    "a.k.a.",
)
_SENTENCE_END = re.compile(r"[.!?][\"'`)\]]*(?=\s+[A-Z0-9`\"'(\[*:]|\s*$)")
_PARAGRAPH = re.compile(r"(?s)(?:^|\n[ \t]*\n)\s*?(\S.*?)(?=\n[ \t]*\n|$)")
# Where prose stops: a heading ("Args:", or underlined), a directive or field, an example, a list, code, a table.
_NO_PROSE = re.compile(
    r"[A-Z][\w ]{0,30}:\s*(\n|$)|.*\n[-=~^]{3,}\s*(\n|$)|\.\. |:[a-z]+ ?[\w ]*:(?!`)|>>>|[-*+•#|] |\d+[.)] |```|\+--"
)
_WORD = re.compile(r"[^\W\d_]{2,}")


def split_docstring(doc: str) -> tuple[tuple[str, ...], str]:
    """Takes the opening sentences out of a docstring, as queries.

    The first sentence is a query. The second is one too where the opening prose has at least three. A sentence of less
    than two words, or one that introduces what follows by a colon, is none.

    Args:
      doc: dedented.

    Returns:
      No, one or two queries, each on one line, and the docstring without them.
    """
    spans = []
    for start, end in sentences(doc):
        query = " ".join(doc[start:end].split())
        if query.endswith(":") or query.startswith("Copyright") or len(_WORD.findall(query)) < 2:
            break
        spans.append((start, end, query))
        if len(spans) == 3:
            break
    taken = spans[: 2 if len(spans) == 3 else 1]
    rest = doc[taken[-1][1] :] if taken else doc
    return tuple(query for _, _, query in taken), rest.strip()


def sentences(doc: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the sentences of the prose with which a docstring opens."""
    for paragraph in _PARAGRAPH.finditer(doc):
        start, end = paragraph.span(1)
        if _NO_PROSE.match(doc, start, end):
            return
        for match in _SENTENCE_END.finditer(doc, start, end):
            if not doc[start : match.end()].endswith(_ABBREVIATIONS):
                yield start, match.end()
                start = match.end() + len(doc[match.end() : end]) - len(doc[match.end() : end].lstrip())
        if start < end:
            yield start, end

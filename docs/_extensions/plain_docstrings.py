"""Docstrings as Sphinx reads them. Ours are plain text with Markdown's backticks: what reStructuredText would take for
markup is escaped."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

# Between backticks nothing is escaped. Single ones become code.
_CODE = re.compile(r"(`+)([^`]+)\1")
_SPECIAL = re.compile(r"[*|\\]|(?<=\w)_(?!\w)")


def to_rst(line: str) -> str:
    """One line of a docstring."""
    found, end = [], 0
    for code in _CODE.finditer(line):
        found += [_escaped(line[end : code.start()]), f"``{code[2].strip()}``"]
        end = code.end()
        if end < len(line) and line[end].isalnum():
            found.append("\\ ")
    return "".join([*found, _escaped(line[end:])])


def _escaped(text: str) -> str:
    bullet = re.match(r"\s*[*] ", text)
    start = bullet.end() if bullet else 0
    return text[:start] + _SPECIAL.sub(r"\\\g<0>", text[start:])


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrites a docstring where it stands; blocks of code, which are indented behind an empty line, stay."""
    text = "\n".join(lines)
    lines[:] = [to_rst(line) for line in text.split("\n")]


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon, at 500
    return {"parallel_read_safe": True, "version": "1"}

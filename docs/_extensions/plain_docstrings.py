"""Docstrings as Sphinx reads them. Ours are plain text with Markdown's backticks: what reStructuredText would take for
markup is escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def lines_to_rst(lines: Sequence[str]) -> list[str]:
    """A docstring. What is indented behind an empty line, below text that is not, is code and stays as it is."""
    found: list[str] = []
    in_code = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if in_code and line and not indented:
            in_code = False
        if not in_code and indented and number and not lines[number - 1].strip():
            before = next((one for one in reversed(lines[:number]) if one.strip()), "")
            if before and not before.startswith((" ", "*", "-")):
                in_code = True
                found += ["::", ""]
        found.append(line if in_code else to_rst(line))
    return found


def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrites a docstring where it stands. A module's is not indented, so that what is indented in it is code, also
    where nothing else follows its first line."""
    own = (getattr(obj, "__doc__", None) or "").split("\n") if what == "module" else lines
    lines[:] = lines_to_rst(own)


def skip(app: Sphinx, what: str, name: str, obj: object, skipped: bool, options: object) -> bool | None:
    """Leaves out fields of named tuples, which their class describes."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> dict[str, object]:
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon, at 500
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "version": "1"}

"""The blocks of a page that a reader would run, and what the comments above them say about running them in a test.

A comment stands on the line above the block that it is about:

    <!-- ci: skip REASON -->            the block is run elsewhere
    <!-- ci: first COMMAND -->          what a reader has and a test has to make
    <!-- ci: append FLAGS -->           flags for every training command, so that it ends soon
    <!-- ci: replace TEXT => TEXT -->   the same for Python
"""

from __future__ import annotations

import dataclasses
import re

LANGUAGES = ("bash", "python")
_TRAINS = re.compile(r"(?:gr-jax |python -m launch\.)(?:recipe|train|index)\b")
# Directives of the site, whose names are in braces, are blocks that are not run.
_BLOCK = re.compile(r"((?:^<!-- ci: [^\n]*-->\n)*)^(`{3,})([^\n`]*)\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^<!-- ci: (skip|first|append|replace) (.*\S) *-->$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block as a test runs it.

    Attributes:
      language: "bash" or "python".
      code: with the directives applied.
      line: where it stands in the file.
      skip: why it is not run; "" where it is.
      first: bash commands to run before.
    """

    language: str
    code: str
    line: int
    skip: str = ""
    first: tuple[str, ...] = ()


def parse(markdown: str) -> list[Block]:
    """The bash and python blocks of a page, in order.

    Raises:
      ValueError: a directive has no block below it, is unknown, or replaces what is not there.
    """
    blocks, read = [], 0
    for match in _BLOCK.finditer(markdown):
        line = markdown.count("\n", 0, match.start(3)) + 1
        comments, _, language, code = match.groups()
        directives = _DIRECTIVE.findall(comments)
        read += len(comments.splitlines())
        if len(directives) != len(comments.splitlines()):
            raise ValueError(f"line {line}: a directive that is not known above this block:\n{comments}")
        if language not in LANGUAGES:
            if directives:
                raise ValueError(f"line {line}: directives above a block that is not run")
            continue
        about: dict[str, list[str]] = {"skip": [], "first": [], "append": [], "replace": []}
        for name, value in directives:
            about[name].append(value)
        for flags in about["append"]:
            code = _append(code, flags, line)
        for replacement in about["replace"]:
            old, new = replacement.split(" => ")
            if code.count(old) != 1:
                raise ValueError(f"line {line}: {old!r} is not in this block once")
            code = code.replace(old, new)
        blocks.append(Block(language, code, line, " ".join(about["skip"]), tuple(about["first"])))
    if read != len(re.findall(r"<!-- ci:", markdown)):
        raise ValueError("a directive stands above no block")
    return blocks


def _append(code: str, flags: str, line: int) -> str:
    """Adds flags to every training command; commands may be continued over lines."""
    commands = re.split(r"(?<!\\)\n", code)
    changed = [f"{command} {flags}" if _TRAINS.search(command) else command for command in commands]
    if changed == commands:
        raise ValueError(f"line {line}: there is no training command to append {flags!r} to")
    return "\n".join(changed)

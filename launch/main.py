"""The command `gr-jax`: `gr-jax NAME FLAGS` does what `python -m launch.NAME FLAGS` does in a checkout."""

from __future__ import annotations

import ast
import difflib
import pathlib
import re
import runpy
import sys

import gr_jax
from gr_jax.errors import InputError

# As they are listed.
PROGRAMS = (
    "recipe", "train", "index", "search", "retrieve", "evaluate", "update", "calibrate", "docids", "data", "cluster",
    "supervise",
)  # fmt: skip


def main() -> None:
    """Runs the program that the first argument names, as `__main__`."""
    name, *others = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(usage())
    elif name == "--version":
        print(f"gr_jax {gr_jax.__version__}")
    elif name in PROGRAMS:
        sys.argv[1:] = others
        runpy.run_module(f"{__package__}.{name}", run_name="__main__", alter_sys=True)
    else:
        near = difflib.get_close_matches(name, PROGRAMS, n=1)
        remedy = f"Did you mean {near[0]}?" if near else f"Name one of: {', '.join(PROGRAMS)}."
        print(f"error: {InputError('gr-jax has no such program', remedy, value=name)}", file=sys.stderr)
        sys.exit(2)


def usage() -> str:
    """A line for each program, read without importing any of them: that takes seconds."""
    lines = [f"  {name:<10} {_first_sentence(name)}" for name in PROGRAMS]
    return "\n".join(["gr-jax NAME FLAGS", "", *lines, "", "gr-jax NAME --help says what its flags are."])


def _first_sentence(name: str) -> str:
    folder = pathlib.Path(__file__).parent
    file = next(path for path in (folder / f"{name}.py", folder / name / "__main__.py") if path.is_file())
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.split(r"[.:;](?:\s|$)", doc, maxsplit=1)[0].replace("\n", " ") + "."


if __name__ == "__main__":
    main()

"""What `gr-jax recipe --list` prints: every system, its paper, its configuration files and a command."""

from __future__ import annotations

import pathlib
import re

from gr_jax.systems import SYSTEMS, System

from .configured import CHECKOUT

_FOLDERS = {
    "data": "other documents",
    "models": "another network",
    "docids": "other docids",
    "budgets": "less training",
    "ablations": "one thing changed",
}


def listing() -> str:
    """The whole list."""
    files = {file: system_of(file) for file in _files("systems")}
    parts = [_about(cls, [file for file, name in files.items() if name == cls.__name__]) for cls in SYSTEMS]
    parts.append("At a paper's size, instead of a system's file:\n" + "\n".join(map(_line, _files("papers"))))
    parts.append("After a system's file, --gin_file=…:")
    for folder, what in _FOLDERS.items():
        parts.append(f"{what}:\n" + "\n".join(_line(file) for file in _files(folder)))
    return "\n\n".join(parts)


def system_of(file: pathlib.Path) -> str:
    """The name of the system that a configuration file, or one that it includes, runs; "" where none does."""
    text, name = file.read_text(encoding="utf-8"), ""
    for line in text.splitlines():
        included = re.match(r'include "(.*)"', line)
        bound = re.match(r"run\.system = @(\w+)", line)
        if included:
            name = system_of(CHECKOUT / included[1]) or name
        elif bound:
            name = bound[1]
    return name


def summary(file: pathlib.Path) -> str:
    """The first sentence of the comment that opens a configuration file."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.removeprefix("#").strip():
            break
        lines.append(line.removeprefix("#").strip())
    return re.split(r"(?<=\.)(?<!al\.)\s", " ".join(lines), maxsplit=1)[0]


def command(file: pathlib.Path) -> str:
    """The first command in the comment that opens a configuration file."""
    lines: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        line = line.removeprefix("#").strip()
        if line.startswith(("gr-jax ", "python -m ")) or (lines and lines[-1].endswith("\\")):
            lines.append(line)
        elif lines:
            break
    return "\n      ".join(lines)


def _about(cls: type[System], files: list[pathlib.Path]) -> str:
    doc = (cls.__doc__ or "").split("\n\n")[0]
    named = sorted(files, key=lambda file: (len(file.stem), file.stem))
    lines = [f"{' '.join(doc.split()).rstrip('.')} ({cls.paper})", *map(_line, named)]
    if named:
        lines.append(f"  {command(named[0])}")
    return "\n".join(lines)


def _line(file: pathlib.Path) -> str:
    return f"  {file.relative_to(CHECKOUT).as_posix():<45} {summary(file)}"


def _files(folder: str) -> list[pathlib.Path]:
    return sorted((CHECKOUT / "gin_configs" / folder).glob("*.gin"))

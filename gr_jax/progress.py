"""Progress of long work: what is being done, how far it is, what is left.

A terminal gets a live bar; a log file gets a line at every tenth of the work, so that logs stay readable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Iterator

from rich import progress as rich_progress
from rich.console import Console


@dataclasses.dataclass
class _Signs:
    silent: bool = False
    advances: int = 0
    note: str = ""
    waits: int = 0


_signs = _Signs()


def silence() -> None:
    """Shows no bars in this process: another one shows them for all."""
    _signs.silent = True


def signs() -> tuple[int, str, bool]:
    """How often any work in this process has advanced, the last of it, and whether it waits for another process; for
    whoever watches whether it hangs."""
    return _signs.advances, _signs.note, _signs.waits > 0


@contextlib.contextmanager
def waiting(note: str) -> Iterator[None]:
    """Inside, this process waits for another one, and its work stands still for a reason."""
    before, _signs.note = _signs.note, note
    _signs.waits += 1
    try:
        yield
    finally:
        _signs.waits -= 1
        _signs.note = before
        _signs.advances += 1


class Bar:
    """The handle of one piece of work.

    Attributes:
      total: how many units the work has.
      done: how many are finished.
      note: a few words on the state of the work ("loss 2.31").
      description: what is being done.
    """

    def __init__(self, total: int, description: str = ""):
        self.total, self.done, self.note, self.description = total, 0, "", description

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Says that `count` more units are finished."""
        _signs.advances += 1
        _signs.note = f"{self.description}: {self.done + count}/{self.total}"
        self.done += count
        if note is not None:
            self.note = note


class _LiveBar(Bar):
    def __init__(self, total: int, display: rich_progress.Progress, description: str):
        super().__init__(total, description)
        self._display, self._task = display, display.add_task(description, total=total, note="")

    def advance(self, count: int = 1, note: str | None = None) -> None:
        super().advance(count, note)
        self._display.update(self._task, completed=self.done, note=self.note)


class _LogBar(Bar):
    def __init__(self, total: int, description: str):
        super().__init__(total, description)
        self._start, self._next_tenth = time.monotonic(), 1

    def advance(self, count: int = 1, note: str | None = None) -> None:
        super().advance(count, note)
        tenths = self.done * 10 // max(self.total, 1)
        if tenths < self._next_tenth or self._next_tenth > 10:
            return
        self._next_tenth = tenths + 1
        spent = time.monotonic() - self._start
        left = spent * max(self.total - self.done, 0) / max(self.done, 1)
        note = f" · {self.note}" if self.note else ""
        print(f"{self.description}: {self.done}/{self.total}, {spent:.0f}s, {left:.0f}s left{note}", file=sys.stderr)


@contextlib.contextmanager
def bar(description: str, total: int, *, enabled: bool = True) -> Iterator[Bar]:
    """Shows a bar on standard error while the body runs. Bars may be nested: an evaluation in the midst of training.

    Args:
      description: what is being done ("Embedding documents").
      total: how many units it has.
      enabled: False counts silently.
    """
    if not enabled or _signs.silent:
        yield Bar(total, description)
    elif sys.stderr.isatty():
        # Descriptions and notes are plain text: "[1/3]" in one is no markup.
        columns = (
            rich_progress.TextColumn("{task.description:<28}", markup=False),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[note]}", markup=False),
        )
        # What the body prints goes above the bar where both share the terminal, and untouched into a file otherwise.
        shared = sys.stdout.isatty()
        with rich_progress.Progress(*columns, console=_console(), redirect_stdout=shared) as display:
            yield _LiveBar(total, display, description)
    else:
        yield _LogBar(total, description)


@functools.cache
def _console() -> Console:
    """One for all bars: only so does an inner bar find its place under an outer one."""
    return Console(stderr=True)

"""Progress of long work: what is being done, how far it is, what is left.

A terminal gets a live bar; a log file gets a line at every tenth of the work, so that logs stay readable.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from rich import progress as rich_progress


class Bar:
    """The handle of one piece of work.

    Attributes:
      total: how many units the work has.
      done: how many are finished.
      note: a few words on the state of the work ("loss 2.31").
    """

    def __init__(self, total: int):
        self.total, self.done, self.note = total, 0, ""

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Says that `count` more units are finished."""
        self.done += count
        if note is not None:
            self.note = note


class _LiveBar(Bar):
    def __init__(self, total: int, display: rich_progress.Progress, description: str):
        super().__init__(total)
        self._display, self._task = display, display.add_task(description, total=total, note="")

    def advance(self, count: int = 1, note: str | None = None) -> None:
        super().advance(count, note)
        self._display.update(self._task, completed=self.done, note=self.note)


class _LogBar(Bar):
    def __init__(self, total: int, description: str):
        super().__init__(total)
        self._description, self._start, self._next_tenth = description, time.monotonic(), 1

    def advance(self, count: int = 1, note: str | None = None) -> None:
        super().advance(count, note)
        if self.done * 10 < self._next_tenth * self.total:
            return
        self._next_tenth = self.done * 10 // max(self.total, 1) + 1
        spent = time.monotonic() - self._start
        left = spent * (self.total - self.done) / max(self.done, 1)
        note = f" · {self.note}" if self.note else ""
        print(f"{self._description}: {self.done}/{self.total}, {spent:.0f}s, {left:.0f}s left{note}", file=sys.stderr)


@contextlib.contextmanager
def bar(description: str, total: int, *, enabled: bool = True) -> Iterator[Bar]:
    """Shows a bar on standard error while the body runs.

    Args:
      description: what is being done ("Embedding documents").
      total: how many units it has.
      enabled: False counts silently.
    """
    if not enabled:
        yield Bar(total)
    elif sys.stderr.isatty():
        columns = (
            rich_progress.TextColumn("{task.description:<28}"),
            rich_progress.BarColumn(),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[note]}"),
        )
        from rich.console import Console

        with rich_progress.Progress(*columns, console=Console(stderr=True)) as display:
            yield _LiveBar(total, display, description)
    else:
        yield _LogBar(total, description)

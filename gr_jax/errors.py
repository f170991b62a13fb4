"""The one error that users meet: it says where, what, and what would be right. And its milder form, a warning."""

from __future__ import annotations

import os

from gr_jax.printing import escaped


class InputError(ValueError):
    """Something that was given to the library is wrong.

    The message reads ``<file>:<line>: <what is wrong> (got <value>). <what would be right>.`` Parts that do not apply
    are left out.

    Args:
      problem: what is wrong, one clause.
      remedy: what would be right, an imperative sentence.
      file: the file or folder at fault.
      line: 1-based line in `file`.
      value: the value at fault; long values are cut.
    """

    def __init__(
        self,
        problem: str,
        remedy: str,
        *,
        file: str | bytes | os.PathLike | None = None,
        line: int | None = None,
        value: object = None,
    ):
        self.problem, self.remedy, self.file, self.line, self.value = problem, remedy, file, line, value
        where = "" if file is None else f"{os.fsdecode(file)}{'' if line is None else f':{line}'}: "
        got = "" if value is None else f" (got {_shorten(value)})"
        # A file name or a line of a broken file may hold what cannot be printed; the message always can.
        super().__init__(escaped(f"{where}{problem}{got}. {remedy}"))

    def __reduce__(self):
        """Worker processes hand their errors on by pickling, which would call `InputError(message)`."""
        file = None if self.file is None else os.fsdecode(self.file)
        value = None if self.value is None else _AsShown(_shorten(self.value))
        return _rebuild, (self.problem, self.remedy, file, self.line, value)


class DamagedError(InputError):
    """What was written once is cut short, altered or gone: another copy of it may be whole."""


class InputWarning(UserWarning):
    """Something that was given is used in another way than one may expect."""


class _AsShown(str):
    """A value of another process, of which only what it looks like is known."""

    def __repr__(self) -> str:
        return str(self)


def _rebuild(problem: str, remedy: str, file: str | None, line: int | None, value: object) -> InputError:
    return InputError(problem, remedy, file=file, line=line, value=value)


def _shorten(value: object, limit: int = 120) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        text = f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"

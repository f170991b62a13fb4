"""What a loader makes of an artefact whose checksums hold and whose content is nonsense all the same."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax.errors import InputError

_MOST = 1_000_000  # as `retrievers.check_question` has it
_OF_THE_MACHINE = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EIO)


def check_counts(folder: str | os.PathLike, meta: Mapping[str, Any], *names: str) -> None:
    """Checks settings of a folder that count: beams, tokens, depths. None stands where a setting is off.

    Raises:
      InputError: one of them is missing, is no whole number of 0 or more, or is more than anything has.
    """
    for name in names:
        value = meta.get(name, "nothing")
        if value is not None and (type(value) is not int or not 0 <= value <= _MOST):
            raise InputError(
                f"its setting {name!r} is no count", "Copy the artefact again whole, or make it again.", file=folder,
                value=value,
            )  # fmt: skip


@contextlib.contextmanager
def explain_content(folder: str | os.PathLike) -> Iterator[None]:
    """What its content raises within becomes an `InputError` about the folder; what the machine lacks, a package or a
    place on the disk, is said as it is.

    Checksums protect from accidents, not from whoever computes them anew. Loaders look values up and hand them to
    libraries, each of which has errors of its own for values that it cannot use.
    """
    try:
        yield
    except InputError as error:
        if error.file is not None or isinstance(error.__cause__, ImportError):
            raise
        raise InputError(error.problem, "Make the artefact again.", file=folder, value=error.value) from error
    except MemoryError as error:
        raise InputError(
            f"there is not enough memory for it: {error}", "Free memory, or make the artefact again.", file=folder
        ) from error
    except Exception as error:
        if isinstance(error, ImportError) or (isinstance(error, OSError) and error.errno in _OF_THE_MACHINE):
            raise
        said = (str(error).splitlines() or [""])[0][:200]
        raise InputError(
            f"its content makes no sense: {type(error).__name__}: {said}",
            "Copy the artefact again whole, or make it again.",
            file=folder,
        ) from error

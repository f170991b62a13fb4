"""Files that only save time or count it: a damaged one is as good as none, and stops nothing."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from gr_jax.errors import InputError


def refuse_no_file(path: str | os.PathLike) -> None:
    """What is no file would be waited for, or never be written.

    Raises:
      InputError: a folder, a pipe or a device has this name, or a link that leads nowhere.
    """
    if os.path.lexists(path) and not os.path.isfile(path):
        raise InputError("this is no file, and a file of this name is to be written", "Remove it.", file=path)


def read_note(path: str | os.PathLike) -> Any:
    """The JSON value in a file; None where there is none or it is damaged.

    Raises:
      InputError: what has the name is no file.
    """
    refuse_no_file(path)
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None

"""Examples of pages, imported as the files that they would be."""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType


@contextlib.contextmanager
def imported(name: str, code: str, folder: pathlib.Path) -> Iterator[ModuleType]:
    """The module of this code, as long as the context lasts."""
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)

"""What several workers of one test run need and one of them makes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[pathlib.Path]:
    """The folder of that name, the same for all workers; one at a time is within."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / name
    root.mkdir(parents=True, exist_ok=True)
    with open(root.with_name(f"{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root

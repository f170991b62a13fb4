"""Signs of life of a process, in a file that a supervisor reads: whether it runs, and how far its work is."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import socket
import threading
import time

from gr_jax import progress

FILE = "GR_JAX_SIGNS"  # environment variable: the file
EVERY_S = 2.0


def give() -> None:
    """Writes them from a thread of this process, where a supervisor has named a file."""
    path = os.environ.get(FILE)
    if path:
        threading.Thread(target=_give, args=(pathlib.Path(path),), daemon=True, name="signs of life").start()


def _give(path: pathlib.Path) -> None:
    beat = 0
    while True:
        advances, note, waits = progress.signs()
        said = {"beat": beat, "host": socket.gethostname(), "pid": os.getpid(), "advances": advances, "note": note}
        said["waits"] = waits
        beside = path.with_name(f".{path.name}.new")
        with contextlib.suppress(OSError):  # a disk that is full for a moment must not end what it watches
            beside.write_text(json.dumps(said), "utf-8")
            os.replace(beside, path)
        beat += 1
        time.sleep(EVERY_S)

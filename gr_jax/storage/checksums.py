"""Checksums of files, remembered: a file of the same size, time and inode is not read again."""

from __future__ import annotations

import hashlib
import os
import pathlib
import time

from gr_jax.storage.atomic import write_json
from gr_jax.storage.notes import read_note

# A file that changed within so many nanoseconds may change again without its time showing it: it is not remembered.
_TOO_YOUNG = 2_000_000_000


def sha256(path: str | os.PathLike) -> str:
    """Of a file's bytes, in hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checksums:
    """SHA-256 of files, kept in a JSON file between processes.

    Args:
      file: where they are kept. What cannot be read there is forgotten: it only saves time.
    """

    def __init__(self, file: str | os.PathLike):
        self._file = pathlib.Path(file)
        known = read_note(self._file)
        found = known.items() if isinstance(known, dict) else ()
        self._known: dict[str, list] = {path: entry for path, entry in found if _is_entry(entry)}
        self._changed = False

    def __call__(self, path: str | os.PathLike) -> str:
        """The checksum of a file, read only where size, time or inode are not those that it was read with."""
        path = os.path.realpath(path)
        before = os.stat(path)
        state = [before.st_size, before.st_mtime_ns, before.st_ino]
        entry = self._known.get(path)
        if entry is not None and entry[:3] == state:
            return entry[3]
        found = sha256(path)
        if before.st_mtime_ns < time.time_ns() - _TOO_YOUNG:
            self._known[path] = [*state, found]
            self._changed = True
        return found

    def save(self) -> None:
        """Writes what is known of files that are still there, where anything was learnt."""
        if self._changed:
            write_json(self._file, {path: entry for path, entry in self._known.items() if os.path.exists(path)})
            self._changed = False


def _is_entry(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 4 and isinstance(entry[3], str)

"""Raw files as they are published: where they stand in a folder, and whether they are whole."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from gr_jax import progress
from gr_jax.errors import InputError

_PUBLISHED = pathlib.Path(__file__).parent / "raw_files.json"
_CHUNK = 1 << 22


def find(folder: pathlib.Path, what: str, patterns: Sequence[str]) -> list[pathlib.Path]:
    """The files below a folder whose names fit the first pattern that any fits, sorted by name.

    Args:
      folder: of raw files.
      what: they are, for the error.
      patterns: the same files under the names of several years, as `fnmatch` has them; ".gz" may follow.

    Raises:
      InputError: none fits, or one stands there plain and gzipped.
    """
    found = find_if_any(folder, patterns)
    if not found:
        raise InputError(f"{what}: missing", f"Put it there: {' or '.join(patterns)}.", file=folder)
    return found


def find_if_any(folder: pathlib.Path, patterns: Sequence[str]) -> list[pathlib.Path]:
    """See `find`; [] where there is none."""
    for pattern in patterns:
        fitting = {*folder.rglob(pattern), *folder.rglob(f"{pattern}.gz")}
        found = sorted((path for path in fitting if path.is_file()), key=lambda path: (path.name, path))
        stems = [path.name.removesuffix(".gz") for path in found]
        twice = next((name for name in stems if stems.count(name) > 1), None)
        if twice is not None:
            raise InputError("this file stands there twice", "Keep one of them.", file=folder, value=twice)
        if found:
            return found
    return []


def one(folder: pathlib.Path, what: str, patterns: Sequence[str]) -> pathlib.Path:
    """The one file; see `find`.

    Raises:
      InputError: there is none, or several.
    """
    found = find(folder, what, patterns)
    if len(found) > 1:
        raise InputError(f"{what}: there are several", "Keep one.", file=folder, value=[f.name for f in found])
    return found[0]


@functools.cache
def published() -> Mapping[str, Mapping[str, Any]]:
    """Name of a raw file → its {"bytes", "md5"}, as ir_datasets says them."""
    return json.loads(_PUBLISHED.read_text(encoding="utf-8"))


def state(file: str | os.PathLike) -> list[Any]:
    """What a raw file is known by: its path, size and time, for reading it is what is to be saved.

    Raises:
      InputError: it cannot be looked at.
    """
    try:
        found = os.stat(file)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "Name a raw file that is there.", file=file) from error
    return [os.path.realpath(file), found.st_size, found.st_mtime_ns]


def hashed(file: pathlib.Path, algorithm: str, bar: progress.Bar) -> str:
    """A file's checksum in hex digits; the bar goes on by its bytes."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            bar.advance(len(chunk))
    return digest.hexdigest()


def verify(files: Sequence[pathlib.Path], show: bool = True) -> dict[str, str]:
    """Name → what a raw file is beside the published one: "as published", what differs, or that no checksum is known.

    Args:
      files: to read, whole.
      show: a bar.
    """
    said = {}
    with progress.bar("Checking raw files", sum(map(os.path.getsize, files)), enabled=show) as bar:
        for file in files:
            known, size = published().get(file.name), file.stat().st_size
            if known is None:
                said[file.name] = "no checksum of it is published"
                bar.advance(size)
            elif size != known["bytes"]:
                said[file.name] = f"DIFFERS: {size:,} bytes instead of {known['bytes']:,}"
                bar.advance(size)
            else:
                same = hashed(file, "md5", bar) == known["md5"]
                said[file.name] = "as published" if same else "DIFFERS: of the same size, with another checksum"
    return said

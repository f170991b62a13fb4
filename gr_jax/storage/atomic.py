"""Files that appear whole or not at all: write beside, flush to disk, rename over."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

from gr_jax.errors import InputError
from gr_jax.storage import beside

_SPACE = {
    errno.ENOSPC: ("the disk is full", "Free some space or name a folder on another disk"),
    errno.EDQUOT: ("the disk quota is used up", "Free some space or name a folder on another disk"),
    errno.EFBIG: ("the file would be larger than the file system allows", "Name a folder on another disk"),
}
_SHORT = ("the disk took only a part of it: it is full, or a limit is reached", _SPACE[errno.ENOSPC][1])
_NAMES = {
    errno.EROFS: ("the file system is read-only", "Name a folder that can be written"),
    errno.EACCES: ("no permission to write here", "Name a folder that you may write, or change its permissions"),
    errno.EPERM: ("no permission to write here", "Name a folder that you may write, or change its permissions"),
    errno.EEXIST: ("a part of this path is a file, not a folder", "Name another folder"),
    errno.ENOTDIR: ("a part of this path is a file, not a folder", "Name another folder"),
    errno.ELOOP: ("a part of this path is a link to itself", "Name another folder"),
    errno.ENAMETOOLONG: ("this name is longer than the file system allows", "Name a shorter one"),
}


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes `data` to `path` so that a reader sees the old content or the new one, never a part.

    A link is followed; what is neither a file nor a folder (a pipe, `/dev/stdout`) is written straight.

    Raises:
      InputError: the disk is full, or `path` may not be written; what stood there is as it was.
    """
    with writing(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Yields a file to be written piece by piece, which takes the place of `path` at the end; see `write_bytes`. If
    the body raises, `path` is as it was.
    """
    if _is_straight(path):
        with explaining(path), open(path, "wb") as file:
            yield file
        return
    with _new_file(path) as (file, target):
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, target)
        beside.sync_folder(target.parent)


def check_writable(path: str | os.PathLike) -> None:
    """Tries whether `path` can be written, for work that takes long before there is something to write.

    A pipe is not tried: opening it is news for who reads it.

    Raises:
      InputError: as `writing` would where it begins.
    """
    if not _is_straight(path):
        with _new_file(path):
            pass


def _is_straight(path: str | os.PathLike) -> bool:
    """Whether something stands there that is neither a file nor a folder. The path is looked at as it was given: where
    links lead, a pipe behind /dev/stdout has no name that could be opened."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextlib.contextmanager
def _new_file(path: str | os.PathLike) -> Iterator[tuple[BinaryIO, pathlib.Path]]:
    """A file beside the path that is meant, and that path; see `beside.new_file`."""
    path = resolved(path)
    with explain_names(path), explain_full_disk(path):
        if path.is_dir():
            raise InputError("a folder stands where a file is to be written", "Name another file.", file=path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.new_file(path) as file:
            yield file, path


def write_text(path: str | os.PathLike, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike, value: object) -> None:
    """`write_text` of indented JSON with sorted keys."""
    write_text(path, render_json(value))


def render_json(value: object) -> str:
    """Indented JSON with sorted keys and a last line end."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def resolved(path: str | os.PathLike) -> pathlib.Path:
    """The path that is meant, links followed.

    Raises:
      InputError: no file can have this name: it holds a null character, or is no text.
    """
    try:
        return pathlib.Path(os.path.realpath(path))
    except (ValueError, OSError) as error:  # UnicodeEncodeError is a ValueError
        raise InputError(f"no file can have this name: {error}", "Name another.", file=path) from error


@contextlib.contextmanager
def explaining(path: str | os.PathLike) -> Iterator[None]:
    """Turns the system's refusal of a name, or a full disk, met while `path` is written into an `InputError`."""
    path = pathlib.Path(path)
    with explain_names(path), explain_full_disk(path):
        yield


@contextlib.contextmanager
def explain_names(path: pathlib.Path) -> Iterator[None]:
    """Turns the system's refusal of a name into an `InputError` about `path`; what else happens is passed on."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NAMES:
            raise
        problem, remedy = _NAMES[error.errno]
        raise InputError(problem, f"{remedy}.", file=path) from error


@contextlib.contextmanager
def explain_full_disk(path: pathlib.Path) -> Iterator[None]:
    """Turns a full disk met while `path` is written into an `InputError`; what else happens is passed on."""
    try:
        yield
    except OSError as error:
        short = error.errno is None and "requested and" in str(error)  # what NumPy says, without the system's reason
        if not short and error.errno not in _SPACE:
            raise
        problem, remedy = _SHORT if short else _SPACE[error.errno or 0]
        raise InputError(problem, f"{remedy}; what stood here before is as it was.", file=path) from error

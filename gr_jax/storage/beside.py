"""The name beside a target under which it is written first, and what writers that died left under such names.

A writer holds a lock on what it writes. The system drops the lock when the process dies, however it dies, so what can
be locked by somebody else belongs to nobody and is removed by the next writer of the same target.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import pathlib
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from typing import BinaryIO

_LONGEST_NAME = 200  # bytes of the target's name; file systems allow 255 in all
_PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 0.0)
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV}


@contextlib.contextmanager
def new_file(path: pathlib.Path) -> Iterator[BinaryIO]:
    """Opens a new file beside `path`; on leaving it is gone, unless it was renamed."""
    _remove_abandoned(path)
    while True:
        file = open(_name(path, "partial"), "xb")
        if _lock(file.fileno()) and os.path.exists(file.name):
            break
        file.close()
    try:
        with file:
            yield file
    finally:
        pathlib.Path(file.name).unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a new folder beside `path`; on leaving, what has that name then is gone."""
    _remove_abandoned(path)
    while True:
        folder = _name(path, "partial")
        folder.mkdir()
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # another writer took it for abandoned, as nobody held its lock yet
            continue
        if _lock(handle) and folder.exists():
            break
        os.close(handle)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(handle)


def _remove(folder: pathlib.Path) -> None:
    """Removes a folder that failed or was replaced. Threads of a library that gave up writing into it may not have
    noticed yet (Orbax's, on a full disk), so what cannot be removed is tried again, for two seconds in all."""
    for pause in _PAUSES:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(pause)


def replace_folder(new: pathlib.Path, old: pathlib.Path) -> None:
    """Gives `new` the name `old`; what had that name, if anything, is then at `new` or gone.

    Where the file system can exchange two names in one step there is no moment without `old`. Elsewhere what stood
    there is first moved aside, under lock; `recover` brings it back if the process dies at that moment.
    """
    sync_tree(new)
    if not _take_free_name(new, old) and not _exchange(new, old):
        aside = _name(old, "replaced")
        handle = os.open(old, os.O_RDONLY)
        try:
            _lock(handle)
            os.rename(old, aside)
            try:
                os.rename(new, old)
            except BaseException:
                os.rename(aside, old)
                raise
        finally:
            os.close(handle)
        _remove(aside)
    sync_folder(old.parent)


def recover(path: pathlib.Path) -> None:
    """Brings back the folder that a writer without exchange had moved aside when it died; waits for a living one."""
    if path.exists() or not path.parent.is_dir():
        return
    for aside in _siblings(path, "replaced"):
        with contextlib.suppress(OSError):
            handle = os.open(aside, os.O_RDONLY)
            try:
                if _lock(handle) and not path.exists():
                    os.rename(aside, path)
            finally:
                os.close(handle)


def sync_tree(folder: pathlib.Path) -> None:
    """Flushes every file under `folder` to the disk, and the folders themselves."""
    for parent, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(parent, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(pathlib.Path(parent))


def sync_folder(folder: pathlib.Path) -> None:
    """Flushes the names in `folder` to the disk, where the system knows how."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


def _name(path: pathlib.Path, role: str) -> pathlib.Path:
    return path.with_name(f".{_stem(path)}.{secrets.token_hex(4)}.{role}")


def _stem(path: pathlib.Path) -> str:
    """The target's name, or as many of its letters as there are bytes for."""
    name = path.name
    while len(os.fsencode(name)) > _LONGEST_NAME:
        name = name[:-1]
    return name


def _siblings(path: pathlib.Path, role: str) -> list[pathlib.Path]:
    pattern = re.compile(rf"\.{re.escape(_stem(path))}\.[0-9a-f]{{8}}\.{role}")
    return sorted(path.with_name(name) for name in os.listdir(path.parent) if pattern.fullmatch(name))


def _remove_abandoned(path: pathlib.Path) -> None:
    recover(path)
    for role in ("partial", "replaced") if path.exists() else ("partial",):
        for left in _siblings(path, role):
            with contextlib.suppress(OSError):
                handle = os.open(left, os.O_RDONLY)
                try:
                    if _lock(handle, wait=False):
                        shutil.rmtree(left) if left.is_dir() else left.unlink()
                finally:
                    os.close(handle)


def _take_free_name(new: pathlib.Path, old: pathlib.Path) -> bool:
    """Renames if nothing, or an empty folder, has the name `old`."""
    try:
        os.rename(new, old)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _lock(handle: int, *, wait: bool = True) -> bool:
    """Whether this process now holds the lock of the open file or folder; it goes when the handle is closed."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # held by another, or a file system without locks: then nothing is ever taken for abandoned
        return wait
    return True


def _exchange(a: pathlib.Path, b: pathlib.Path) -> bool:
    """Exchanges two names in one step (Linux's renameat2); False where the system or the file system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    current_folder, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(current_folder, os.fsencode(a), current_folder, os.fsencode(b), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), os.fspath(b))

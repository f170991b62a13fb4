"""Locks between processes: a file that one of them holds. The system lets go of what a process that dies holds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import IO

from gr_jax.storage import atomic

# What a file system without locks says.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


@contextlib.contextmanager
def locked(path: str | os.PathLike, wait: Callable[[], None]) -> Iterator[None]:
    """Only one process at a time is within; nothing is left of the lock afterwards.

    On a file system without locks every process is let in.

    Args:
      path: of the lock's file, in a folder of its own.
      wait: called before waiting for another process.

    Raises:
      InputError: the file cannot be written.
    """
    path = pathlib.Path(path)
    file = _hold(path, wait)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others' locks are in it
            path.parent.rmdir()
        file.close()


def _hold(path: pathlib.Path, wait: Callable[[], None]) -> IO:
    while True:
        with atomic.explain_names(path.parent), atomic.explain_full_disk(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = open(path, "a")
            except FileNotFoundError:  # another process has just left, and removed the folder
                continue
        try:
            _lock(file, wait)
        except BaseException:
            file.close()
            raise
        if _is_at(file, path):
            return file
        file.close()  # who held it has removed it: another process may hold one of the same name by now


def _lock(file: IO, wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wait()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_at(file: IO, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False

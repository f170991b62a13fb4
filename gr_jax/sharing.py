"""Work that the processes of a run share out: each does some of its parts, and all get the results of all.

    with processes.together("the stage results"):           # all processes come here, and do the same
        for found in sharing.in_parts("retrieving", count, answer, where="while retrieving"):
            ...

Results go through the coordinator, at some ten megabytes a second: rankings and the vectors of a sample do, those of a
corpus are files (`models.shards`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gr_jax import processes

Arrays = Mapping[str, np.ndarray]


def in_parts(name: str, count: int, work: Callable[[int], Arrays], where: str | None = None) -> Iterator[Arrays]:
    """The results of a work's parts, in order. Within `processes.together` process i of n does every n-th part from i
    on; elsewhere this process does all. A part is the same call whoever does it, so its result is the same.

    Args:
      name: of the work.
      count: of parts.
      work: number of a part → its arrays, of any types but objects.
      where: what is interrupted, such as "while mining": processes that are asked to stop end behind a part. None: they
        do not.

    Raises:
      InputError: another process failed, or did not come in time; names it.
      Stopped: all were asked to end.
    """
    left = count
    for part in rounds(count, where):
        if processes.share() == (0, 1):
            yield work(part)
            continue
        with processes.alone():  # what a part does is its own
            own = _packed(work(part)) if part < count else b""
        told = processes.exchange(name, own)[:left]
        left -= len(told)
        yield from map(_unpacked, told)


def rounds(count: int, where: str | None = None, process: tuple[int, int] | None = None) -> Iterator[int]:
    """The numbers of this process's parts: of process i of n every n-th from i on. There are as many in every process;
    one that is not below `count` is none.

    Args:
      count: of parts of all.
      where: see `in_parts`.
      process: (index, count) of this one; None: of those that do this together.

    Raises:
      Stopped: behind a part, where all were asked to end.
    """
    index, number = process or processes.share()
    # What does its work alone, beside others or within a part, comes to no point where all end.
    ends = number == processes.count() and processes.may_end() and not processes.is_alone()
    for first in range(0, count, number):
        yield first + index
        if where is not None and ends and processes.stop_here():
            raise processes.Stopped(where)


def _packed(arrays: Arrays) -> bytes:
    written = io.BytesIO()
    if any(array.dtype.hasobject for array in arrays.values()):
        raise TypeError("objects are not told to other processes")
    np.savez(written, **arrays)  # type: ignore[arg-type]
    return written.getvalue()


def _unpacked(data: bytes) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)

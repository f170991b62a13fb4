"""Lines of a raw file through several processes, in order.

What is in the air is bounded, so that memory stays flat whatever the size of the file.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gr_jax.corpus import lines
from gr_jax.errors import InputError

Batch = Sequence[tuple[int, bytes]]
_M_MMAP_THRESHOLD = -3  # of malloc.h
_WAITING = 2  # batches in the air for each process


def batches(
    file: str | os.PathLike, size: int, watch: Callable[[int], None] | None = None
) -> Iterator[list[tuple[int, bytes]]]:
    """Streams the lines of a file, `size` at a time; see `lines.read_raw_lines`."""
    batch: list[tuple[int, bytes]] = []
    for one in lines.read_raw_lines(file, watch):
        batch.append(one)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def in_order(work: Callable[[Batch], Any], given: Iterable[Batch | None], processes: int) -> Iterator[Any]:
    """What `work` makes of each batch, in their order; None for None.

    Args:
      work: is pickled where there are several processes.
      given: batches; None passes one over.
      processes: 1 works in this one.

    Raises:
      InputError: fewer than 1 process; what `work` raises is passed on.
    """
    if processes < 1:
        raise InputError("records are read by 1 process or more", "Use 1.", value=processes)
    if processes == 1:
        for batch in given:
            yield None if batch is None else work(batch)
        return
    waiting: collections.deque[concurrent.futures.Future | None] = collections.deque()
    context = multiprocessing.get_context("spawn")  # this process may have threads
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker) as pool:
        for batch in given:
            waiting.append(None if batch is None else pool.submit(work, batch))
            while len(waiting) > _WAITING * processes:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())


def return_large_blocks() -> None:
    """Has glibc hand every block of 4 MB and more, as those of many records are, back to the system when it is freed.

    By itself it keeps larger and larger ones, and in the end the process holds what nobody uses. Elsewhere this does
    nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 22)


def _start_worker() -> None:
    return_large_blocks()
    _end_with_parent()


def _end_with_parent() -> None:
    """Ends a worker whose parent was killed, which its own end of their pipe would hide from it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _result(future: concurrent.futures.Future | None) -> Any:
    return None if future is None else future.result()

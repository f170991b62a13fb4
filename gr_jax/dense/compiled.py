"""What compiled loops share: how they are compiled, and one number by which scored places are sorted.

Loops are compiled by numba when their module is first imported: seconds the first time, then read from numba's cache
(beside the module, in the user's cache folder, or in NUMBA_CACHE_DIR), where there is a folder for one. Each takes one
kind of arguments and no others: they may be read-only, as mapped files are, and several processes that fill the cache
at once write the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gr_jax.dense.base import optional

numba = optional("numba", "Search by compiled loops")

one_at_a_time = threading.Lock()  # a search uses all threads, and numba's simplest thread pool may not be entered twice


def read(kind: Any, dimensions: int = 1) -> Any:
    """Arrays that are read: such a signature takes writable ones too."""
    return numba.types.Array(kind, dimensions, "C", readonly=True)


INT32, INT32_2, INT64 = read(numba.int32), read(numba.int32, 2), read(numba.int64)
INT8_2, FLOAT32, FLOAT32_2 = read(numba.int8, 2), read(numba.float32), read(numba.float32, 2)
BOOL, BOOL_2 = read(numba.boolean), read(numba.boolean, 2)
NUMBER, FLAG = numba.int64, numba.boolean


def loop(*arguments: Any, parallel: bool = False) -> Callable[[Callable], Callable]:
    """Compiles for these types of arguments, or reads what was compiled."""

    def compile_(function: Callable) -> Callable:
        try:
            return numba.njit(arguments, cache=True, nogil=True, parallel=parallel)(function)
        except Exception:  # no folder may be written, the disk is full, what was kept is damaged: it does without
            return numba.njit(arguments, nogil=True, parallel=parallel)(function)

    return compile_


@numba.njit(inline="always", nogil=True)
def key_of(bits, place):
    """One number by which a higher score, then a lower place, comes first. bits: of the float32 score."""
    bits = np.uint64(bits)
    rising = bits ^ np.uint64(0xFFFFFFFF) if bits >> np.uint64(31) else bits | np.uint64(0x80000000)
    return ((rising ^ np.uint64(0xFFFFFFFF)) << np.uint64(32)) | np.uint64(place)


@numba.njit(inline="always", nogil=True)
def bits_of(key):
    rising = (key >> np.uint64(32)) ^ np.uint64(0xFFFFFFFF)
    return np.uint32(rising & np.uint64(0x7FFFFFFF) if rising >> np.uint64(31) else rising ^ np.uint64(0xFFFFFFFF))

"""What compiled loops share: how they are compiled, and one number by which scored places are sorted.

Loops are compiled by numba when their module is first imported: seconds the first time, then read from numba's cache
(beside the module, in the user's cache folder, or in NUMBA_CACHE_DIR), where there is a folder for one. Each takes one
kind of arguments and no others: they may be read-only, as mapped files are, and several processes that fill the cache
at once write the same. The cache knows a loop by its own module: who changes a function here empties it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gr_jax.dense.base import optional

numba = optional("numba", "Search by compiled loops")


def read(kind: Any, dimensions: int = 1) -> Any:
    """Arrays that are read: such a signature takes writable ones too."""
    return numba.types.Array(kind, dimensions, "C", readonly=True)


INT32, INT32_2, INT64 = read(numba.int32), read(numba.int32, 2), read(numba.int64)
INT8_2, INT16_2 = read(numba.int8, 2), read(numba.int16, 2)
FLOAT32, FLOAT32_2 = read(numba.float32), read(numba.float32, 2)
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


@numba.njit(nogil=True)
def above(x, bound):
    """How many numbers are above a bound: processors compare many at once where none is a reason to stop."""
    count = 0
    for i in range(len(x)):
        count += x[i] > bound
    return count


@numba.njit(inline="always", nogil=True)
def _part(keys, first, last):
    """Puts what is smaller than a middling key before it, the rest behind; returns where it is then."""
    middle = (first + last) >> 1
    a, b, c = keys[first], keys[middle], keys[last - 1]
    if a < b:
        place = middle if b < c else (last - 1 if a < c else first)
    else:
        place = first if a < c else (last - 1 if b < c else middle)
    pivot = keys[place]
    keys[place] = keys[last - 1]
    keys[last - 1] = pivot
    low = first
    for i in range(first, last - 1):  # no branch that could be guessed wrong
        key = keys[i]
        keys[i] = keys[low]
        keys[low] = key
        low += np.int64(key < pivot)
    keys[last - 1] = keys[low]
    keys[low] = pivot
    return low


@numba.njit(nogil=True)
def smallest(keys, count, k):
    """Puts the k smallest of the first `count` keys first, the largest of them last; 1 ≤ k ≤ count. Thrice as fast as
    numba's partition of a few hundred."""
    first, last = 0, count
    while last - first > 1:
        place = _part(keys, first, last)
        if place == k - 1:
            return
        if place < k - 1:
            first = place + 1
        else:
            last = place


@numba.njit(nogil=True)
def sort(keys, count):
    """Sorts the first `count` keys."""
    waiting = np.empty((64, 2), np.int64)  # the larger parts: each is half of the one before at most
    depth, first, last = 0, 0, count
    while True:
        while last - first > 12:
            place = _part(keys, first, last)
            if place - first < last - place - 1:
                waiting[depth, 0], waiting[depth, 1] = place + 1, last
                last = place
            else:
                waiting[depth, 0], waiting[depth, 1] = first, place
                first = place + 1
            depth += 1
        for i in range(first + 1, last):
            key, j = keys[i], i
            while j > first and keys[j - 1] > key:
                keys[j] = keys[j - 1]
                j -= 1
            keys[j] = key
        if depth == 0:
            return
        depth -= 1
        first, last = waiting[depth, 0], waiting[depth, 1]

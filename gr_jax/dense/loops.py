"""The loops of `kernels`, compiled by numba when this module is first imported: seconds the first time, then read from
numba's cache (beside this file, in the user's cache folder, or in NUMBA_CACHE_DIR), where there is a folder for one.

Each loop takes one kind of arguments and no others: they may be read-only, as mapped files are, and several processes
that fill the cache at once write the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gr_jax.dense.base import optional

numba = optional("numba", "Clustered search by compiled loops")
prange = numba.prange

_CHUNK = 32  # scores whose largest is compared first


def _read(kind: Any, dimensions: int = 1) -> Any:
    """Arrays that are read: such a signature takes writable ones too."""
    return numba.types.Array(kind, dimensions, "C", readonly=True)


_INT32, _INT32_2, _INT64 = _read(numba.int32), _read(numba.int32, 2), _read(numba.int64)
_INT8_2, _FLOAT32, _FLOAT32_2 = _read(numba.int8, 2), _read(numba.float32), _read(numba.float32, 2)
_BOOL, _BOOL_2 = _read(numba.boolean), _read(numba.boolean, 2)
_SCORES, _NUMBER, _FLAG = numba.float32[::1], numba.int64, numba.boolean


def _loop(*arguments: Any, parallel: bool = False) -> Callable[[Callable], Callable]:
    """Compiles for these types of arguments, or reads what was compiled."""

    def compile_(function: Callable) -> Callable:
        try:
            return numba.njit(arguments, cache=True, nogil=True, parallel=parallel)(function)
        except Exception:  # no folder may be written, the disk is full, what was kept is damaged: it does without
            return numba.njit(arguments, nogil=True, parallel=parallel)(function)

    return compile_


@_loop(_INT32_2, _INT64, _INT64)
def group(clusters, offsets, starts):
    """Sorts the (query, choice) pairs by cluster. Returns where each cluster's pairs start, the pairs' queries, and
    where each pair's scores stand."""
    batch, chosen = clusters.shape
    groups = np.zeros(len(offsets), np.int64)
    for b in range(batch):
        for j in range(chosen):
            if clusters[b, j] >= 0:
                groups[clusters[b, j] + 1] += 1
    for c in range(1, len(groups)):
        groups[c] += groups[c - 1]
    filled = groups[:-1].copy()
    pairs = np.empty(groups[-1], np.int64)
    places = np.empty(groups[-1], np.int64)
    for b in range(batch):
        place = starts[b]
        for j in range(chosen):
            c = clusters[b, j]
            if c >= 0:
                pairs[filled[c]] = b
                places[filled[c]] = place
                place += offsets[c + 1] - offsets[c]
                filled[c] += 1
    return groups, pairs, places


@numba.njit(fastmath=True, nogil=True)
def products(p, q, v, w, x, y):
    """Of two queries with four rows: the sums stay in registers, every number is loaded once."""
    pv = pw = px = py = qv = qw = qx = qy = np.float32(0)
    for i in range(p.shape[0]):
        a, b, s, t, u, z = p[i], q[i], v[i], w[i], x[i], y[i]
        pv += a * s
        pw += a * t
        px += a * u
        py += a * z
        qv += b * s
        qw += b * t
        qx += b * u
        qy += b * z
    return pv, pw, px, py, qv, qw, qx, qy


@numba.njit(nogil=True)
def code_products(p, v, w, x, y):
    """Of one query with four rows of codes: of two queries at once, what widens the numbers costs more."""
    pv = pw = px = py = np.int32(0)
    for i in range(p.shape[0]):
        a, s, t, u, z = np.int32(p[i]), np.int32(v[i]), np.int32(w[i]), np.int32(x[i]), np.int32(y[i])
        pv += np.int32(a * s)
        pw += np.int32(a * t)
        px += np.int32(a * u)
        py += np.int32(a * z)
    return pv, pw, px, py


@_loop(_FLOAT32_2, _FLOAT32_2, _INT64, _INT64, _INT64, _INT64, _SCORES, parallel=True)
def score(rows, queries, offsets, groups, pairs, places, scores):
    for c in prange(len(offsets) - 1):
        first, last = offsets[c], offsets[c + 1]
        for r in range(first, last if groups[c + 1] > groups[c] else first, 4):
            e, f, g = min(r + 1, last - 1), min(r + 2, last - 1), min(r + 3, last - 1)
            for m in range(groups[c], groups[c + 1], 2):
                n = min(m + 1, groups[c + 1] - 1)
                found = products(queries[pairs[m]], queries[pairs[n]], rows[r], rows[e], rows[f], rows[g])
                # What stands twice at an end is written twice: the same number.
                at = places[m] - first
                scores[at + r], scores[at + e], scores[at + f], scores[at + g] = found[:4]
                at = places[n] - first
                scores[at + r], scores[at + e], scores[at + f], scores[at + g] = found[4:]


@_loop(_INT8_2, _FLOAT32, _INT8_2, _FLOAT32, _INT64, _INT64, _INT64, _INT64, _SCORES, parallel=True)
def score_codes(codes, row_scales, queries, scales, offsets, groups, pairs, places, scores):
    for c in prange(len(offsets) - 1):
        first, last = offsets[c], offsets[c + 1]
        for r in range(first, last if groups[c + 1] > groups[c] else first, 4):
            e, f, g = min(r + 1, last - 1), min(r + 2, last - 1), min(r + 3, last - 1)
            for m in range(groups[c], groups[c + 1]):
                found = code_products(queries[pairs[m]], codes[r], codes[e], codes[f], codes[g])
                at, by = places[m] - first, scales[pairs[m]]
                scores[at + r] = np.float32(found[0]) * by * row_scales[r]
                scores[at + e] = np.float32(found[1]) * by * row_scales[e]
                scores[at + f] = np.float32(found[2]) * by * row_scales[f]
                scores[at + g] = np.float32(found[3]) * by * row_scales[g]


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


@numba.njit(fastmath=True, nogil=True)
def largest(x, start, stop):
    found = x[start]
    for i in range(start + 1, stop):
        found = max(found, x[i])
    return found


@numba.njit(nogil=True)
def lower_bound(threshold, extra, tanh):
    bound = threshold - extra
    bound -= np.float32(1e-6) * (abs(threshold) + abs(extra))
    if not tanh or bound == -np.inf:
        return bound
    if bound <= -1:
        return np.float32(-np.inf)
    # Where tanh is flat, many products give one float: all of them must get through.
    return np.float32(math.atanh(min(bound, np.float32(0.9999)))) - np.float32(1e-4)


@numba.njit(nogil=True)
def write_best(keys, count, k, unique, positions, scores):
    """Writes the first k of sorted keys; each place once unless they are `unique` anyway."""
    bits = np.empty(1, np.uint32)
    as_float = bits.view(np.float32)
    written = 0
    for i in range(count):
        if written == k:
            break
        place = np.int32(keys[i] & np.uint64(0xFFFFFFFF))
        again = False
        if not unique:
            for j in range(written):
                again |= positions[j] == place
        if not again:
            bits[0] = bits_of(keys[i])
            positions[written], scores[written] = place, as_float[0]
            written += 1


@numba.njit(nogil=True)
def select_one(scores, at, clusters, bonus, offsets, documents, live, allowed, k, most, tanh, by_entry, out):
    """The best of one query, whose scores stand from `at` on."""
    keys = np.empty(2 * most + 64, np.uint64)
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    count = 0
    limit, threshold = np.uint64(0xFFFFFFFFFFFFFFFF), np.float32(-np.inf)  # of the best `most` so far
    for j in range(len(clusters)):
        c = clusters[j]
        if c < 0:
            continue
        first, size = offsets[c], offsets[c + 1] - offsets[c]
        extra = bonus[j] if len(bonus) else np.float32(0)
        bound = lower_bound(threshold, extra, tanh)
        for chunk in range(at, at + size, _CHUNK):
            stop = min(chunk + _CHUNK, at + size)
            if largest(scores, chunk, stop) < bound:
                continue
            for i in range(chunk, stop):
                if scores[i] < bound:
                    continue
                entry = first + i - at
                document = documents[entry]
                # Looked up only where there is something to find: each is a jump through memory.
                if (len(live) and not live[document]) or (len(allowed) and not allowed[document]):
                    continue
                value[0] = (np.float32(math.tanh(scores[i])) if tanh else scores[i]) + extra + np.float32(0)
                key = key_of(bits[0], entry if by_entry else document)
                if key >= limit:
                    continue
                keys[count] = key
                count += 1
                if count == len(keys):
                    keys[:] = np.partition(keys, most - 1)
                    count = most
                    limit = keys[most - 1]
                    bits[0] = bits_of(limit)
                    threshold = value[0]
                    bound = lower_bound(threshold, extra, tanh)
        at += size
    if by_entry:  # candidates, whose order does not matter
        if count > most:
            keys[:count] = np.partition(keys[:count], most - 1)
    else:
        keys[:count].sort()
    write_best(keys, min(count, most), k, most == k, out[0], out[1])


@_loop(
    _FLOAT32, _INT64, _INT32_2, _FLOAT32_2, _INT64, _INT32, _BOOL, _BOOL_2, _NUMBER, _NUMBER, _FLAG, _FLAG,
    parallel=True,
)  # fmt: skip
def select(scores, starts, clusters, bonus, offsets, documents, live, allowed, k, most, tanh, by_entry):
    batch = len(clusters)
    positions = np.full((batch, k), np.int32(-1), np.int32)
    best = np.full((batch, k), np.float32(-np.inf), np.float32)
    for b in prange(batch):
        filters = allowed[min(np.int64(b), len(allowed) - 1)]  # one row may stand for all
        out = (positions[b], best[b])
        select_one(
            scores,
            starts[b],
            clusters[b],
            bonus[b],
            offsets,
            documents,
            live,
            filters,
            k,
            most,
            tanh,
            by_entry,
            out,
        )
    return positions, best


@numba.njit(nogil=True)
def rescore_one(rows, query, offsets, clusters, bonus, documents, entries, k, unique, tanh, out):
    count = 0
    while count < len(entries) and entries[count] >= 0:
        count += 1
    keys = np.empty(count, np.uint64)
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    for i in range(0, count, 4):
        e, f, g = min(i + 1, count - 1), min(i + 2, count - 1), min(i + 3, count - 1)
        found = products(query, query, rows[entries[i]], rows[entries[e]], rows[entries[f]], rows[entries[g]])
        for j in range(min(4, count - i)):
            entry, extra = entries[i + j], np.float32(0)
            for m in range(len(bonus)):
                c = clusters[m]
                if c >= 0 and offsets[c] <= entry < offsets[c + 1]:
                    extra = bonus[m]
            value[0] = (np.float32(math.tanh(found[j])) if tanh else found[j]) + extra + np.float32(0)
            keys[i + j] = key_of(bits[0], documents[entry])
    keys.sort()
    write_best(keys, count, k, unique, out[0], out[1])


@_loop(_FLOAT32_2, _FLOAT32_2, _INT64, _INT32_2, _FLOAT32_2, _INT32, _INT32_2, _NUMBER, _FLAG, _FLAG, parallel=True)
def rescore(rows, queries, offsets, clusters, bonus, documents, entries, k, unique, tanh):
    batch = len(entries)
    positions = np.full((batch, k), np.int32(-1), np.int32)
    best = np.full((batch, k), np.float32(-np.inf), np.float32)
    for b in prange(batch):
        out = (positions[b], best[b])
        rescore_one(rows, queries[b], offsets, clusters[b], bonus[b], documents, entries[b], k, unique, tanh, out)
    return positions, best

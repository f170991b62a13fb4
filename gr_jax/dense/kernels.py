"""Scoring the chosen clusters of each query on the CPU, compiled by numba.

The (query, cluster) pairs of a batch are grouped by cluster, so that a tile is read from memory once, however many
queries have chosen it: nothing is left that a product with all documents could save. Then every query picks its best
from its own scores. A score is the same number whatever else is in the batch: one routine makes all of them, for two
queries and four rows at a time.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gr_jax.dense.base import Found, nothing_found, optional
from gr_jax.dense.tiles import Tiles, candidates

_MOST_SCORES = 1 << 24  # scores that are held at once: more queries together read a tile less often
_CHUNK = 32  # scores whose largest is compared first


class Kernels(NamedTuple):
    """Compiled functions."""

    group: Callable
    score: Callable
    score_codes: Callable
    select: Callable
    rescore: Callable


def search(
    tiles: Tiles,
    queries: np.ndarray,
    clusters: np.ndarray,
    bonus: np.ndarray,
    k: int,
    live: np.ndarray,
    allowed: np.ndarray,
    *,
    tanh: bool,
    overfetch: float,
) -> Found:
    """The k best documents of each query among those of its clusters.

    Args:
      tiles: of all clusters.
      queries: float32[batch, d].
      clusters: int32[batch, chosen]; −1 chooses none.
      bonus: float32[batch, chosen], added to the score of every document of that cluster; [batch, 0] adds nothing.
      k: documents of each query.
      live: bool[documents]; empty where all are.
      allowed: bool[1 or batch, documents]; [1, 0] allows all.
      tanh: scores are tanh(q·d) + bonus instead of q·d + bonus.
      overfetch: with int8 codes, about how many times k candidates are scored again from the float32 rows.

    Returns:
      Positions and scores, as `VectorSearch.search`.
    """
    # Loops are compiled for each kind of argument: one that may be written, as here, and one that may not are two.
    queries, clusters, bonus, allowed = (
        np.require(x, requirements=("C", "W")) for x in (queries, clusters, bonus, allowed)
    )
    found = nothing_found(len(queries), k)
    sizes = np.diff(tiles.offsets)
    lengths = np.where(clusters >= 0, sizes[clusters], 0).sum(axis=1)
    ends = np.cumsum(lengths)
    start = 0
    with _lock:  # one batch uses all threads, and numba's simplest thread pool may not be entered twice
        while start < len(queries):
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + _MOST_SCORES, side="right")))
            part = slice(start, stop)
            filters = allowed if len(allowed) == 1 else allowed[part]
            answer = _search(
                tiles, queries[part], clusters[part], bonus[part], k, live, filters, lengths[part], tanh, overfetch
            )
            found[0][part], found[1][part] = answer
            start = stop
    return found


def _search(tiles, queries, clusters, bonus, k, live, allowed, lengths, tanh, overfetch) -> Found:
    compiled = kernels()
    starts = np.zeros(len(queries) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    groups, pairs, places = compiled.group(clusters, tiles.offsets, starts)
    scores = _scratch(int(starts[-1]))
    most, unique = k * tiles.multiplicity, tiles.multiplicity == 1
    if tiles.codes is None:
        compiled.score(tiles.rows, queries, tiles.offsets, groups, pairs, places, scores)
        return compiled.select(
            scores, starts, clusters, bonus, tiles.offsets, tiles.documents, live, allowed, k, most, tanh, False
        )
    codes = tiles.codes
    scaled = queries * codes.dimension_scales
    scales = np.maximum(np.abs(scaled).max(axis=1), np.float32(1e-30)) / np.float32(127)
    rounded = np.rint(scaled / scales[:, None]).astype(np.int8)
    compiled.score_codes(codes.codes, codes.row_scales, rounded, scales, tiles.offsets, groups, pairs, places, scores)
    most = candidates(most, overfetch)
    entries, _ = compiled.select(
        scores, starts, clusters, bonus, tiles.offsets, tiles.documents, live, allowed, most, most, tanh, True
    )
    return compiled.rescore(
        tiles.rows, queries, tiles.offsets, clusters, bonus, tiles.documents, entries, k, unique, tanh
    )


_lock = threading.Lock()
_kept: dict[str, np.ndarray] = {}


def _scratch(length: int) -> np.ndarray:
    """Room for scores, kept between calls: fresh memory costs as much as filling it."""
    room = _kept.get("scores")
    if room is None or len(room) < length:
        room = _kept["scores"] = np.empty(max(length, 1 << 16), np.float32)
    return room[:length]


@functools.cache
def kernels() -> Kernels:
    """Compiles them, once a process; seconds.

    Raises:
      InputError: numba is not installed.
    """
    return _build(optional("numba", "Clustered search by compiled loops"))


def _build(numba: Any) -> Kernels:
    prange = numba.prange
    plain = functools.partial(numba.njit, cache=False, nogil=True)

    @plain
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

    @plain(fastmath=True)
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

    @plain
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

    @plain(parallel=True)
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

    @plain(parallel=True)
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

    @plain(inline="always")
    def key_of(bits, place):
        """One number by which a higher score, then a lower place, comes first. bits: of the float32 score."""
        bits = np.uint64(bits)
        rising = bits ^ np.uint64(0xFFFFFFFF) if bits >> np.uint64(31) else bits | np.uint64(0x80000000)
        return ((rising ^ np.uint64(0xFFFFFFFF)) << np.uint64(32)) | np.uint64(place)

    @plain(inline="always")
    def bits_of(key):
        rising = (key >> np.uint64(32)) ^ np.uint64(0xFFFFFFFF)
        return np.uint32(rising & np.uint64(0x7FFFFFFF) if rising >> np.uint64(31) else rising ^ np.uint64(0xFFFFFFFF))

    @plain(fastmath=True)
    def largest(x, start, stop):
        found = x[start]
        for i in range(start + 1, stop):
            found = max(found, x[i])
        return found

    @plain
    def lower_bound(threshold, extra, tanh):
        bound = threshold - extra
        bound -= np.float32(1e-6) * (abs(threshold) + abs(extra))
        if not tanh or bound == -np.inf:
            return bound
        if bound <= -1:
            return np.float32(-np.inf)
        # Where tanh is flat, many products give one float: all of them must get through.
        return np.float32(math.atanh(min(bound, np.float32(0.9999)))) - np.float32(1e-4)

    @plain
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

    @plain
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

    @plain(parallel=True)
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

    @plain
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

    @plain(parallel=True)
    def rescore(rows, queries, offsets, clusters, bonus, documents, entries, k, unique, tanh):
        batch = len(entries)
        positions = np.full((batch, k), np.int32(-1), np.int32)
        best = np.full((batch, k), np.float32(-np.inf), np.float32)
        for b in prange(batch):
            out = (positions[b], best[b])
            rescore_one(rows, queries[b], offsets, clusters[b], bonus[b], documents, entries[b], k, unique, tanh, out)
        return positions, best

    return Kernels(group, score, score_codes, select, rescore)

"""The loops of `kernels`, compiled by numba; see `compiled`."""

from __future__ import annotations

import math

import numpy as np

from gr_jax.dense.compiled import (
    BOOL,
    BOOL_2,
    FLAG,
    FLOAT32,
    FLOAT32_2,
    INT8_2,
    INT16_2,
    INT32,
    INT32_2,
    INT64,
    NUMBER,
    bits_of,
    key_of,
    loop,
    numba,
    smallest,
    sort,
)

prange = numba.prange

_SCORES = numba.float32[::1]
_CHUNK = 32  # scores that are compared at once


@loop(INT32_2, INT64, INT64)
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
def product(rows, r, queries, b):
    """Of one query with one row: memory gives rows that are read one behind the other nearly twice as fast as four at a
    time, and a score is the same number whatever else is in the batch."""
    found = np.float32(0)
    for i in range(rows.shape[1]):
        found += queries[b, i] * rows[r, i]
    return found


@numba.njit(nogil=True)
def code_product(codes, r, queries, b):
    """Of 16 bits with 8, in 32: what processors multiply and add at once."""
    found = np.int32(0)
    for i in range(codes.shape[1]):
        found = np.int32(found + np.int32(np.int16(queries[b, i]) * np.int16(codes[r, i])))
    return found


@loop(FLOAT32_2, FLOAT32)
def rounded(queries, dimension_scales):
    """Queries as int16, and their scales: as fine as the sum of their products with int8 codes fits into 32 bits."""
    codes = np.empty(queries.shape, np.int16)
    scales = np.empty(len(queries), np.float32)
    levels = np.float32(min(32767, (2**31 - 1) // (127 * max(1, queries.shape[1]))))
    for b in range(len(queries)):
        most = np.float32(1e-30)
        for i in range(len(dimension_scales)):
            most = max(most, abs(queries[b, i] * dimension_scales[i]))
        scales[b] = most / levels
        for i in range(len(dimension_scales)):
            codes[b, i] = np.int16(np.rint(queries[b, i] * dimension_scales[i] / scales[b]))
    return codes, scales


# The loops over rows are functions of their own: inside of larger ones they are compiled into code half as fast.


@numba.njit(nogil=True)
def score_rows(rows, first, last, queries, pairs, places, scores):
    for r in range(first, last):
        for m in range(len(pairs)):
            scores[places[m] + r - first] = product(rows, r, queries, pairs[m])


@numba.njit(nogil=True)
def score_codes_of_rows(codes, row_scales, first, last, queries, scales, pairs, places, scores):
    for r in range(first, last):
        for m in range(len(pairs)):
            found = np.float32(code_product(codes, r, queries, pairs[m]))
            scores[places[m] + r - first] = found * scales[pairs[m]] * row_scales[r]


@loop(FLOAT32_2, FLOAT32_2, INT64, INT64, INT64, INT64, _SCORES, parallel=True)
def score(rows, queries, offsets, groups, pairs, places, scores):
    for c in prange(len(offsets) - 1):
        of = slice(groups[c], groups[c + 1])
        if groups[c + 1] > groups[c]:
            score_rows(rows, offsets[c], offsets[c + 1], queries, pairs[of], places[of], scores)


@loop(INT8_2, FLOAT32, INT16_2, FLOAT32, INT64, INT64, INT64, INT64, _SCORES, parallel=True)
def score_codes(codes, row_scales, queries, scales, offsets, groups, pairs, places, scores):
    for c in prange(len(offsets) - 1):
        of = slice(groups[c], groups[c + 1])
        if groups[c + 1] > groups[c]:
            score_codes_of_rows(
                codes, row_scales, offsets[c], offsets[c + 1], queries, scales, pairs[of], places[of], scores
            )


@numba.njit(nogil=True)
def reach(x, bound):
    """How many numbers reach a bound: processors compare many at once where none is a reason to stop."""
    count = 0
    for i in range(len(x)):
        count += x[i] >= bound
    return count


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
            if not reach(scores[chunk:stop], bound):
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
                    smallest(keys, count, most)
                    count = most
                    limit = keys[most - 1]
                    bits[0] = bits_of(limit)
                    threshold = value[0]
                    bound = lower_bound(threshold, extra, tanh)
        at += size
    if by_entry:  # candidates, whose order does not matter
        if count > most:
            smallest(keys, count, most)
    else:
        if count > most:
            smallest(keys, count, most)
        sort(keys, min(count, most))
    write_best(keys, min(count, most), k, most == k, out[0], out[1])


@loop(
    FLOAT32, INT64, INT32_2, FLOAT32_2, INT64, INT32, BOOL, BOOL_2, NUMBER, NUMBER, FLAG, FLAG,
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
def rescore_one(rows, queries, b, offsets, clusters, bonus, documents, entries, k, unique, tanh, out):
    count = 0
    while count < len(entries) and entries[count] >= 0:
        count += 1
    keys = np.empty(count, np.uint64)
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    for i in range(count):
        entry, extra = entries[i], np.float32(0)
        for m in range(len(bonus)):
            c = clusters[m]
            if c >= 0 and offsets[c] <= entry < offsets[c + 1]:
                extra = bonus[m]
        found = product(rows, entry, queries, b)
        value[0] = (np.float32(math.tanh(found)) if tanh else found) + extra + np.float32(0)
        keys[i] = key_of(bits[0], documents[entry])
    sort(keys, count)
    write_best(keys, count, k, unique, out[0], out[1])


@loop(FLOAT32_2, FLOAT32_2, INT64, INT32_2, FLOAT32_2, INT32, INT32_2, NUMBER, FLAG, FLAG, parallel=True)
def rescore(rows, queries, offsets, clusters, bonus, documents, entries, k, unique, tanh):
    batch = len(entries)
    positions = np.full((batch, k), np.int32(-1), np.int32)
    best = np.full((batch, k), np.float32(-np.inf), np.float32)
    for b in prange(batch):
        out = (positions[b], best[b])
        rescore_one(rows, queries, b, offsets, clusters[b], bonus[b], documents, entries[b], k, unique, tanh, out)
    return positions, best


@numba.njit(nogil=True)
def starts_of(offsets, clusters):
    """Where the scores of each chosen cluster start, and how many there are."""
    starts = np.zeros(len(clusters) + 1, np.int64)
    for j in range(len(clusters)):
        c = clusters[j]
        starts[j + 1] = starts[j] + (offsets[c + 1] - offsets[c] if c >= 0 else 0)
    return starts


@numba.njit(nogil=True)
def score_cluster(rows, queries, first, last, scores):
    for r in range(first, last):
        scores[r - first] = product(rows, r, queries, 0)


@numba.njit(nogil=True)
def score_codes_of_cluster(codes, row_scales, queries, scale, first, last, scores):
    for r in range(first, last):
        scores[r - first] = np.float32(code_product(codes, r, queries, 0)) * scale * row_scales[r]


# For one query, by one thread and by all.


@loop(FLOAT32_2, FLOAT32_2, INT64, INT32_2, _SCORES)
def score_alone(rows, queries, offsets, clusters, scores):
    starts = starts_of(offsets, clusters[0])
    for j in range(clusters.shape[1]):
        if starts[j + 1] > starts[j]:
            c = clusters[0, j]
            score_cluster(rows, queries, offsets[c], offsets[c + 1], scores[starts[j] : starts[j + 1]])


@loop(FLOAT32_2, FLOAT32_2, INT64, INT32_2, _SCORES, parallel=True)
def score_together(rows, queries, offsets, clusters, scores):
    starts = starts_of(offsets, clusters[0])
    for j in prange(clusters.shape[1]):
        if starts[j + 1] > starts[j]:
            c = clusters[0, j]
            score_cluster(rows, queries, offsets[c], offsets[c + 1], scores[starts[j] : starts[j + 1]])


@loop(INT8_2, FLOAT32, INT16_2, FLOAT32, INT64, INT32_2, _SCORES)
def score_codes_alone(codes, row_scales, queries, scales, offsets, clusters, scores):
    starts = starts_of(offsets, clusters[0])
    for j in range(clusters.shape[1]):
        if starts[j + 1] > starts[j]:
            c = clusters[0, j]
            some = scores[starts[j] : starts[j + 1]]
            score_codes_of_cluster(codes, row_scales, queries, scales[0], offsets[c], offsets[c + 1], some)


@loop(INT8_2, FLOAT32, INT16_2, FLOAT32, INT64, INT32_2, _SCORES, parallel=True)
def score_codes_together(codes, row_scales, queries, scales, offsets, clusters, scores):
    starts = starts_of(offsets, clusters[0])
    for j in prange(clusters.shape[1]):
        if starts[j + 1] > starts[j]:
            c = clusters[0, j]
            some = scores[starts[j] : starts[j + 1]]
            score_codes_of_cluster(codes, row_scales, queries, scales[0], offsets[c], offsets[c + 1], some)


@loop(_SCORES, INT64, INT32, INT32_2, FLOAT32_2, BOOL, BOOL_2, NUMBER, NUMBER, FLAG)
def select_alone(scores, offsets, documents, clusters, bonus, live, allowed, k, most, tanh):
    """`select` for one query, on one thread."""
    positions = np.full((1, k), np.int32(-1), np.int32)
    best = np.full((1, k), np.float32(-np.inf), np.float32)
    out = (positions[0], best[0])
    select_one(scores, 0, clusters[0], bonus[0], offsets, documents, live, allowed[0], k, most, tanh, False, out)
    return positions, best


@loop(_SCORES, FLOAT32_2, FLOAT32_2, INT64, INT32, INT32_2, FLOAT32_2, BOOL, BOOL_2, NUMBER, NUMBER, FLAG, FLAG)
def select_codes_alone(
    scores, rows, queries, offsets, documents, clusters, bonus, live, allowed, k, most, unique, tanh
):  # fmt: skip
    """`select` and `rescore` for one query, on one thread."""
    entries = np.full(most, np.int32(-1), np.int32)
    out = (entries, np.empty(most, np.float32))
    select_one(scores, 0, clusters[0], bonus[0], offsets, documents, live, allowed[0], most, most, tanh, True, out)
    positions = np.full((1, k), np.int32(-1), np.int32)
    best = np.full((1, k), np.float32(-np.inf), np.float32)
    out = (positions[0], best[0])
    rescore_one(rows, queries, 0, offsets, clusters[0], bonus[0], documents, entries, k, unique, tanh, out)
    return positions, best

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
    INT32,
    INT32_2,
    INT64,
    NUMBER,
    bits_of,
    key_of,
    loop,
    numba,
)

prange = numba.prange

_SCORES = numba.float32[::1]
_CHUNK = 32  # scores whose largest is compared first


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


@loop(FLOAT32_2, FLOAT32_2, INT64, INT64, INT64, INT64, _SCORES, parallel=True)
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


@loop(INT8_2, FLOAT32, INT8_2, FLOAT32, INT64, INT64, INT64, INT64, _SCORES, parallel=True)
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


@loop(FLOAT32_2, FLOAT32_2, INT64, INT32_2, FLOAT32_2, INT32, INT32_2, NUMBER, FLAG, FLAG, parallel=True)
def rescore(rows, queries, offsets, clusters, bonus, documents, entries, k, unique, tanh):
    batch = len(entries)
    positions = np.full((batch, k), np.int32(-1), np.int32)
    best = np.full((batch, k), np.float32(-np.inf), np.float32)
    for b in prange(batch):
        out = (positions[b], best[b])
        rescore_one(rows, queries[b], offsets, clusters[b], bonus[b], documents, entries[b], k, unique, tanh, out)
    return positions, best


@numba.njit(fastmath=True, nogil=True)
def products_of_one(p, v, w, x, y):
    pv = pw = px = py = np.float32(0)
    for i in range(p.shape[0]):
        a = p[i]
        pv += a * v[i]
        pw += a * w[i]
        px += a * x[i]
        py += a * y[i]
    return pv, pw, px, py


@numba.njit(nogil=True)
def places_of(offsets, clusters):
    """Where the scores of each of the clusters stand, one behind the other; the last: how many there are."""
    places = np.zeros(len(clusters) + 1, np.int64)
    for j in range(len(clusters)):
        c = clusters[j]
        places[j + 1] = places[j] + (offsets[c + 1] - offsets[c] if c >= 0 else 0)
    return places


@numba.njit(nogil=True)
def score_one(rows, query, first, last, scores):
    for r in range(first, last, 4):
        e, f, g = min(r + 1, last - 1), min(r + 2, last - 1), min(r + 3, last - 1)
        found = products_of_one(query, rows[r], rows[e], rows[f], rows[g])
        scores[r - first], scores[e - first], scores[f - first], scores[g - first] = found


@numba.njit(nogil=True)
def score_codes_one(codes, row_scales, query, by, first, last, scores):
    for r in range(first, last, 4):
        e, f, g = min(r + 1, last - 1), min(r + 2, last - 1), min(r + 3, last - 1)
        found = code_products(query, codes[r], codes[e], codes[f], codes[g])
        scores[r - first] = np.float32(found[0]) * by * row_scales[r]
        scores[e - first] = np.float32(found[1]) * by * row_scales[e]
        scores[f - first] = np.float32(found[2]) * by * row_scales[f]
        scores[g - first] = np.float32(found[3]) * by * row_scales[g]


@loop(FLOAT32_2, FLOAT32, INT64, INT32, INT32, FLOAT32, BOOL, BOOL, NUMBER, NUMBER, FLAG)
def search_one(rows, query, offsets, documents, clusters, bonus, live, allowed, k, most, tanh):
    """One query's best: little work, of which starting threads would be a part."""
    places = places_of(offsets, clusters)
    scores = np.empty(places[-1], np.float32)
    for j in range(len(clusters)):
        c = clusters[j]
        if c >= 0:
            score_one(rows, query, offsets[c], offsets[c + 1], scores[places[j] : places[j + 1]])
    positions = np.full((1, k), np.int32(-1), np.int32)
    best = np.full((1, k), np.float32(-np.inf), np.float32)
    out = (positions[0], best[0])
    select_one(scores, 0, clusters, bonus, offsets, documents, live, allowed, k, most, tanh, False, out)
    return positions, best


@loop(FLOAT32_2, FLOAT32, INT64, INT32, INT32, FLOAT32, BOOL, BOOL, NUMBER, NUMBER, FLAG, parallel=True)
def search_one_p(rows, query, offsets, documents, clusters, bonus, live, allowed, k, most, tanh):
    places = places_of(offsets, clusters)
    scores = np.empty(places[-1], np.float32)
    for j in prange(len(clusters)):
        c = clusters[j]
        if c >= 0:
            score_one(rows, query, offsets[c], offsets[c + 1], scores[places[j] : places[j + 1]])
    positions = np.full((1, k), np.int32(-1), np.int32)
    best = np.full((1, k), np.float32(-np.inf), np.float32)
    out = (positions[0], best[0])
    select_one(scores, 0, clusters, bonus, offsets, documents, live, allowed, k, most, tanh, False, out)
    return positions, best


@loop(FLOAT32_2, FLOAT32_2, INT64, INT32, INT32_2, FLOAT32_2, BOOL, BOOL_2, NUMBER, NUMBER, FLAG, parallel=True)
def search_each(rows, queries, offsets, documents, clusters, bonus, live, allowed, k, most, tanh):
    positions = np.full((len(queries), k), np.int32(-1), np.int32)
    best = np.full((len(queries), k), np.float32(-np.inf), np.float32)
    for b in prange(len(queries)):
        places = places_of(offsets, clusters[b])
        scores = np.empty(places[-1], np.float32)
        for j in range(clusters.shape[1]):
            c = clusters[b, j]
            if c >= 0:
                score_one(rows, queries[b], offsets[c], offsets[c + 1], scores[places[j] : places[j + 1]])
        out = (positions[b], best[b])
        keep = allowed[min(np.int64(b), len(allowed) - 1)]
        select_one(scores, 0, clusters[b], bonus[b], offsets, documents, live, keep, k, most, tanh, False, out)
    return positions, best


@loop(
    INT8_2, FLOAT32, FLOAT32, FLOAT32_2, FLOAT32, INT64, INT32, INT32, FLOAT32, BOOL, BOOL, NUMBER, NUMBER, FLAG, FLAG,
)  # fmt: skip
def search_codes_one(
    codes, row_scales, dim_scales, rows, query, offsets, documents, clusters, bonus, live, allowed, k, most, unique, tanh
):
    places = places_of(offsets, clusters)
    scores = np.empty(places[-1], np.float32)
    largest_ = np.float32(1e-30)
    for i in range(len(query)):
        largest_ = max(largest_, abs(query[i] * dim_scales[i]))
    by = largest_ / np.float32(127)
    rounded = np.empty(len(query), np.int8)
    for i in range(len(query)):
        rounded[i] = np.int8(np.rint(query[i] * dim_scales[i] / by))
    for j in range(len(clusters)):
        c = clusters[j]
        if c >= 0:
            score_codes_one(
                codes, row_scales, rounded, by, offsets[c], offsets[c + 1], scores[places[j] : places[j + 1]]
            )
    entries = np.full(most, np.int32(-1), np.int32)
    rough = np.full(most, np.float32(-np.inf), np.float32)
    out = (entries, rough)
    select_one(scores, 0, clusters, bonus, offsets, documents, live, allowed, most, most, tanh, True, out)
    positions = np.full((1, k), np.int32(-1), np.int32)
    best = np.full((1, k), np.float32(-np.inf), np.float32)
    out2 = (positions[0], best[0])
    rescore_one(rows, query, offsets, clusters, bonus, documents, entries, k, unique, tanh, out2)
    return positions, best

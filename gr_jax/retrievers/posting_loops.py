"""The loop of `postings`, compiled by numba; see `gr_jax.dense.compiled`."""

from __future__ import annotations

import numpy as np

from gr_jax.dense.compiled import (
    BOOL_2,
    FLOAT32,
    INT32,
    INT64,
    NUMBER,
    above,
    bits_of,
    key_of,
    loop,
    numba,
    smallest,
    sort,
)

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_CHUNK = 32  # sums that are compared at once
_SCANNED = 8  # to look at one posting costs as much as to compare so many sums, which lie side by side


@numba.njit(nogil=True)
def scan(sums, documents, keep, keys, k):
    """Looks at every sum, and leaves zeros. Returns how many keys there are; the best k are among them."""
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    count, limit, least = 0, _ALL, 0.0
    for chunk in range(0, documents, _CHUNK):
        stop = min(chunk + _CHUNK, documents)
        if above(sums[chunk:stop], least):
            for document in range(chunk, stop):
                value[0] = sums[document]
                if not sums[document] > least or (len(keep) and not keep[document]):
                    continue
                key = key_of(bits[0], document)
                if key >= limit:
                    continue
                keys[count] = key
                count += 1
                if count == len(keys):
                    smallest(keys, count, k)
                    count = k
                    limit = keys[k - 1]
                    bits[0] = bits_of(limit)
                    least = np.float64(value[0])  # who comes later needs more: equal sums go by the lower position
        sums[chunk:stop] = 0.0
    return count


@numba.njit(nogil=True)
def look_up(sums, documents, offsets, terms, keep, keys, k):
    """Looks at the sums where the terms have postings, and leaves zeros; as `scan`."""
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    count, limit = 0, _ALL
    for term in terms:
        for i in range(offsets[term], offsets[term + 1]):
            document = np.uint32(documents[i])
            value[0] = sums[document]
            sums[document] = 0.0  # it is looked at where its first posting stands
            if not value[0] > 0 or (len(keep) and not keep[document]):
                continue
            key = key_of(bits[0], document)
            if key >= limit:
                continue
            keys[count] = key
            count += 1
            if count == len(keys):
                smallest(keys, count, k)
                count = k
                limit = keys[k - 1]
    return count


@numba.njit(nogil=True)
def add(sums, weights, documents, offsets, terms):
    """Adds up the weights; returns how many postings there were."""
    count = 0
    for term in terms:
        count += offsets[term + 1] - offsets[term]
        for i in range(offsets[term], offsets[term + 1]):
            sums[np.uint32(documents[i])] += weights[i]  # a place that may be negative is looked at twice
    return count


@loop(
    FLOAT32, INT32, INT64, INT64, INT64, BOOL_2, NUMBER, NUMBER, NUMBER,
    numba.float64[::1], numba.int32[:, ::1], numba.float32[:, ::1],
)  # fmt: skip
def search(weights, documents, offsets, terms, starts, allowed, num_documents, first, last, sums, doc_index, score):
    """The best of the queries from `first` on, up to `last`.

    Args:
      sums: zeros, one for each document at least, and zeros again when it is done.
      doc_index, score: of all queries; these queries' rows are written.
    """
    k = min(doc_index.shape[1], num_documents)
    keys = np.empty(2 * k + 64, np.uint64)
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    for query in range(first, last):
        asked = terms[starts[query] : starts[query + 1]]
        keep = allowed[min(query, len(allowed) - 1)]  # one row may stand for all
        if _SCANNED * add(sums, weights, documents, offsets, asked) > num_documents:
            count = scan(sums, num_documents, keep, keys, k)
        else:
            count = look_up(sums, documents, offsets, asked, keep, keys, k)
        if count > k:
            smallest(keys, count, k)
            count = k
        sort(keys, count)
        for rank in range(count):
            bits[0] = bits_of(keys[rank])
            doc_index[query, rank] = np.int32(keys[rank] & np.uint64(0xFFFFFFFF))
            score[query, rank] = value[0]
        doc_index[query, count:] = -1
        score[query, count:] = -np.inf

"""The loop of `postings`, compiled by numba; see `gr_jax.dense.compiled`."""

from __future__ import annotations

import numpy as np

from gr_jax.dense.compiled import BOOL_2, FLOAT32, INT32, INT64, NUMBER, bits_of, key_of, loop, numba, smallest, sort

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@loop(
    FLOAT32, INT32, INT64, INT64, INT64, BOOL_2, NUMBER, NUMBER,
    numba.float64[::1], numba.int32[:, ::1], numba.float32[:, ::1],
)  # fmt: skip
def search(weights, documents, offsets, terms, starts, allowed, first, last, sums, doc_index, score):
    """The best of the queries from `first` on, up to `last`.

    Args:
      sums: zeros, one for each document at least, and zeros again when it is done.
      doc_index, score: of all queries; these queries' rows are written.
    """
    k = min(doc_index.shape[1], len(sums))
    keys = np.empty(2 * k + 64, np.uint64)
    value = np.empty(1, np.float32)
    bits = value.view(np.uint32)
    for query in range(first, last):
        for t in range(starts[query], starts[query + 1]):
            for i in range(offsets[terms[t]], offsets[terms[t] + 1]):
                sums[documents[i]] += weights[i]
        keep = allowed[min(query, len(allowed) - 1)]  # one row may stand for all
        count, limit = 0, _ALL
        # A document is looked at where its first posting stands, and leaves a zero for the next query.
        for t in range(starts[query], starts[query + 1]):
            for i in range(offsets[terms[t]], offsets[terms[t] + 1]):
                document = documents[i]
                value[0] = sums[document]
                sums[document] = 0.0
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

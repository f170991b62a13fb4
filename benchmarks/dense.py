"""The dense side, all of its rows: `python -m benchmarks.dense`.

Quality by recipe, clustered and whole-corpus search beside faiss, a large corpus encoded by a process that is killed,
generated queries, negatives gathered over devices, and two peers. Each part can be run alone
(`benchmarks.dense_search`, `benchmarks.corpus_encoding`, …) and records its rows in a file of its own. About four
hours on 2 cores, all of it resumable.
"""

from __future__ import annotations

import sys

from benchmarks import (
    bm25_speed,
    corpus_encoding,
    dense_peers,
    dense_quality,
    dense_search,
    doct5query,
    gathered_negatives,
    harness,
)

PARTS = {
    "dense_search": dense_search,
    "dense_quality": dense_quality,
    "doct5query": doct5query,
    "corpus_encoding": corpus_encoding,
    "gathered_negatives": gathered_negatives,
    "dense_peers": dense_peers,
    "bm25_speed": bm25_speed,
}


if __name__ == "__main__":
    sys.exit(harness.main_of_parts({name: part.rows for name, part in PARTS.items()}))

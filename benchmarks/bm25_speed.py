"""BM25 beside bm25s with its compiled backend: `python -m benchmarks.bm25_speed`.

From questions to documents, and the search alone; bm25s weighs the terms of both, so that scores are equal. One
question at a time and 128 together, among few and among many documents. Sides take turns; "times faster" is the
median of the ratios of their calls for the same questions. About two minutes on 2 cores.
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.turns import median_seconds, speeds
from gr_jax import retrievers
from gr_jax.corpus import Dataset, read_beir

DEPTH = 100
# Data set, its subset, documents; and of each so many questions, so many times.
SETTINGS = (("squad_dev", "", 2067), ("wiki_intro_179k", "100k", 100_000))
QUESTIONS, TURNS = 512, 5


@functools.cache
def _dataset(data: str, subset: str) -> Dataset:
    folder = harness.data_folder(data)
    return read_beir(folder, subset=folder / "subsets" / f"{subset}.ids.gz" if subset else None)


def _fingerprint(data: str, subset: str) -> str:
    return _dataset(data, subset).corpus.fingerprint


def speed(data: str, subset: str, batch: int) -> dict[str, float]:
    """Both sides, compiled by numba, for `batch` questions of test at a time.

    bm25s is given one thread or two, and texts by either of its tokenisers: what is fastest counts.
    """
    import bm25s
    import Stemmer

    harness.two_threads("bm25_speed")
    dataset = _dataset(data, subset)
    queries, stemmer = list(dataset.split_queries("test").texts)[:QUESTIONS], Stemmer.Stemmer("english")
    ours = retrievers.BM25(dataset.corpus, progress=True)
    peer = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numba")
    tokenizer = bm25s.tokenization.Tokenizer(stopwords="en", stemmer=stemmer)
    read_corpus = tokenizer.tokenize(list(dataset.corpus.contents), return_as="tuple", show_progress=False)
    peer.index(read_corpus, show_progress=False)
    parts = [queries[first : first + batch] for first in range(0, len(queries) - batch + 1, batch)]

    def by_function(texts: list[str]) -> Any:
        return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)

    def by_class(texts: list[str]) -> Any:
        return tokenizer.tokenize(texts, update_vocab=False, return_as="ids", show_progress=False)

    def best(words: Any, threads: int) -> Any:
        return peer.retrieve(words, k=DEPTH, show_progress=False, n_threads=threads)

    ways = list(itertools.product((by_function, by_class), (0, 2)))
    fastest = min(ways, key=lambda way: median_seconds(lambda texts: best(way[0](texts), way[1]), parts))
    read = {tuple(texts): (ours.asked(texts), by_class(texts)) for texts in parts}
    threads = min((0, 2), key=lambda threads: median_seconds(lambda texts: best(read[tuple(texts)][1], threads), parts))
    sides: dict[str, Callable[[list[str]], Any]] = {
        "ours": lambda texts: ours.retrieve(texts, DEPTH),
        "peer": lambda texts: best(fastest[0](texts), fastest[1]),
        "our search": lambda texts: ours.postings.search(read[tuple(texts)][0], DEPTH),
        "peer's search": lambda texts: best(read[tuple(texts)][1], threads),
    }
    turns: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(TURNS + 1):
        for name, side in sides.items():
            # The first call does not count: threads of the side before may still be awake, waiting for work.
            for place, texts in enumerate([*parts[:1], *parts]):
                started = time.perf_counter()
                side(texts)
                if turn and place:  # compiled, caches warm
                    turns[name].append(time.perf_counter() - started)
    found = ours.retrieve(queries, DEPTH)
    scores = best(by_function(queries), 0).scores
    alone = speeds(list(zip(turns["our search"], turns["peer's search"], strict=True)), batch)
    return {
        **speeds(list(zip(turns["ours"], turns["peer"], strict=True)), batch),
        "search alone, times faster": alone["times faster"],
        "difference": float(np.abs(np.where(np.isfinite(found.score), found.score, 0) - scores).max()),
    }


def rows() -> list[harness.Row]:
    """The table."""
    return [
        harness.Row(
            name=f"BM25 among {documents:,}, {'one question at a time' if batch == 1 else f'{batch} together'}",
            config={
                "data": data, "subset": subset, "depth": DEPTH, "batch": batch, "questions": QUESTIONS, "turns": TURNS,
            },
            measure=functools.partial(speed, data, subset, batch),
            at_least={"times faster": 1.0, "search alone, times faster": 1.0},
            at_most={"difference": 1e-4},
            note="questions a second; bm25s with numba",
            corpus=functools.partial(_fingerprint, data, subset),
            speed=True,
        )
        for (data, subset, documents), batch in itertools.product(SETTINGS, (1, 128))
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(harness.main("bm25_speed", rows()))

"""Search over vectors beside faiss. `python -m benchmarks.dense_search`.

Clustered search: the documents of the clusters chosen for each query, faiss' `search_preassigned` on the same clusters
against `ClusteredSearch`: float32 rows, whose answers must be the same, and int8 codes, alone or with exact scores of
the best, against faiss' 8-bit scalar quantiser. One query at a time, and 128 together. Whole corpus: `ScannSearch`
against faiss' IVFFlat and its IVF-PQ fast-scan with refinement, each at the least work that reaches the recall. faiss
spreads its work over threads in three ways (`parallel_mode`; of fast-scan: `implem`), of which each row takes the one
that is fastest for as many queries at a time. Each side may use 2 CPU threads (on a larger machine: `taskset -c 0,1
python -m benchmarks.dense_search`). The sides take turns in one process; "times faster" is the median of the ratios of
their calls for the same queries.

The vectors are drawn, no real ones: unit vectors, a Gaussian mixture, queries documents with noise. For clustered
search each component is a cluster. For the whole corpus such vectors are either too easy (IVFFlat finds everything in 2
of 4000 lists) or, with wider components, mere noise; there the variance of dimension i falls as 1/i, as principal
components do, and IVFFlat needs about 4% of its lists. About 15 minutes and 4 GB of memory on 2 cores.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.turns import median_seconds
from gr_jax.dense import ClusteredSearch, ScannSearch
from gr_jax.dense.base import Found, nothing_found
from gr_jax.errors import InputError

BATCH, K, PAIRS = 128, 100, 15  # of one query at a time, a turn is a call for each of the queries
MODES = (0, 1, 3)  # of faiss: slices of queries, clusters of a query, queries
FAST_SCAN = (0, 14, 15)  # of its fast-scan: slices of queries, clusters of a query into heaps or into reservoirs
RECALL, MARGIN = 0.96, 0.01  # the margin: what is tuned is a little better on the queries that it was tuned on


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Documents, each with its cluster, and queries.

    Attributes:
      vectors: float32[documents, d], of unit length.
      clusters: int32[documents], the component that each was drawn from.
      centers: float32[clusters, d], of unit length.
      queries: float32[batch, d].
    """

    vectors: np.ndarray
    clusters: np.ndarray
    centers: np.ndarray
    queries: np.ndarray


@functools.lru_cache(maxsize=1)
def mixture(
    documents: int, width: int, clusters: int, spread: float, noise: float, decay: float = 0.0, batch: int = BATCH
) -> Mixture:
    """Draws documents around centres.

    Args:
      documents, width, clusters, batch: how many.
      spread: length of what is added to a centre of length 1, in expectation.
      noise: length of what is added to a document to make a query.
      decay: dimension i varies as i^−decay, as principal components do; 0: all alike.
    """
    rng = np.random.default_rng(0)
    scale = np.arange(1, width + 1, dtype=np.float32) ** np.float32(-decay / 2)
    scale /= np.linalg.norm(scale)
    centers = _unit(scale * rng.standard_normal((clusters, width), np.float32))
    of = rng.integers(0, clusters, documents).astype(np.int32)
    vectors = np.empty((documents, width), np.float32)
    for start in range(0, documents, 1 << 16):
        part = slice(start, min(start + (1 << 16), documents))
        drawn = rng.standard_normal((part.stop - part.start, width), np.float32)
        vectors[part] = _unit(centers[of[part]] + spread * scale * drawn)
    queries = vectors[rng.choice(documents, batch, replace=False)]
    queries = _unit(queries + noise * scale * rng.standard_normal(queries.shape, np.float32))
    return Mixture(vectors, of, centers, queries)


def _unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def _faiss() -> Any:
    """faiss with two threads.

    Raises:
      InputError: it is not installed, or this process does not compute on two cores.
    """
    harness.two_threads("dense_search")
    try:
        import faiss
    except ImportError as error:
        raise InputError("the peer of these rows is the package faiss-cpu", "pip install faiss-cpu") from error
    faiss.omp_set_num_threads(2)
    return faiss


Search = Callable[[slice], Found]  # of some of the queries


def _pairs(theirs: Search, ours: Search, pairs: int, batch: int = BATCH) -> dict[str, float]:
    """Medians over calls for `batch` queries.

    The first call of a side's turn does not count: threads of the other side may still be awake, waiting for work.
    """
    parts = _parts(BATCH, batch)
    taken: dict[Search, list[float]] = {ours: [], theirs: []}
    for turn in range(pairs + 1):
        for side, seconds in taken.items():
            for place, part in enumerate([*parts[:1], *parts]):
                start = time.perf_counter()
                side(part)
                if turn and place:  # compiled, caches warm
                    seconds.append(time.perf_counter() - start)
    return {
        "times faster": statistics.median(peer / own for own, peer in zip(*taken.values(), strict=True)),
        "queries/s": batch / statistics.median(taken[ours]),
        "peer queries/s": batch / statistics.median(taken[theirs]),
    }


def _parts(count: int, batch: int) -> list[slice]:
    """Of so many queries."""
    return [slice(first, first + batch) for first in range(0, count, batch)]


def _seconds(search: Search, count: int, batch: int) -> float:
    """Median over calls for `batch` of `count` queries, five or more."""
    parts = _parts(count, batch)
    return median_seconds(search, parts * -(-5 // len(parts)))


def _recall(found: np.ndarray, expected: np.ndarray) -> float:
    """The share of the expected documents that were found."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, expected, strict=True)]))


def _same(found: Found, expected: Found) -> float:
    """The share of ranks with the same document; documents whose scores differ by rounding alone may change places."""
    same = (found[0] == expected[0]) | (np.abs(found[1] - expected[1]) <= 1e-6)
    return float(same.mean())


def _preassigned(
    documents: int, width: int, clusters: int, chosen: int, batch: int, codes: bool = False
) -> tuple[Mixture, np.ndarray, Search]:
    """The data, the clusters of each query, and faiss' search in them, of float32 rows or 8-bit codes, by the fastest
    of its ways for as many queries at a time."""
    faiss = _faiss()
    data = mixture(documents, width, clusters, 1.0, 0.5)
    products = data.queries @ data.centers.T  # --> [batch, clusters]
    picked = np.argsort(-products, axis=1)[:, :chosen].astype(np.int32)
    quantizer = faiss.IndexFlatIP(width)
    quantizer.add(data.centers)
    metric = faiss.METRIC_INNER_PRODUCT
    if codes:
        # Not of residuals: the codes of a document are then its own, as ours are, and no slower.
        index = faiss.IndexIVFScalarQuantizer(quantizer, width, clusters, faiss.ScalarQuantizer.QT_8bit, metric, False)
        index.train(data.vectors[:: max(1, documents // 100_000)])
    else:
        index = faiss.IndexIVFFlat(quantizer, width, clusters, metric)
        index.is_trained = True
    index.nprobe = chosen
    of = data.clusters.astype(np.int64)
    index.add_core(documents, faiss.swig_ptr(data.vectors), None, faiss.swig_ptr(of))
    lists, nearness = picked.astype(np.int64), np.take_along_axis(products, picked, 1)

    def theirs(part: slice) -> Found:
        scores, positions = index.search_preassigned(data.queries[part], K, lists[part], nearness[part])
        return positions, scores

    def seconds(mode: int) -> float:
        index.parallel_mode = mode
        return _seconds(theirs, BATCH, batch)

    index.parallel_mode = min(MODES, key=seconds)
    return data, picked, theirs


def clustered(
    documents: int, width: int, clusters: int, chosen: int, codes: str | None, overfetch: float | None, batch: int
) -> dict:
    """`search_preassigned` against `search_clusters`."""
    data, picked, theirs = _preassigned(documents, width, clusters, chosen, batch, codes is not None)
    search = ClusteredSearch(data.vectors, data.clusters, num_clusters=clusters, codes=codes, overfetch=overfetch)

    def ours(part: slice) -> Found:
        return search.search_clusters(data.queries[part], picked[part], K)

    every = slice(0, BATCH)
    expected, found = theirs(every), ours(every)
    if not codes:
        return {**_pairs(theirs, ours, PAIRS, batch), "same documents": _same(found, expected)}
    exact = _preassigned(documents, width, clusters, chosen, BATCH)[2](every)[0]
    recalls = {"recall@100": _recall(found[0], exact), "peer recall@100": _recall(expected[0], exact)}
    return {**_pairs(theirs, ours, PAIRS, batch), **recalls}


def scann_inside(documents: int, width: int, clusters: int, chosen: int, way: str) -> dict:
    """`search_preassigned` against ScaNN inside the chosen clusters.

    Args:
      way: "scorers": one brute-force scorer a cluster, the backend "scann" of `ClusteredSearch`. "over-fetch": the
        whole corpus is searched, and the documents of other clusters are dropped, twice as many each time until every
        query has its K.
    """
    data, picked, theirs = _preassigned(documents, width, clusters, chosen, BATCH)
    if way == "scorers":
        inside = ClusteredSearch(data.vectors, data.clusters, num_clusters=clusters, backend="scann")
        ours: Search = lambda part: inside.search_clusters(data.queries[part], picked[part], K)  # noqa: E731
    else:
        whole = ScannSearch(data.vectors, recall=0.995, threads=2)
        ours = lambda part: _over_fetch(whole, data, picked)  # noqa: E731
    every = slice(0, BATCH)
    return {**_pairs(theirs, ours, 5), "recall@100": _recall(ours(every)[0], theirs(every)[0])}


def _over_fetch(whole: ScannSearch, data: Mixture, picked: np.ndarray) -> Found:
    found = nothing_found(len(picked), K)
    chosen = np.zeros((len(picked), len(data.centers)), bool)
    np.put_along_axis(chosen, picked, True, axis=1)
    waiting, fetch = np.arange(len(picked)), 2 * K
    while len(waiting):
        positions, scores = whole.search(data.queries[waiting], fetch)
        inside = np.take_along_axis(chosen[waiting], data.clusters[positions], axis=1) & (positions >= 0)
        order = np.argsort(~inside, axis=1, kind="stable")[:, :K]
        done = (inside.sum(axis=1) >= K) | (fetch >= len(data.vectors))
        for result, part, nothing in zip(found, (positions, scores), (-1, -np.inf), strict=True):
            kept = np.where(inside, part, nothing)
            result[waiting[done]] = np.take_along_axis(kept, order, axis=1)[done]
        waiting, fetch = waiting[~done], min(2 * fetch, len(data.vectors))
    return found


def whole_corpus(documents: int, width: int, lists: Sequence[int], peer: str, batch: int) -> dict[str, float]:
    """faiss against `ScannSearch`, each tuned to the recall on queries that are not those that are timed; of the
    numbers of lists the one that answers those fastest.

    Args:
      documents, width: of the corpus.
      lists: numbers of lists that the peer is tried with.
      peer: "flat": IVFFlat. "fast-scan": IVF-PQ fast-scan, 4 bits for each pair of dimensions, the best of which are
        scored again from float32 rows.
      batch: queries at a time.
    """
    faiss = _faiss()
    data = mixture(documents, width, 20_000, 1.5, 0.5, decay=1.0, batch=5 * BATCH)
    tune, queries = data.queries[BATCH:], data.queries[:BATCH]
    flat = faiss.IndexFlatIP(width)
    flat.add(data.vectors)
    exact = [flat.search(part, 10)[1] for part in (tune, queries)]
    search = ScannSearch(data.vectors, recall=RECALL + MARGIN, tune_queries=tune, threads=2)
    peers = []
    for count in lists:
        made = _Inverted(faiss, data.vectors, count, peer == "fast-scan")
        made.tune(tune, exact[0], batch)
        peers.append((made.seconds(queries, batch), count, made))
    _, count, index = min(peers, key=lambda one: one[:2])

    def theirs(part: slice) -> Found:
        return index.search(queries[part])

    def ours(part: slice) -> Found:
        return search.search(queries[part], K)

    every = slice(0, BATCH)
    found = {
        "recall@10": _recall(ours(every)[0][:, :10], exact[1]),
        "peer recall@10": _recall(theirs(every)[0][:, :10], exact[1]),
        "leaves searched": search.settings["searched"],
        "candidates": search.settings["reorder"],
        "peer lists": count,
        "peer lists searched": index.searched,
        "peer candidates": index.candidates,
    }
    return {**_pairs(theirs, ours, PAIRS, batch), **found}


class _Inverted:
    """faiss' inverted file, of rows or of 4-bit codes with refinement."""

    def __init__(self, faiss: Any, vectors: np.ndarray, lists: int, codes: bool):
        kind = f"IVF{lists},PQ{vectors.shape[1] // 2}x4fs,RFlat" if codes else f"IVF{lists},Flat"
        self._index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        self._inside = faiss.downcast_index(faiss.extract_index_ivf(self._index))
        self._inside.cp.niter = 10
        self._index.train(vectors[:: max(1, len(vectors) // (40 * lists))])
        self._index.add(vectors)
        self._most, self._codes = lists, codes
        self._ways = [("implem", one) for one in FAST_SCAN] if codes else [("parallel_mode", one) for one in MODES]
        self.searched, self.candidates = lists, K

    def search(self, queries: np.ndarray, k: int = K) -> Found:
        self._inside.nprobe = self.searched
        if self._codes:
            self._index.k_factor = max(1.0, self.candidates / k)
        scores, positions = self._index.search(queries, k)
        return positions, scores

    def seconds(self, queries: np.ndarray, batch: int) -> float:
        """Of a call for `batch` of the queries."""
        return _seconds(lambda part: self.search(queries[part]), len(queries), batch)

    def tune(self, queries: np.ndarray, exact: np.ndarray, batch: int) -> None:
        """Sets the fewest lists, of codes the candidates, and the way over threads by which the recall is reached in
        the least time for `batch` queries."""
        best = None
        for candidates in (100, 150, 200, 300, 500, 800, 1200, 2000, 4000, 8000) if self._codes else (K,):
            self.candidates, self.searched = candidates, self._most
            too_few, enough = 0, self._most
            if self._reached(queries, exact) < RECALL + MARGIN:
                continue
            while enough - too_few > 1:
                self.searched = (too_few + enough) // 2
                reached = self._reached(queries, exact) >= RECALL + MARGIN
                too_few, enough = (too_few, self.searched) if reached else (self.searched, enough)
            self.searched = enough
            for way in self._ways:
                setattr(self._inside, *way)
                seconds = self.seconds(queries, batch)
                if best is None or seconds < best[0]:
                    best = seconds, candidates, enough, way
        if best is None:
            raise InputError("no number of candidates reaches the recall", "Try more.", value=self._most)
        _, self.candidates, self.searched, way = best
        setattr(self._inside, *way)

    def _reached(self, queries: np.ndarray, exact: np.ndarray) -> float:
        return _recall(self.search(queries)[0][:, :10], exact)


def rows() -> list[harness.Row]:
    """The table."""
    found = []
    for documents, width, clusters, chosen in (
        (1_000_000, 128, 5000, 10),
        (1_000_000, 128, 5000, 100),
        (200_000, 768, 2000, 10),
        (200_000, 768, 2000, 100),
    ):
        # "alone": nothing is scored again from float32 rows, as faiss' quantiser does it.
        kinds = {"float32": (None, 1.25), "int8": ("row", 1.25), "int8 alone": ("row", None)}
        for (kind, (codes, overfetch)), batch in itertools.product(kinds.items(), (1, BATCH)):
            config: dict[str, Any] = {
                "documents": documents, "width": width, "clusters": clusters, "chosen": chosen, "codes": codes,
                "overfetch": overfetch, "batch": batch,
            }  # fmt: skip
            floors = {"times faster": 1.0, "recall@100": 0.995} if codes else {"times faster": 1.0}
            size = "one at a time" if batch == 1 else f"{batch} together"
            found.append(
                harness.Row(
                    name=f"{clusters} clusters, d={width}, {chosen} chosen, {kind}, {size}",
                    config={**config, "k": K, "pairs": PAIRS, "data": "mixture 1.0 0.5"},
                    measure=functools.partial(clustered, **config),
                    at_least=floors if codes else {**floors, "same documents": 1.0},
                    note=f"faiss search_preassigned{', 8-bit scalar quantiser' if codes else ''}",
                    seeds=(0,),
                    speed=True,
                )
            )
    for chosen in (10, 100):
        for way in ("scorers", "over-fetch"):
            config = {"documents": 1_000_000, "width": 128, "clusters": 5000, "chosen": chosen, "way": way}
            found.append(
                harness.Row(
                    name=f"5000 clusters, d=128, {chosen} chosen, ScaNN {way}",
                    config={**config, "batch": BATCH, "k": K, "pairs": 5, "data": "mixture 1.0 0.5"},
                    measure=functools.partial(scann_inside, **config),
                    note="faiss search_preassigned",
                    seeds=(0,),
                    speed=True,
                )
            )
    data = "mixture 1.5 0.5, 20000 components, decay 1"
    for peer, batch in itertools.product(("flat", "fast-scan"), (1, BATCH)):
        config = {"documents": 1_000_000, "width": 128, "lists": [1000, 2000, 4000], "peer": peer, "batch": batch}
        size = "one at a time" if batch == 1 else f"{batch} together"
        found.append(
            harness.Row(
                name=f"whole corpus, 1M × 128, ScaNN beside {peer}, {size}",
                config={**config, "k": K, "pairs": PAIRS, "recall": RECALL, "margin": MARGIN, "data": data},
                measure=functools.partial(whole_corpus, **config),
                at_least={"recall@10": RECALL, "peer recall@10": RECALL},
                note="faiss IVFFlat" if peer == "flat" else "faiss IVF-PQ fast-scan with refinement",
                seeds=(0,),
                speed=True,
            )
        )
    return found


if __name__ == "__main__":
    sys.exit(harness.main("dense_search", rows()))

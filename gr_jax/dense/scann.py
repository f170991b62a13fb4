"""Approximate search of the whole corpus by ScaNN on the host."""

from __future__ import annotations

import math
import os
import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gr_jax import storage
from gr_jax.dense.base import Allowed, Found, check_search, merge, nothing_found, optional
from gr_jax.dense.stored import StoredVectors
from gr_jax.errors import InputError

KIND = "scann_search"
_NAME = "scann.scann_ops.py.scann_ops_pybind"  # the part of the package that does without TensorFlow
_SMALLEST = 1024  # fewer documents are scored by brute force: nothing could be learnt from them
_TAIL = 4096  # as many added documents may be scored by brute force before ScaNN is built anew


class ScannSearch:
    """ScaNN: a tree of leaves, asymmetric hashing inside them, the best candidates scored again from float32 rows.

    ScaNN knows no filters: with `allowed`, or after removals, more are fetched and those that may not be returned are
    dropped, twice as many each time until every query has its k; a filter that allows few documents is answered by
    brute force among them. Added documents are scored by brute force until they are a quarter of the rest.

    Args:
      vectors: float32[n, d]; may be memory-mapped.
      leaves: of the tree; None takes about 2√n.
      searched: leaves that a query looks into; None takes a sixteenth of them.
      reorder: candidates that are scored again; at least 1.5 · k are.
      recall: tunes `searched` and `reorder` to the least that reach this recall@10 of exact search, on documents with
        noise as queries, or on `tune_queries`; None tunes nothing.
      tune_queries: float32[m, d].
      threads: None takes all.

    Raises:
      InputError: ScaNN is not installed, or cannot be here; no matrix, values that are not finite.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        *,
        leaves: int | None = None,
        searched: int | None = None,
        reorder: int = 150,
        recall: float | None = None,
        tune_queries: Float[np.ndarray, "m d"] | None = None,
        threads: int | None = None,
    ):
        self._stored = StoredVectors(vectors)
        if recall is not None and not 0 < recall <= 1:
            raise InputError("recall is a share", "Give a number above 0, 1 at most.", value=recall)
        leaves = leaves or max(1, min(round(2 * math.sqrt(len(self._stored.main))), len(self._stored.main) // 50))
        self.settings = {"leaves": leaves, "searched": searched or -(-leaves // 16), "reorder": reorder}
        if min(self.settings.values()) < 1:
            raise InputError("leaves and candidates are counted from 1", "Correct them.", value=self.settings)
        self._threads = threads or _cores()
        self._build()
        if recall is not None:
            self.tune(recall, tune_queries)

    @property
    def num_documents(self) -> int:
        """Positions that have been given out."""
        return self._stored.num_documents

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self._stored.width

    @property
    def nbytes(self) -> int:
        """Bytes in memory: the vectors, and ScaNN's copy of them and its codes (half a byte a dimension pair)."""
        n, d = self._stored.main.shape
        return self._stored.nbytes + n * (4 * d + -(-d // 4))

    def search(self, queries: Float[np.ndarray, "batch d"], k: int, *, allowed: Allowed | None = None) -> Found:
        """See `VectorSearch.search`; approximate."""
        queries, filters = check_search(queries, k, allowed, width=self.width, documents=self.num_documents)
        live = self._stored.live
        keep = live[None] if filters is None else filters & live
        border = len(self._stored.main)
        parts = [self._search_main(queries, k, keep[:, :border])]
        if len(self._stored.tail):
            parts.append(_brute_force(queries, self._stored.tail, keep[:, border:], k, border))
        return merge(parts, k)

    def add(self, vectors: Float[np.ndarray, "n d"]) -> None:
        """See `VectorSearch.add`."""
        self._stored.add(vectors)
        if len(self._stored.tail) > max(_TAIL, len(self._stored.main) // 4):
            self._stored.merge()
            self._build()

    def remove(self, positions: Int[np.ndarray, " n"]) -> None:
        """See `VectorSearch.remove`."""
        self._stored.remove(positions)

    def tune(self, recall: float, queries: Float[np.ndarray, "m d"] | None = None, *, k: int = 10) -> float:
        """Sets `searched` and `reorder` to the least that reach a recall; returns the recall that is reached.

        Args:
          recall: of the k best, averaged over the queries.
          queries: None draws 256 documents and adds noise to them.
          k: see `recall`.
        """
        if self._searcher is None or len(self._stored.main) == 0:
            return 1.0
        if queries is None:
            rng = np.random.default_rng(0)
            drawn = self._stored.main[
                np.sort(rng.choice(len(self._stored.main), min(256, len(self._stored.main)), False))
            ]
            noise = rng.standard_normal(drawn.shape, np.float32)
            queries = drawn + 0.5 * noise * np.linalg.norm(drawn, axis=1, keepdims=True) / math.sqrt(self.width)
        everything = np.ones((1, len(self._stored.main)), bool)
        exact, _ = _brute_force(queries, self._stored.main, everything, k, 0)
        reached = 0.0
        for searched in _doubling(max(1, self.settings["leaves"] // 128), self.settings["leaves"]):
            for reorder in (5 * k, 10 * k, 20 * k):
                self.settings |= {"searched": searched, "reorder": reorder}
                found, _ = self._fetch(queries, k)
                reached = float((found[:, :, None] == exact[:, None, :]).any(-1).mean())
                if reached >= recall:
                    return reached
        return reached

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the vectors and ScaNN's own files."""
        meta = {**self.settings, "documents": self.num_documents, "built": len(self._stored.main)}
        with storage.write_folder(folder, KIND, meta=meta) as new:
            self._stored.write(new)
            if self._searcher is not None:
                (new / "scann").mkdir()
                self._searcher.serialize(str(new / "scann"), relative_path=True)

    @classmethod
    def load(
        cls, folder: str | os.PathLike, *, mmap: bool = True, verify: bool = True, threads: int | None = None
    ) -> ScannSearch:
        """Reads what `save` wrote.

        Raises:
          InputError: not such a folder, or altered; ScaNN is not installed.
        """
        manifest = storage.read_folder(folder, KIND, verify=verify)
        path = pathlib.Path(folder)
        search = cls.__new__(cls)
        search._threads = threads or _cores()
        search._stored = StoredVectors.read(path, mmap=mmap)
        try:
            search.settings = {name: int(manifest.meta[name]) for name in ("leaves", "searched", "reorder")}
            built = int(manifest.meta["built"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not a readable ScaNN search: {error}", "Make it again.", file=path) from error
        search._stored.split(built)
        search._searcher = None
        if (path / "scann").is_dir():
            search._searcher = optional(_NAME, "ScaNN search").load_searcher(str(path / "scann"))
            search._searcher.set_num_threads(search._threads)
        return search

    def _build(self) -> None:
        builder = optional(_NAME, "ScaNN search").builder
        vectors, settings = self._stored.main, self.settings
        self._searcher: Any = None
        if len(vectors) < _SMALLEST:
            return
        self._searcher = (
            builder(np.asarray(vectors), 10, "dot_product")
            .tree(settings["leaves"], settings["searched"], training_sample_size=min(len(vectors), 250_000))
            .score_ah(2, anisotropic_quantization_threshold=0.2)
            .reorder(settings["reorder"])
            .set_n_training_threads(self._threads)
            .build()
        )
        self._searcher.set_num_threads(self._threads)

    def _search_main(self, queries: np.ndarray, k: int, keep: np.ndarray) -> Found:
        vectors = self._stored.main
        found = nothing_found(len(queries), k)
        counts = np.broadcast_to(keep.sum(axis=1), len(queries))
        few = (counts < max(_SMALLEST, 4 * k)) | (counts < len(vectors) // 50) | (self._searcher is None)
        wanted = np.minimum(k, counts)
        for b in np.flatnonzero(few):
            row = keep[b if len(keep) > 1 else 0]
            found[0][b], found[1][b] = _among(queries[b], vectors, np.flatnonzero(row), k)
        open_ = np.flatnonzero(~few)
        fetch = k if keep.all() else min(2 * k, len(vectors))
        while len(open_):
            positions, scores = self._fetch(queries[open_], fetch)
            rows = keep[open_] if len(keep) > 1 else keep
            good = (positions >= 0) & np.take_along_axis(
                np.broadcast_to(rows, (len(open_), len(vectors))), np.maximum(positions, 0), axis=1
            )
            scores = np.where(good, scores, -np.inf)
            done = (good.sum(axis=1) >= wanted[open_]) | (fetch >= len(vectors))
            part = merge([(np.where(good, positions, -1), scores), nothing_found(len(open_), k)], k)
            for whole, one in zip(found, part, strict=True):
                whole[open_[done]] = one[done]
            open_, fetch = open_[~done], min(2 * fetch, len(vectors))
        return found

    def _fetch(self, queries: np.ndarray, k: int) -> Found:
        """ScaNN's k best; more leaves are searched where many are wanted."""
        leaves, n = self.settings["leaves"], len(self._stored.main)
        share = math.ceil(leaves * min(1.0, 4 * k / n))
        positions, scores = self._searcher.search_batched_parallel(
            np.ascontiguousarray(queries),
            k,
            min(n, max(self.settings["reorder"], k + k // 2)),
            min(leaves, max(self.settings["searched"], share)),
            batch_size=max(1, -(-len(queries) // self._threads)),
        )
        missing = ~np.isfinite(scores)
        return np.where(missing, -1, positions).astype(np.int32), np.where(missing, -np.inf, scores).astype(np.float32)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _doubling(start: int, end: int):
    while start < end:
        yield start
        start *= 2
    yield end


def _brute_force(queries: np.ndarray, vectors: np.ndarray, keep: np.ndarray, k: int, first: int) -> Found:
    """Exact, in blocks of documents."""
    found = nothing_found(len(queries), k)
    for start in range(0, len(vectors), 1 << 16):
        part = slice(start, min(start + (1 << 16), len(vectors)))
        scores = np.where(keep[:, part], queries @ vectors[part].T, -np.inf).astype(np.float32)
        best = np.argpartition(-scores, k - 1, axis=1)[:, :k] if k < scores.shape[1] else None
        places = np.broadcast_to(np.arange(scores.shape[1]), scores.shape) if best is None else best
        high = np.take_along_axis(scores, places, 1)
        positions = np.where(np.isneginf(high), -1, places + start + first).astype(np.int32)
        found = merge([found, (positions, high)], k)
    return found


def _among(query: np.ndarray, vectors: np.ndarray, positions: np.ndarray, k: int) -> Found:
    """Exact, among a few documents, for one query."""
    scores = vectors[positions] @ query
    order = np.lexsort((positions, -scores))[:k]
    found = nothing_found(1, k)
    found[0][0, : len(order)], found[1][0, : len(order)] = positions[order], scores[order]
    return found[0][0], found[1][0]

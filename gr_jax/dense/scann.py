"""Approximate search of the whole corpus by ScaNN on the host."""

from __future__ import annotations

import math
import os
import pathlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from gr_jax import storage
from gr_jax.dense.base import SCANN, Allowed, Found, check_search, check_vectors, merge, nothing_found, optional
from gr_jax.dense.stored import StoredVectors
from gr_jax.errors import InputError

KIND = "scann_search"
_QUERIES = "tune_queries.npy"
_SMALLEST = 1024  # fewer documents are scored by brute force: nothing could be learnt from them
_TAIL = 4096  # as many added documents may be scored by brute force before ScaNN is built anew
_TUNED = 10  # of how many best the recall is reached, where nobody says otherwise
_ROW = 32  # documents that are scored by their codes in the time in which one is scored again, by its row


class ScannSearch:
    """ScaNN: a tree of leaves, asymmetric hashing inside them, the best candidates scored again from float32 rows.

    ScaNN knows no filters: with `allowed`, or after removals, more are fetched and those that may not be returned are
    dropped, twice as many each time until every query has its k; a filter that allows few documents is answered by
    brute force among them. Added documents are scored by brute force until they are a quarter of the rest.

    Args:
      vectors: float32[n, d]; may be memory-mapped, until a tail is merged. ScaNN has a copy of its own in memory.
      leaves: of the tree; None takes about 2√n of the n documents that ScaNN is built of.
      searched: leaves that a query looks into; None takes a sixteenth of them.
      reorder: candidates that are scored again; at least 1.5 · k are.
      recall: tunes `searched` and `reorder` to the least work that reaches this recall@10 of exact search, on documents
        with noise as queries, or on `tune_queries`, whenever ScaNN is built; None tunes nothing.
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
        self._wanted: dict[str, Any] = {"leaves": leaves, "searched": searched, "reorder": reorder, "recall": recall}
        if min(count for count in (leaves, searched, reorder, 1) if count is not None) < 1:
            raise InputError("leaves and candidates must be at least 1", "Correct them.", value=self._wanted)
        if recall is not None:
            _check_recall(recall)
        self._tune_queries = None if tune_queries is None else check_vectors(tune_queries, self.width)
        self._tune_k = _TUNED
        self._threads = threads or _cores()
        self._build()

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
        keep = filters
        if not live.all():
            keep = live[None] if filters is None else filters & live
        if not len(queries):
            return nothing_found(0, k)
        border, tail = len(self._stored.main), self._stored.tail
        parts = [self._search_main(queries, k, None if keep is None else keep[:, :border])]
        if len(tail):
            parts.append(_brute_force(queries, tail, None if keep is None else keep[:, border:], k, border))
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

    def tune(self, recall: float, queries: Float[np.ndarray, "m d"] | None = None, *, k: int = _TUNED) -> float:
        """Sets `searched` and `reorder` to what reaches a recall by the least work; returns the recall that is reached.

        What is asked for is kept, saved too, and sought again whenever ScaNN is built anew.

        For each number of candidates the fewest leaves are looked for; work is the documents in these leaves and
        the candidates, each by what it takes. So what is found depends on the vectors and queries alone, on no clock.

        Args:
          recall: of the k best, averaged over the queries; documents that score as the k-th best does count as found.
          queries: None draws 256 documents and adds noise to them.
          k: see `recall`.

        Raises:
          InputError: a recall that is no share, queries that do not fit, k < 1.
        """
        _check_recall(recall)
        if k < 1:
            raise InputError("recall is measured at a rank of 1 or more", "Give k ≥ 1.", value=k)
        self._tune_queries = None if queries is None else check_vectors(np.array(queries, np.float32), self.width)
        self._wanted["recall"], self._tune_k = recall, k
        return self._tune()

    def _tune(self) -> float:
        """See `tune`; to what was asked for last."""
        recall, queries = self._wanted["recall"], self._tune_queries
        vectors, leaves = self._stored.main, self.settings["leaves"]
        if self._searcher is None:
            return 1.0  # every document is scored
        queries = self._noisy_documents() if queries is None else queries
        k = min(self._tune_k, len(vectors))
        least = _brute_force(queries, vectors, None, k, 0)[1][:, -1:]
        least -= 1e-5 * np.abs(least)  # ScaNN sums in another order

        def reached(searched: int, reorder: int) -> float:
            self.settings |= {"searched": searched, "reorder": reorder}
            return float((self._fetch(queries, k)[1] >= least).mean())

        def work(searched: int, reorder: int) -> float:
            return searched * len(vectors) / leaves + _ROW * reorder

        best, most, reorder = None, leaves, min(5 * k, len(vectors))
        while best is None or work(1, reorder) < work(*best):
            if reached(most, reorder) >= recall:  # more candidates need no more leaves than fewer did
                too_few = 0
                while most - too_few > 1:
                    middle = (too_few + most) // 2
                    too_few, most = (too_few, middle) if reached(middle, reorder) >= recall else (middle, most)
                if best is None or work(most, reorder) < work(*best):
                    best = most, reorder
            if reorder == len(vectors):
                break
            reorder = min(reorder + reorder // 2 + 1, len(vectors))
        return reached(*(best or (leaves, len(vectors))))

    def _noisy_documents(self) -> Float[np.ndarray, "m d"]:
        rng = np.random.default_rng(0)
        vectors = self._stored.main
        drawn = vectors[np.sort(rng.choice(len(vectors), min(256, len(vectors)), replace=False))]
        noise = rng.standard_normal(drawn.shape, np.float32)
        return drawn + 0.5 * noise * np.linalg.norm(drawn, axis=1, keepdims=True) / np.float32(math.sqrt(self.width))

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the vectors, ScaNN's own files, and the queries that it was tuned on."""
        counts = {"documents": self.num_documents, "built": len(self._stored.main)}
        meta = {**self.settings, **counts, "wanted": {**self._wanted, "k": self._tune_k}}
        with storage.write_folder(folder, KIND, meta=meta) as new:
            self._stored.write(new)
            if self._tune_queries is not None:
                np.save(new / _QUERIES, self._tune_queries)
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
            search._wanted = {
                name: manifest.meta["wanted"][name] for name in ("leaves", "searched", "reorder", "recall")
            }
            search._tune_k = int(manifest.meta["wanted"].get("k", _TUNED))
            built = int(manifest.meta["built"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not a readable ScaNN search: {error}", "Make it again.", file=path) from error
        search._stored.split(built)
        queries = path / _QUERIES
        search._searcher = None
        search._tune_queries = storage.load_array(queries) if queries.exists() else None
        if (path / "scann").is_dir():
            search._searcher = optional(SCANN, "ScaNN search").load_searcher(str(path / "scann"))
            search._searcher.set_num_threads(search._threads)
        return search

    def _build(self) -> None:
        """Makes ScaNN's part of `main`; the settings that were left open are those of as many documents."""
        builder = optional(SCANN, "ScaNN search").builder
        vectors, wanted = self._stored.main, self._wanted
        n = len(vectors)
        leaves = min(wanted["leaves"] or min(round(2 * math.sqrt(n)), n // 50), n) or 1
        self.settings = {
            "leaves": leaves,
            "searched": min(wanted["searched"] or -(-leaves // 16), leaves),
            "reorder": wanted["reorder"],
        }
        self._searcher: Any = None
        if n < _SMALLEST:
            return
        self._searcher = (
            builder(np.asarray(vectors), 10, "dot_product")
            .tree(leaves, self.settings["searched"], training_sample_size=min(n, 250_000))
            .score_ah(2, anisotropic_quantization_threshold=0.2)
            .reorder(wanted["reorder"])
            .set_n_training_threads(self._threads)
            .build()
        )
        self._searcher.set_num_threads(self._threads)
        if wanted["recall"] is not None:
            self._tune()

    def _search_main(self, queries: np.ndarray, k: int, keep: np.ndarray | None) -> Found:
        vectors = self._stored.main
        if self._searcher is None:
            return _brute_force(queries, vectors, keep, k, 0)
        if keep is None or keep.all():
            found = self._fetch(queries, min(k, len(vectors)))
            if (found[0] >= 0).all():
                return merge([found], k)
            keep = np.ones((1, len(vectors)), bool)  # the leaves of some query hold too few
        found = nothing_found(len(queries), k)
        counts = np.broadcast_to(keep.sum(axis=1), len(queries))
        few = (counts < max(_SMALLEST, 4 * k)) | (counts < len(vectors) // 50)
        wanted = np.minimum(k, counts)
        for b in np.flatnonzero(few):
            row = keep[b if len(keep) > 1 else 0]
            found[0][b], found[1][b] = _among(queries[b], vectors, np.flatnonzero(row), k)
        open_ = np.flatnonzero(~few)
        fetch = min(2 * k, len(vectors))
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


def _check_recall(recall: float) -> None:
    if not 0 < recall <= 1:
        raise InputError("recall is a share", "Give a number above 0, 1 at most.", value=recall)


def _brute_force(queries: np.ndarray, vectors: np.ndarray, keep: np.ndarray | None, k: int, first: int) -> Found:
    """Exact, in blocks of documents; of equal scores the lower position."""
    found = nothing_found(len(queries), k)
    for start in range(0, len(vectors), 1 << 16):
        part = slice(start, min(start + (1 << 16), len(vectors)))
        scores = queries @ vectors[part].T  # --> [batch, block]
        if keep is not None:
            scores = np.where(keep[:, part], scores, np.float32(-np.inf))
        places = _largest(scores, k)
        high = np.take_along_axis(scores, places, 1)
        positions = np.where(np.isneginf(high), -1, places + start + first).astype(np.int32)
        found = merge([found, (positions, high)], k)
    return found


def _largest(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the k largest of each row, rising; of equal ones the lower places."""
    batch, n = scores.shape
    if k >= n:
        return np.broadcast_to(np.arange(n), scores.shape)
    last = np.partition(scores, n - k, axis=1)[:, n - k, None]
    above, equal = scores > last, scores == last
    chosen = above | (equal & (np.cumsum(equal, axis=1) <= k - above.sum(axis=1, keepdims=True)))
    return np.nonzero(chosen)[1].reshape(batch, k)


def _among(query: np.ndarray, vectors: np.ndarray, positions: np.ndarray, k: int) -> Found:
    """Exact, among a few documents, for one query."""
    scores = vectors[positions] @ query
    order = np.lexsort((positions, -scores))[:k]
    found = nothing_found(1, k)
    found[0][0, : len(order)], found[1][0, : len(order)] = positions[order], scores[order]
    return found[0][0], found[1][0]

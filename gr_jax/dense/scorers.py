"""Scoring the chosen clusters of each query by ScaNN: one brute-force scorer a cluster, which is asked for all of the
cluster's documents at once for every query that has chosen it.

ScaNN takes no clusters of others and no filters. What else could be had of it is to search the whole corpus and to drop
the documents of other clusters, twice as many each time until there are enough. `benchmarks.dense_search` measures both
(1M × 128, 5000 clusters, 100 answers). As fast as faiss' search_preassigned, about: with 10 clusters chosen, scorers .3
times and over-fetching .2 times; with 100, scorers .3 times and over-fetching 1.1 times. But over-fetching is not exact
(recall@100 of .995 and .993), and pays only where the nearest documents are in the chosen clusters: so scorers are the
backend. The compiled loops of `kernels` are faster than either (1.3 and 1.9 times) and need no copy of the rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gr_jax.dense.base import SCANN, Found, optional
from gr_jax.dense.gathering import best_of_entries
from gr_jax.dense.tiles import Tiles

# Scores that are held at once; more queries are searched one part after the other.
_MOST_SCORES = 1 << 24


class ClusterScorers:
    """ScaNN's scorers of the clusters of some tiles, each made when it is first needed."""

    def __init__(self, tiles: Tiles):
        self._tiles = tiles
        self._scann = optional(SCANN, "Clustered search by ScaNN")
        self._made: dict[int, Any] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of ScaNN's copies of the rows."""
        sizes = np.diff(self._tiles.offsets)
        return int(sum(sizes[c] for c in self._made)) * 4 * self._tiles.rows.shape[1]

    def search(
        self,
        queries: np.ndarray,
        clusters: np.ndarray,
        bonus: np.ndarray,
        k: int,
        live: np.ndarray,
        allowed: np.ndarray,
        *,
        tanh: bool,
    ) -> Found:
        """As `kernels.search`."""
        lengths = np.where(clusters >= 0, np.diff(self._tiles.offsets)[clusters], 0)  # --> [batch, chosen]
        together = max(1, _MOST_SCORES // max(1, int(lengths.sum(axis=1).max(initial=0))))
        allowed = np.broadcast_to(allowed, (len(queries), allowed.shape[1]))
        parts = [slice(first, first + together) for first in range(0, len(queries), together)] or [slice(0)]
        found = [
            self._search(queries[p], clusters[p], bonus[p], lengths[p], k, live, allowed[p], tanh=tanh) for p in parts
        ]
        positions, scores = zip(*found, strict=True)
        return np.concatenate(positions), np.concatenate(scores)

    def _search(self, queries, clusters, bonus, lengths, k: int, live, allowed, *, tanh: bool) -> Found:
        """The same of as many queries as can be held."""
        offsets, documents = self._tiles.offsets, self._tiles.documents
        starts = np.cumsum(lengths, axis=1) - lengths
        width = int(lengths.sum(axis=1).max(initial=0))
        scores = np.full((len(queries), width), -np.inf, np.float32)
        entries = np.zeros((len(queries), width), np.int64)
        chosen_by, places = np.nonzero(lengths)
        order = np.argsort(clusters[chosen_by, places], kind="stable")
        chosen_by, places = chosen_by[order], places[order]
        named, firsts = np.unique(clusters[chosen_by, places], return_index=True)
        for cluster, first, last in zip(named, firsts, np.append(firsts, len(order))[1:], strict=True):
            found, products = self._score(int(cluster), queries[chosen_by[first:last]])
            products = np.tanh(products) if tanh else products
            for row, b, j in zip(range(len(found)), chosen_by[first:last], places[first:last], strict=True):
                part = slice(starts[b, j], starts[b, j] + lengths[b, j])
                entries[b, part] = offsets[cluster] + found[row]
                scores[b, part] = products[row] + (bonus[b, j] if bonus.shape[1] else 0)
        if width:
            keep = live[documents[entries]]
            if allowed.shape[1]:
                keep &= np.take_along_axis(allowed, documents[entries], 1)
            scores = np.where(keep, scores, -np.inf)
        return best_of_entries(self._tiles, *_shortlist(entries, scores, k * self._tiles.multiplicity), k)

    def _score(self, cluster: int, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the cluster's documents inside it, and their scores; each [queries, size]."""
        first, last = self._tiles.offsets[cluster : cluster + 2]
        if cluster not in self._made:
            rows = np.asarray(self._tiles.rows[first:last])
            self._made[cluster] = self._scann.builder(rows, len(rows), "dot_product").score_brute_force().build()
        return self._made[cluster].search_batched(np.ascontiguousarray(queries), int(last - first))


def _shortlist(entries: np.ndarray, scores: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Those that are among the `most` best of their row or equal the last of them; the others need not be sorted."""
    if scores.shape[1] <= most:
        return entries, scores
    keep = scores >= np.partition(scores, -most, axis=1)[:, -most, None]
    keep &= ~np.isneginf(scores)
    order = np.argsort(~keep, axis=1, kind="stable")[:, : max(1, keep.sum(axis=1).max())]
    kept = np.take_along_axis(keep, order, 1)
    scores = np.where(kept, np.take_along_axis(scores, order, 1), -np.inf)
    return np.take_along_axis(entries, order, 1), scores

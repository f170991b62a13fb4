"""Scoring the chosen clusters of each query on the CPU, compiled by numba.

The (query, cluster) pairs of a batch are grouped by cluster, so that a tile is read from memory once, however many
queries have chosen it: nothing is left that a product with all documents could save. Then every query picks its best
from its own scores. A score is the same number whatever else is in the batch: one routine makes all of them.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from gr_jax.dense.base import Found, nothing_found
from gr_jax.dense.tiles import Tiles, candidates

_MOST_SCORES = 1 << 24  # scores that are held at once: more queries together read a tile less often
_ALONE = 1 << 18  # scores of one query that are held in fresh memory
_TOGETHER = 1 << 17  # numbers that are read for one query: for fewer a thread starts in vain


def search(
    tiles: Tiles,
    queries: np.ndarray,
    clusters: np.ndarray,
    bonus: np.ndarray,
    k: int,
    live: np.ndarray,
    allowed: np.ndarray,
    *,
    tanh: bool,
    overfetch: float | None,
) -> Found:
    """The k best documents of each query among those of its clusters.

    Args:
      tiles: of all clusters.
      queries: float32[batch, d].
      clusters: int32[batch, chosen]; −1 chooses none.
      bonus: float32[batch, chosen], added to the score of every document of that cluster; [batch, 0] adds nothing.
      k: documents of each query.
      live: bool[documents]; empty where all are.
      allowed: bool[1 or batch, documents]; [1, 0] allows all.
      tanh: scores are tanh(q·d) + bonus instead of q·d + bonus.
      overfetch: with int8 codes, about how many times k candidates are scored again from the float32 rows; None: the
        codes' own scores stand.

    Returns:
      Positions and scores, as `VectorSearch.search`.
    """
    queries, clusters, bonus, allowed = (np.ascontiguousarray(x) for x in (queries, clusters, bonus, allowed))
    if len(queries) == 1 and clusters.shape[1] * tiles.largest <= _ALONE:
        return _search_one(tiles, queries, clusters, bonus, k, live, allowed, tanh, overfetch)
    found = nothing_found(len(queries), k)
    sizes = np.diff(tiles.offsets)
    lengths = np.where(clusters >= 0, sizes[clusters], 0).sum(axis=1)
    ends = np.cumsum(lengths)
    start = 0
    with _lock:  # one batch uses all threads, and numba's simplest thread pool may not be entered twice
        while start < len(queries):
            done = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + _MOST_SCORES, side="right")))
            part = slice(start, stop)
            filters = allowed if len(allowed) == 1 else allowed[part]
            answer = _search(
                tiles, queries[part], clusters[part], bonus[part], k, live, filters, lengths[part], tanh, overfetch
            )
            found[0][part], found[1][part] = answer
            start = stop
    return found


@functools.cache
def _loops() -> Any:
    """Compiled when a search first needs them."""
    from gr_jax.dense import loops

    return loops


def _search(tiles, queries, clusters, bonus, k, live, allowed, lengths, tanh, overfetch) -> Found:
    loops = _loops()
    starts = np.zeros(len(queries) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    groups, pairs, places = loops.group(clusters, tiles.offsets, starts)
    scores = _scratch(int(starts[-1]))
    most, unique = k * tiles.multiplicity, tiles.multiplicity == 1
    if tiles.codes is None:
        loops.score(tiles.rows, queries, tiles.offsets, groups, pairs, places, scores)
        return loops.select(
            scores, starts, clusters, bonus, tiles.offsets, tiles.documents, live, allowed, k, most, tanh, False
        )
    codes = tiles.codes
    rounded, scales = loops.rounded(queries, codes.dimension_scales)
    loops.score_codes(codes.codes, codes.row_scales, rounded, scales, tiles.offsets, groups, pairs, places, scores)
    chosen = (scores, starts, clusters, bonus, tiles.offsets, tiles.documents, live, allowed)
    if overfetch is None:
        return loops.select(*chosen, k, most, tanh, False)
    most = candidates(most, overfetch)
    entries, _ = loops.select(*chosen, most, most, tanh, True)
    return loops.rescore(tiles.rows, queries, tiles.offsets, clusters, bonus, tiles.documents, entries, k, unique, tanh)


def _search_one(tiles, queries, clusters, bonus, k, live, allowed, tanh, overfetch) -> Found:
    """What `_search` finds for one query: scored by all threads where it is worth their start and none is searching."""
    loops = _loops()
    most, unique = k * tiles.multiplicity, tiles.multiplicity == 1
    length = clusters.shape[1] * tiles.largest
    together = length * queries.shape[1] >= _TOGETHER and _lock.acquire(blocking=False)
    try:
        scores = _scratch(length) if together else np.empty(length, np.float32)
        asked = (tiles.offsets, clusters, scores)
        chosen = (tiles.offsets, tiles.documents, clusters, bonus, live, allowed, k)
        if tiles.codes is None:
            (loops.score_together if together else loops.score_alone)(tiles.rows, queries, *asked)
            return loops.select_alone(scores, *chosen, most, tanh)
        codes = tiles.codes
        rounded, scales = loops.rounded(queries, codes.dimension_scales)
        score = loops.score_codes_together if together else loops.score_codes_alone
        score(codes.codes, codes.row_scales, rounded, scales, *asked)
        if overfetch is None:
            return loops.select_alone(scores, *chosen, most, tanh)
        return loops.select_codes_alone(scores, tiles.rows, queries, *chosen, candidates(most, overfetch), unique, tanh)
    finally:
        if together:
            _lock.release()


_lock = threading.Lock()
_kept: dict[str, np.ndarray] = {}


def _scratch(length: int) -> np.ndarray:
    """Room for scores, kept between calls: fresh memory costs as much as filling it."""
    room = _kept.get("scores")
    if room is None or len(room) < length:
        room = _kept["scores"] = np.empty(max(length, 1 << 16), np.float32)
    return room[:length]

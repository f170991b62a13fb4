"""The documents with the largest sums of the weights of a query's terms, from postings.

Where numba is installed a compiled loop finds them, else NumPy. Both add the same float64 numbers in the same order, so
that they find the same documents with the same scores, bit for bit.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import threading
from collections.abc import Sequence
from concurrent import futures

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax.dense.base import Found, nothing_found, usable
from gr_jax.retrievers.base import best

_WORTH_A_THREAD = 1 << 16  # postings: in the time in which a thread starts, the loop adds about as many


@dataclasses.dataclass(frozen=True)
class Postings:
    """Which documents have a term, and what it weighs there.

    Attributes:
      weights: float32[postings], by term.
      documents: int32[postings], ascending inside a term.
      offsets: int64[terms + 1]; the postings of term t are offsets[t]:offsets[t + 1].
      num_documents: positions in all.
    """

    weights: Float[np.ndarray, " postings"]
    documents: Int[np.ndarray, " postings"]
    offsets: Int[np.ndarray, " terms_plus_1"]
    num_documents: int

    def search(
        self, queries: Sequence[Sequence[int]], k: int, allowed: Bool[np.ndarray, "rows documents"] | None = None
    ) -> Found:
        """The k best documents of each query among those with a sum above 0; equal sums by lower position.

        Args:
          queries: the terms of each; a term counts as often as it is there.
          k: how many documents each gets at most.
          allowed: which may be found, one row for all queries or one for each; None allows all.

        Returns:
          positions int32[batch, k], −1 where there are fewer, and sums float32[batch, k], −inf there.
        """
        allowed = np.zeros((1, 0), bool) if allowed is None else allowed
        return (_by_loop if _compiled() else _by_numpy)(self, queries, k, allowed)


@functools.cache
def _compiled() -> bool:
    """Whether numba can be imported: looked up once, which takes longer than a query."""
    return usable("numba")


def _by_numpy(postings: Postings, queries: Sequence[Sequence[int]], k: int, allowed: np.ndarray) -> Found:
    found = nothing_found(len(queries), k)
    for row, terms in enumerate(queries):
        parts = [slice(postings.offsets[term], postings.offsets[term + 1]) for term in terms]
        if not parts:
            continue
        documents = np.concatenate([postings.documents[part] for part in parts])
        weights = np.concatenate([postings.weights[part] for part in parts])
        sums = np.bincount(documents, weights, minlength=postings.num_documents).astype(np.float32)
        eligible = sums > 0
        if allowed.shape[1]:
            eligible &= allowed[min(row, len(allowed) - 1)]
        places = best(sums, k, eligible)
        found[0][row, : len(places)], found[1][row, : len(places)] = places, sums[places]
    return found


def _by_loop(postings: Postings, queries: Sequence[Sequence[int]], k: int, allowed: np.ndarray) -> Found:
    from gr_jax.retrievers import posting_loops  # compiled when a search first needs it

    batch = len(queries)
    found = np.empty((batch, k), np.int32), np.empty((batch, k), np.float32)
    starts = np.array([0, *itertools.accumulate(map(len, queries))])
    terms = np.array(queries[0] if batch == 1 else [*itertools.chain.from_iterable(queries)], np.int64)
    allowed = np.ascontiguousarray(allowed)
    arrays = (postings.weights, postings.documents, postings.offsets, terms, starts)

    def search(first: int, last: int) -> None:
        sums = _zeros(postings.num_documents)
        posting_loops.search(*arrays, allowed, postings.num_documents, first, last, sums, *found)

    if batch == 1:
        search(0, 1)
        return found
    work = int((postings.offsets[terms + 1] - postings.offsets[terms]).sum())
    threads = max(1, min(_cores(), batch, work // _WORTH_A_THREAD))
    borders = [batch * part // threads for part in range(threads + 1)]
    if threads == 1:
        search(0, batch)
        return found
    with futures.ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(search, *part) for part in itertools.pairwise(borders[1:])]
        search(*borders[:2])
        for other in others:
            other.result()
    return found


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_kept = threading.local()


def _zeros(length: int) -> np.ndarray:
    """Room for sums, this thread's own: fresh memory costs more than many a query. Who uses it leaves zeros behind."""
    room = getattr(_kept, "sums", None)
    if room is None or len(room) < length:
        room = _kept.sums = np.zeros(length)
    return room

"""What is drawn for a query, from a seed and the query's place in the order alone."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from jaxtyping import Int32, Int64

from gr_jax.training.negatives import Negatives
from gr_jax.training.token_store import Ragged


class NegativeSource(Protocol):
    """Which table of negatives is drawn from at which step: `Negatives` or `RefreshedNegatives`."""

    @property
    def width(self) -> int: ...
    @property
    def settings(self) -> Any: ...
    def __len__(self) -> int: ...
    def at(self, step: int) -> Negatives: ...


def draw_columns(
    pool: Int32[np.ndarray, "B width"], places: Int64[np.ndarray, " B"], count: int, *, seed: int
) -> Int64[np.ndarray, "B n"]:
    """Columns of some of a row's entries, in the order in which they stand there; first of all those that are not −1.

    Args:
      pool: what is drawn from.
      places: of the rows in the order; with the seed they decide.
      count: how many; fewer where the pool is narrower.
      seed: of the draw.
    """
    keys = scramble(places[:, None] * pool.shape[1] + np.arange(pool.shape[1]), seed)
    keys[pool < 0] = np.iinfo(np.uint64).max
    return np.sort(np.argsort(keys, axis=1, kind="stable")[:, :count], axis=1)


def draw_negatives(
    table: Negatives | None,
    row: Int64[np.ndarray, " B"],
    places: Int64[np.ndarray, " B"],
    count: int,
    *,
    relevant: Ragged,
    num_documents: int,
    seed: int,
    taken: Int32[np.ndarray, "B c"] | None = None,
) -> tuple[Int32[np.ndarray, "B n"], Int64[np.ndarray, "B n"]]:
    """Negatives of each row: from the table, and where it has too few from all documents.

    Args:
      table: what they are drawn from; None: all documents.
      row: of each query in the table and in `relevant`.
      places: of the rows in the order; −1 is an empty row.
      count: of each query.
      relevant: documents that are no negatives of a query.
      num_documents: of the corpus.
      seed: of the draw.
      taken: more such documents, −1 where there are none.

    Returns:
      The documents, −1 where the corpus has too few; and which column of the table they come from, −1 where from none.
    """
    documents = np.full((len(row), count), -1, np.int32)
    columns = np.full((len(row), count), -1, np.int64)
    if table is not None and count and table.width:
        pool = np.asarray(table.documents[row])  # [B, width]
        if taken is not None:
            pool = np.where((pool[:, :, None] == taken[:, None, :]).any(axis=2), -1, pool)
        first = draw_columns(pool, places, count, seed=seed)
        picked = np.take_along_axis(pool, first, axis=1)
        documents[:, : first.shape[1]] = picked
        columns[:, : first.shape[1]] = np.where(picked >= 0, first, -1)
    for i in np.flatnonzero((documents < 0).any(axis=1) & (places >= 0)).tolist():
        known = {*relevant[int(row[i])].tolist(), *(() if taken is None else taken[i][taken[i] >= 0].tolist())}
        _fill(documents[i], known, num_documents, np.random.default_rng([seed, int(places[i])]))
    return documents, columns


def _fill(chosen: Int32[np.ndarray, " n"], known: set[int], num_documents: int, random: np.random.Generator) -> None:
    """Puts random documents, neither known nor chosen already, where there is none."""
    taken = {*known, *chosen[chosen >= 0].tolist()}
    missing = np.flatnonzero(chosen < 0).tolist()
    if 2 * (len(taken) + len(missing)) > num_documents:  # nearly all: draw from what is left
        left = np.setdiff1d(np.arange(num_documents), list(taken))
        found = random.permutation(left)[: len(missing)]
        chosen[missing[: len(found)]] = found
        return
    for n in missing:
        while (document := int(random.integers(num_documents))) in taken:
            pass
        chosen[n] = document
        taken.add(document)


def scramble(numbers: Int64[np.ndarray, " ..."], seed: int) -> np.ndarray:
    """uint64 that look random, one for each number and seed (the finaliser of splitmix64, Steele et al. 2014)."""
    mixed = numbers.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))

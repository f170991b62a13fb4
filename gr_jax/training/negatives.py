"""Documents that are shown to a query as wrong answers: at random, from rankings, from the answer's own cluster, mixed.

A row of every table belongs to one training query, and `relevant` says of every query which documents answer it; none
of these is ever a negative. `TokenStore.targets` of the queries that `ContrastiveBatches` reads is such a column. All
choices follow from a seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32

from gr_jax.errors import InputError
from gr_jax.training.tables import Table
from gr_jax.training.token_store import Ragged

_CHUNK = 1 << 15  # queries that are worked on at once


@dataclasses.dataclass(frozen=True)
class Negatives(Table):
    """Wrong answers of every query.

    Attributes:
      documents: positions in the corpus, −1 where there are fewer. No document comes twice in a row.
      teacher_scores: a teacher's of the query's positive and of each negative, NaN where there is none.

    Raises:
      InputError: the shapes do not fit together.
    """

    kind = "negatives"

    documents: Int32[np.ndarray, "queries n"]
    teacher_scores: Float32[np.ndarray, "queries n_plus_one"] | None = None

    def __post_init__(self):
        rows, columns = self.documents.shape
        scores, shape = self.teacher_scores, (rows, columns + 1)
        if scores is not None and scores.shape != shape:
            raise InputError(
                f"teacher_scores of negatives must have the shape {shape}", "Give one row a query.", value=scores.shape
            )


def random_negatives(relevant: Ragged, num_documents: int, count: int, *, seed: int = 0) -> Negatives:
    """Documents drawn uniformly.

    Args:
      relevant: of every query the documents that answer it.
      num_documents: of the corpus.
      count: negatives of a query.
      seed: of the draw.
    """
    everything = np.arange(num_documents)

    def draw(random: np.random.Generator, rows: range, size: int) -> np.ndarray:
        return random.integers(0, num_documents, (len(rows), size))

    return _drawn(relevant, num_documents, count, seed, draw, lambda row: everything)


def cluster_negatives(
    cluster_of: Int[np.ndarray, " documents"] | Int[np.ndarray, "documents most"],
    relevant: Ragged,
    count: int,
    *,
    seed: int = 0,
) -> Negatives:
    """Documents drawn from the clusters of the query's first relevant document (GDR's intra-cluster negatives).

    Args:
      cluster_of: the cluster of every document, 0, 1, …; or all of its clusters, at least one, −1 where it has fewer.
      relevant: of every query the documents that answer it, at least one.
      count: negatives of a query; fewer where the cluster is smaller.
      seed: of the draw.
    """
    clusters_of = np.asarray(cluster_of).reshape(len(cluster_of), -1)
    documents, place = np.nonzero(clusters_of >= 0)
    clusters = clusters_of[documents, place]
    documents = documents[np.argsort(clusters, kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(clusters))])
    own = clusters_of[first_relevant(relevant)]  # [queries, most]
    sizes = np.where(own >= 0, starts[own + 1] - starts[own], 0)
    ends = np.cumsum(sizes, axis=1)

    def draw(random: np.random.Generator, rows: range, size: int) -> np.ndarray:
        part = slice(rows.start, rows.stop)
        picked = (random.random((len(rows), size)) * ends[part, -1:]).astype(np.int64)
        which = (picked[:, :, None] >= ends[part, None, :]).sum(axis=2)  # of the clusters
        before = np.take_along_axis((ends - sizes)[part], which, axis=1)
        return documents[starts[np.take_along_axis(own[part], which, axis=1)] + picked - before]

    def members(row: int) -> np.ndarray:
        return np.concatenate([documents[starts[c] : starts[c + 1]] for c in own[row] if c >= 0])

    return _drawn(relevant, len(clusters_of), count, seed, draw, members)


def ranked_negatives(
    ranking: Int[np.ndarray, "queries depth"],
    relevant: Ragged,
    count: int,
    *,
    skip: int = 0,
) -> Negatives:
    """What a retriever ranks high and does not answer: BM25's for DPR, the model's own for ANCE.

    Args:
      ranking: documents of every query, best first, −1 where there are fewer.
      relevant: of every query the documents that answer it.
      count: negatives of a query.
      skip: first ranks that are passed over, relevant documents included: near the top may stand answers that nobody
        judged.
    """
    _same_queries(len(ranking), relevant)
    result = np.full((len(ranking), count), -1, np.int32)
    for rows in _chunks(len(ranking)):
        pool = np.array(ranking[rows.start : rows.stop, skip:], np.int64)
        pool[_is_relevant(pool, rows, relevant)] = -1
        result[rows.start : rows.stop] = _take(pool, np.full(len(rows), count), count)
    return Negatives(result)


def mix(sources: Mapping[str, Negatives], shares: Mapping[str, float], count: int) -> Negatives:
    """One table from several, at given ratios.

    Of every query's `count` negatives each source gives its share, the first ones of its own. What it cannot give,
    because it has too few or they were taken already, the sources named after it give: name them hard → standard →
    random.

    Args:
      sources: name → table; a teacher's scores are not kept (score the mixture).
      shares: name → how much of it; shares need not sum to 1. A source without one only fills up.
      count: negatives of a query.

    Raises:
      InputError: there is no source, they are of different queries, or the shares make no sense.
    """
    unknown = sorted(set(shares) - set(sources))
    if unknown or not sources or not all(0 <= share < float("inf") for share in shares.values()):
        raise InputError(
            "not shares of sources of negatives",
            f"Give {', '.join(sources) or 'at least one source'} shares of 0 or more.",
            value=dict(shares),
        )
    if not any(shares.values()):
        raise InputError("no source of negatives has a share", "Give one a share above 0.", value=dict(shares))
    if len({len(table) for table in sources.values()}) > 1:
        raise InputError(
            "tables of negatives of different queries cannot be mixed",
            "Make them for the same queries.",
            value={name: len(table) for name, table in sources.items()},
        )
    quota = _quota([shares.get(name, 0.0) for name in sources], count)
    queries = len(next(iter(sources.values())))
    documents = np.full((queries, count), -1, np.int32)
    for rows in _chunks(queries):
        block = documents[rows.start : rows.stop]
        due = np.zeros(len(rows), np.int64)  # what the sources so far should have given
        for table, share in zip(sources.values(), quota, strict=True):
            due += share
            pool = np.asarray(table.documents[rows.start : rows.stop], np.int64)
            block[:] = _take(pool, due, count, block)
    return Negatives(documents)


def first_relevant(relevant: Ragged) -> Int32[np.ndarray, " queries"]:
    """The first relevant document of every query.

    Raises:
      InputError: a query has none.
    """
    without = np.flatnonzero(relevant.lengths == 0)
    if len(without):
        raise InputError(
            "a training query has no relevant document", "Leave such queries out.", value=f"query {without[0]}"
        )
    return np.asarray(relevant.tokens[relevant.offsets[:-1]])


def check_documents(relevant: Ragged, num_documents: int) -> None:
    """Refuses queries of another corpus.

    Raises:
      InputError: naming the first query that a document answers which is not there.
    """
    answers = np.asarray(relevant.tokens)
    strange = np.flatnonzero((answers < 0) | (answers >= num_documents))
    if len(strange):
        query = int(np.searchsorted(relevant.offsets, strange[0], side="right")) - 1
        raise InputError(
            f"query {query} is answered by a document that is none of the {num_documents}",
            "Make queries and documents from the same corpus.",
            value=int(answers[strange[0]]),
        )


def _drawn(relevant: Ragged, num_documents: int, count: int, seed: int, draw: Any, members: Any) -> Negatives:
    """Draws with replacement, keeps what differs and is not relevant; short rows are drawn from all their `members`."""
    check_documents(relevant, num_documents)
    result = np.full((len(relevant), count), -1, np.int32)
    for number, rows in enumerate(_chunks(len(relevant))):
        random = _rng(seed, number)
        pool = draw(random, rows, 2 * count + 4)
        pool[_is_relevant(pool, rows, relevant)] = -1
        block = _take(pool, np.full(len(rows), count), count)
        for row in np.flatnonzero((block < 0).any(axis=1)).tolist():
            own = np.setdiff1d(members(rows[row]), relevant[rows[row]])
            chosen = random.permutation(own)[:count]
            block[row, : len(chosen)] = chosen
        result[rows.start : rows.stop] = block
    return Negatives(result)


def _take(
    pool: Int[np.ndarray, "rows m"],
    due: Int[np.ndarray, " rows"],
    count: int,
    taken: Int32[np.ndarray, "rows count"] | None = None,
) -> Int32[np.ndarray, "rows count"]:
    """What is taken then: the first documents of every row's pool that are there and were not taken, until a row has as
    many as are due."""
    result = np.full((len(pool), count), -1, np.int32) if taken is None else taken.copy()
    filled = (result >= 0).sum(axis=1)
    for column in range(pool.shape[1]):
        candidate = pool[:, column]
        fits = (candidate >= 0) & (filled < due) & ~(result == candidate[:, None]).any(axis=1)
        rows = np.flatnonzero(fits)
        if not len(rows) and (filled >= due).all():
            break
        result[rows, filled[rows]] = candidate[rows]
        filled[rows] += 1
    return result


def _is_relevant(pool: Int[np.ndarray, "rows m"], rows: range, relevant: Ragged) -> Bool[np.ndarray, "rows m"]:
    lengths = relevant.lengths[rows.start : rows.stop]
    pairs = relevant.tokens[relevant.offsets[rows.start] : relevant.offsets[rows.stop]].astype(np.int64)
    height = 1 + max(int(pairs.max(initial=0)), int(pool.max(initial=0)))
    known = np.repeat(np.arange(len(rows)), lengths) * height + pairs
    return np.isin(np.arange(len(rows))[:, None] * height + pool, known) & (pool >= 0)


def _quota(shares: list[float], count: int) -> list[int]:
    """Whole numbers in the ratio of the shares that sum to `count`: largest remainders are rounded up."""
    exact = np.array(shares) / sum(shares) * count
    whole = np.floor(exact + 1e-9).astype(np.int64)
    up = np.argsort(whole - exact, kind="stable")[: count - whole.sum()]
    whole[up] += 1
    return whole.tolist()


def _same_queries(queries: int, relevant: Ragged) -> None:
    if queries != len(relevant):
        raise InputError(
            f"rankings of {queries} queries and relevant documents of {len(relevant)}",
            "Give one ranking for each query.",
        )


def _chunks(queries: int) -> Iterator[range]:
    return (range(start, min(start + _CHUNK, queries)) for start in range(0, queries, _CHUNK))


def _rng(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])

"""What every vector search answers to, and the checks and the merging that all of them share."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax.errors import InputError

Found = tuple[Int[np.ndarray, "batch k"], Float[np.ndarray, "batch k"]]
SCANN = "scann.scann_ops.py.scann_ops_pybind"  # the part of the package that does without TensorFlow
MOST_CLUSTERS = 1 << 24
Allowed = Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"]


class VectorSearch(Protocol):
    """The documents with the largest inner product.

    Inner product is the one similarity of search: cosine is that of rows of unit length. tanh(q·d) rises with q·d, but
    in float32 different large products have one tanh: what it ties, q·d may still tell apart.
    """

    @property
    def num_documents(self) -> int:
        """Positions that have been given out, those of removed documents included."""
        ...

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of vectors, codes and tables that it holds in memory; memory-mapped files do not count."""
        ...

    def search(self, queries: Float[Any, "batch d"], k: int, *, allowed: Allowed | None = None) -> Found:
        """The k best documents of each query.

        Args:
          queries: [batch, d].
          k: how many documents each query gets at most.
          allowed: which documents may be returned, one row for all queries or one for each; None allows all.

        Returns:
          positions int32[batch, k], best first, equal scores by lower position; −1 where there are fewer.
          scores float32[batch, k]; −inf where the position is −1.

        Raises:
          InputError: shapes that do not fit, values that are not finite, k < 1.
        """
        ...

    def add(self, vectors: Float[np.ndarray, "n d"]) -> None:
        """Adds documents; they get the next positions."""
        ...

    def remove(self, positions: Int[np.ndarray, " n"]) -> None:
        """Removes documents; the others keep their positions."""
        ...

    def save(self, folder: str | os.PathLike) -> None:
        """Writes it as an artefact; `load_searcher` reads it."""
        ...


def check_vectors(vectors: Any, width: int | None = None, *, block: int = 1 << 16) -> Float[np.ndarray, "n d"]:
    """Returns vectors as float32 [n, d] without a copy where they are that already; refuses what cannot be ranked.

    Args:
      vectors: [n, d]; may be memory-mapped.
      width: the d that they must have; None takes any.
      block: rows that are looked at at once.

    Raises:
      InputError: not a matrix, another width, or a value that is not finite.
    """
    vectors = np.asanyarray(vectors)
    if vectors.ndim != 2 or vectors.shape[1] != (width or vectors.shape[1]) or not vectors.shape[1]:
        raise InputError(
            "vectors must be a matrix with a row for each",
            f"Give float32[n, {width or 'd'}].",
            value=vectors.shape,
        )
    vectors = np.ascontiguousarray(vectors, dtype=np.float32) if not _is_plain(vectors) else vectors
    if len(vectors) == 1 and math.isfinite(vectors[0].dot(vectors[0])):  # of one query, the cheaper question
        return vectors
    for start in range(0, len(vectors), block):
        finite = np.isfinite(vectors[start : start + block])
        if not finite.all():
            finite = finite.all(axis=1)
            raise InputError(
                "a vector has a value that is not finite",
                "Find out how its text was encoded.",
                value=f"row {start + int(np.argmin(finite))}",
            )
    return vectors


def _is_plain(vectors: np.ndarray) -> bool:
    return vectors.dtype == np.float32 and vectors.flags.c_contiguous


def check_search(
    queries: Any, k: int, allowed: Allowed | None, *, width: int, documents: int
) -> tuple[Float[np.ndarray, "batch d"], Bool[np.ndarray, "rows documents"] | None]:
    """The queries as float32 and the filter as a matrix of one row or of one for each query.

    Raises:
      InputError: shapes that do not fit, values that are not finite, k < 1.
    """
    if k < 1:
        raise InputError("a search returns at least one document", "Give k ≥ 1.", value=k)
    queries = check_vectors(np.asarray(queries), width)
    if allowed is None:
        return queries, None
    allowed = np.atleast_2d(np.asarray(allowed))
    if allowed.dtype != bool or allowed.shape not in ((1, documents), (len(queries), documents)):
        raise InputError(
            "the filter does not fit",
            f"Give bool[{documents}], or bool[{len(queries)}, {documents}] for a filter of each query.",
            value=f"{allowed.dtype}{list(allowed.shape)}",
        )
    return queries, allowed


def check_positions(positions: Any, documents: int) -> Int[np.ndarray, " n"]:
    """Positions of documents as int64.

    Raises:
      InputError: one of them is no document's.
    """
    positions = np.asarray(positions).reshape(-1)
    if positions.size == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(positions.dtype, np.integer) or positions.min() < 0 or positions.max() >= documents:
        raise InputError(
            "no such document", f"Give whole numbers from 0 to {documents - 1}.", value=positions.tolist()[:8]
        )
    return positions.astype(np.int64)


def check_clusters(clusters: Any, documents: int, num_clusters: int | None) -> Int[np.ndarray, "n m"]:
    """The clusters of documents as a matrix.

    Raises:
      InputError: another number of rows than documents, no such cluster, a document that is in one twice.
    """
    clusters = np.asarray(clusters)
    if clusters.ndim not in (1, 2) or len(clusters) != documents or not np.issubdtype(clusters.dtype, np.integer):
        raise InputError(
            "the clusters do not fit the vectors",
            f"Give int[{documents}] or int[{documents}, m].",
            value=clusters.shape,
        )
    clusters = (clusters[:, None] if clusters.ndim == 1 else clusters).astype(np.int64)
    _check_numbers(clusters, num_clusters or MOST_CLUSTERS, "document")
    return clusters


def check_chosen(
    clusters: Any, scores: Any, batch: int, num_clusters: int
) -> tuple[Int[np.ndarray, "batch chosen"], Float[np.ndarray, "batch chosen_or_0"]]:
    """The clusters that queries have chosen, and what each adds to scores ([batch, 0] where nothing is added).

    Raises:
      InputError: shapes that do not fit, no such cluster, one that is chosen twice, values that are not finite.
    """
    clusters = np.asarray(clusters)
    if clusters.ndim != 2 or len(clusters) != batch or not np.issubdtype(clusters.dtype, np.integer):
        raise InputError(
            "the chosen clusters do not fit the queries", f"Give int[{batch}, chosen].", value=clusters.shape
        )
    _check_numbers(clusters, num_clusters, "query")
    clusters = np.ascontiguousarray(clusters, np.int32)
    if scores is None:
        return clusters, np.zeros((batch, 0), np.float32)
    scores = np.ascontiguousarray(scores, np.float32)
    if scores.shape != clusters.shape:
        raise InputError(
            "the clusters' scores do not fit the clusters", f"Give float{list(clusters.shape)}.", value=scores.shape
        )
    wrong = ~np.isfinite(scores) & (clusters >= 0)
    if wrong.any():
        row, place = np.argwhere(wrong)[0]
        raise InputError(
            "one of the clusters' scores is not finite",
            "Find out who gave it.",
            value=f"{scores[row, place]} for cluster {clusters[row, place]} of query {row}",
        )
    return clusters, np.where(clusters >= 0, scores, np.float32(0))


def _check_numbers(clusters: Int[np.ndarray, "n m"], count: int, whose: str) -> None:
    """InputError where a row names a cluster that is not among the first `count`, or one twice; it says which."""
    if not clusters.size:
        return
    if len(clusters) == 1:  # of one query, which arrays would hold up
        row = clusters[0].tolist()
        if min(row) >= 0 and max(row) < count and len(set(row)) == len(row):
            return
    ordered = np.sort(clusters, axis=1)
    if ordered[:, 0].min() < -1 or ordered[:, -1].max() >= count:
        row, place = np.argwhere((clusters < -1) | (clusters >= count))[0]
        raise InputError(
            "no such cluster",
            f"Give numbers from 0 to {count - 1}, or -1 for none.",
            value=f"{clusters[row, place]} of {whose} {row}",
        )
    twice = ordered[:, 1:] == ordered[:, :-1]
    if twice.any() and (twice & (ordered[:, 1:] >= 0)).any():
        row, place = np.argwhere(twice & (ordered[:, 1:] >= 0))[0]
        raise InputError(
            f"a {whose} has one cluster twice",
            "Name each cluster once, and fill up with -1.",
            value=f"{ordered[row, place]} of {whose} {row}",
        )


def nothing_found(batch: int, k: int) -> Found:
    """The answer where there is none."""
    return np.full((batch, k), -1, np.int32), np.full((batch, k), -np.inf, np.float32)


def merge(parts: list[Found], k: int) -> Found:
    """The k best of several answers about different documents; equal scores by lower position."""
    if len(parts) == 1 and parts[0][0].shape[1] == k:
        return parts[0]
    positions = np.concatenate([positions for positions, _ in parts], axis=1)
    scores = np.concatenate([scores for _, scores in parts], axis=1)
    if len(parts) > 1:
        order = np.lexsort((positions, -scores), axis=1)[:, :k]
        positions, scores = np.take_along_axis(positions, order, 1), np.take_along_axis(scores, order, 1)
    found = nothing_found(len(positions), k)
    wide = min(k, positions.shape[1])
    found[0][:, :wide], found[1][:, :wide] = positions[:, :wide], scores[:, :wide]
    return found


def held(*arrays: np.ndarray | None) -> int:
    """Bytes of arrays that are in memory; memory-mapped ones are the system's to keep or drop."""
    return sum(a.nbytes for a in arrays if a is not None and not is_mapped(a))


def is_mapped(array: Any) -> bool:
    """Whether an array is a memory-mapped file, or a view of one."""
    while array is not None:
        # A copy of a mapped array is a np.memmap too, but in memory.
        if isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None:
            return True
        array = getattr(array, "base", None)
    return False


def optional(name: str, what: str) -> Any:
    """Imports an optional package.

    Raises:
      InputError: it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        if importlib.util.find_spec(package) is not None:
            raise InputError(
                f"{what}: the package {package} is installed and cannot be imported: {error}",
                "Install a version of it that fits what else is installed.",
            ) from error
        raise InputError(f"{what} needs the package {package}", "pip install 'gr_jax[search]'") from error


def usable(name: str) -> bool:
    """Whether an optional package can be imported: what is installed may not fit this machine or other packages."""
    try:
        optional(name, "vector search")
    except InputError:
        return False
    return True

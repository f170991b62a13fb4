"""Docids that are paths through a hierarchy of clusters (DSI, Tay et al. 2022, section 3.2; NCI, section 3.1)."""

from __future__ import annotations

import gin
import numpy as np
from jaxtyping import Float

from gr_jax.clustering import cluster_hierarchically
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

TOKENS = ("position", "node")


@gin.configurable(module="gr_jax.docids")
def hierarchical_kmeans(
    embeddings: Float[np.ndarray, "n d"],
    *,
    branching: int = 30,
    leaf_capacity: int = 30,
    seed: int = 0,
    tokens: str = "position",
    first_token: int = 2,
    metric: str = "euclidean",
    iterations: int = 30,
    progress: bool = False,
) -> Docids:
    """One docid for each document: the clusters it is in from the coarsest to its leaf, then its place in the leaf.

    Clusters of more than `leaf_capacity` documents are split into `branching`, so docids differ in length; none is a
    prefix of another, so there is no EOS.

    Args:
      embeddings: a row for each document.
      branching: clusters of every split.
      leaf_capacity: most documents of a leaf.
      seed: of the k-means seedings.
      tokens: "position": child c at level i is the token first_token + i · max(branching, leaf_capacity) + c (the
        position-aware tokens of NCI). "node": every cluster and every document has a token of its own, level after
        level.
      first_token: tokens below it are left to padding, EOS, ….
      metric: "euclidean" or "cosine".
      iterations: most Lloyd steps of a split.
      progress: show a bar.

    Raises:
      InputError: see `cluster_hierarchically`; unknown `tokens`; first_token < 1.
    """
    if tokens not in TOKENS:
        raise InputError("unknown kind of docid tokens", f"Use one of {', '.join(TOKENS)}.", value=tokens)
    if first_token < 1:
        raise InputError("0 is padding, not a docid token", "Give first_token ≥ 1.", value=first_token)
    tree = cluster_hierarchically(
        embeddings,
        branching=branching,
        leaf_capacity=leaf_capacity,
        seed=seed,
        metric=metric,
        iterations=iterations,
        progress=progress,
    )
    codes = _with_leaf_place(tree.paths, tree.lengths)
    if tokens == "position":
        size = max(branching, leaf_capacity)
        levels = [(first_token + level * size, size) for level in range(codes.shape[1])]
        starts = np.asarray([start for start, _ in levels], np.int32)
        matrix = np.where(codes < 0, 0, codes + starts)
    else:
        matrix, levels = _node_tokens(codes, first_token)
    return Docids.build(
        matrix,
        vocab_size=sum(levels[-1]),
        levels=levels,
        scheme="hierarchical_kmeans",
        meta={
            "branching": branching,
            "leaf_capacity": leaf_capacity,
            "seed": seed,
            "tokens": tokens,
            "first_token": first_token,
            "metric": metric,
            "iterations": iterations,
        },
    )


def _with_leaf_place(paths: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Paths with one more code: the number of the document among those of its leaf, in document order."""
    n, depth = paths.shape
    codes = np.concatenate([paths, np.full((n, 1), -1, np.int32)], axis=1)
    order = np.lexsort([np.arange(n), *paths.T[::-1]])
    new_leaf = np.ones(n, bool)
    new_leaf[1:] = (paths[order[1:]] != paths[order[:-1]]).any(axis=1)
    starts = np.flatnonzero(new_leaf)
    place = np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
    codes[order, lengths[order]] = place
    return codes


def _node_tokens(codes: np.ndarray, first_token: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Numbers the nodes of each level in the order of their paths, level after level."""
    order = np.lexsort(codes.T[::-1])
    matrix = np.zeros_like(codes)
    levels = []
    changed = np.zeros(len(codes), bool)
    changed[0] = True
    start = first_token
    for level in range(codes.shape[1]):
        column = codes[order, level]
        changed[1:] |= column[1:] != column[:-1]
        inside = column >= 0
        number = np.cumsum(changed & inside) - 1
        matrix[order, level] = np.where(inside, start + number, 0)
        levels.append((start, int(number[-1]) + 1))
        start += levels[-1][1]
    return matrix, levels

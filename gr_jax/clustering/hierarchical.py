"""Hierarchical k-means: clusters of clusters, level by level (DSI, Tay et al. 2022, section 3.2)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from gr_jax import progress as progress_bars
from gr_jax.clustering import lloyd
from gr_jax.clustering.kmeans import bucket, check_embeddings, kmeans, seeding_numbers, together
from gr_jax.errors import InputError

# Points of the nodes that are clustered by one call: bounds memory (× d × 4 bytes, a few copies).
_POINTS_PER_CALL = 1 << 15
# Nodes from this size on are clustered one by one: plain matrix products, and none waits for another to settle.
_LARGE = 1 << 12


@dataclasses.dataclass(frozen=True)
class ClusterTree:
    """Where each document stands in the tree.

    Attributes:
      paths: int32[n, depth]; the child that is taken at each level, −1 after the document's leaf. Children are
        numbered from 0 without gaps.
      lengths: int32[n], levels above each document's leaf; 0 for all where the root already is a leaf.
    """

    paths: np.ndarray
    lengths: np.ndarray

    def leaves(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " leaves"]]:
        """The leaf of each document, leaves numbered in the order of their paths, and one document of each leaf."""
        order = np.lexsort(self.paths.T[::-1]) if self.paths.shape[1] else np.arange(len(self.paths))
        new = np.ones(len(order), bool)
        new[1:] = (self.paths[order[1:]] != self.paths[order[:-1]]).any(axis=1)
        leaf = np.empty(len(order), np.int32)
        leaf[order] = np.cumsum(new) - 1
        return leaf, order[new]


def cluster_hierarchically(
    embeddings: Float[np.ndarray, "n d"],
    *,
    branching: int | Sequence[int] = 30,
    leaf_capacity: int = 30,
    seed: int = 0,
    metric: str = "euclidean",
    iterations: int = 30,
    max_levels: int | None = None,
    max_leaves: int | None = None,
    progress: bool = False,
) -> ClusterTree:
    """Splits every cluster of more than `leaf_capacity` documents into `branching` clusters, level by level.

    A cluster that k-means cannot split (its embeddings are all the same), or that is still too large `max_levels` deep,
    is cut into equal parts in document order, so the depth is bounded whatever the embeddings are.

    Args:
      embeddings: [n, d].
      branching: k of every split, ≥ 2; or of the splits of each level, the last for all deeper ones.
      leaf_capacity: most documents of a leaf, ≥ 1.
      seed: of all the seedings.
      metric: "euclidean" or "cosine".
      iterations: most Lloyd steps of a split.
      max_levels: k-means levels at most; below them clusters are cut in equal parts. Default: 8 more than twice those
        of a balanced tree.
      max_leaves: a budget of leaves. The largest nodes of a level are split first, and where the budget is spent, nodes
        stay as they are, however large. Where several widths make so many leaves, but nodes have fewer documents than
        that takes, the last width is raised, rather than that a further level gets the rest.
      progress: show a bar.

    Raises:
      InputError: see `kmeans`; branching < 2; leaf_capacity < 1; max_leaves < 1; seed < 0.
    """
    widths = (branching,) if isinstance(branching, int) else tuple(branching)
    if not widths or min(widths) < 2:
        raise InputError("a tree needs at least two branches", "Give branching ≥ 2.", value=branching)
    if max_leaves is not None and max_leaves < 1:
        raise InputError("a tree has at least one leaf", "Give max_leaves ≥ 1.", value=max_leaves)
    if leaf_capacity < 1:
        raise InputError("a leaf needs room for a document", "Give leaf_capacity ≥ 1.", value=leaf_capacity)
    if seed < 0:
        raise InputError("a seed cannot be negative", "Give seed ≥ 0.", value=seed)
    points = check_embeddings(embeddings, metric)
    n = len(points)
    if max_levels is None:
        max_levels = 8 + 2 * math.ceil(math.log(max(n / leaf_capacity, 1)) / math.log(min(widths)))
    columns: list[np.ndarray] = []
    lengths = np.zeros(n, np.int32)
    nodes = [np.arange(n)]
    leaves = 0
    with progress_bars.bar("Clustering documents", n, enabled=progress) as bar:
        while True:
            level = len(columns)
            width = widths[min(level, len(widths) - 1)]
            room = n * width if max_leaves is None else max_leaves - leaves - len(nodes)
            if max_leaves is not None and level == len(widths) - 1 > 0 and math.prod(widths) >= max_leaves:
                width = _wide_enough([len(node) for node in nodes if len(node) > leaf_capacity], width, room)
            splits = _choose_splits(nodes, leaf_capacity, width, room)
            leaves += len(nodes) - sum(len(chosen) for chosen in splits.values())
            bar.advance(sum(map(len, nodes)) - sum(len(node) for chosen in splits.values() for node in chosen))
            if not splits:
                break
            column = np.full(n, -1, np.int32)
            nodes = []
            for k, splitting in splits.items():
                split = (
                    _split_all(points, splitting, k, seed, level, metric, iterations)
                    if level < max_levels
                    else ((node, np.zeros(len(node), np.int32)) for node in splitting)
                )
                for node, child in split:
                    _, child = np.unique(child, return_inverse=True)  # k-means may leave a cluster empty: close the gap
                    if child.max() == 0:
                        child = np.arange(len(node)) * k // len(node)
                        _, child = np.unique(child, return_inverse=True)
                    column[node] = child
                    order = np.argsort(child, kind="stable")
                    nodes.extend(np.split(node[order], np.cumsum(np.bincount(child))[:-1]))
            lengths += column >= 0
            columns.append(column)
    paths = np.stack(columns, axis=1) if columns else np.zeros((n, 0), np.int32)
    return ClusterTree(paths, lengths)


def _choose_splits(
    nodes: Sequence[np.ndarray], leaf_capacity: int, width: int, room: int
) -> dict[int, list[np.ndarray]]:
    """k → the nodes to split into k: all that are too large, the largest first while they make at most `room` more."""
    large = [number for number, node in enumerate(nodes) if len(node) > leaf_capacity]
    k_of = {}
    for number in sorted(large, key=lambda number: -len(nodes[number])):
        k = min(width, room + 1)
        if k < 2:
            break
        k_of[number] = k
        room -= min(k, len(nodes[number])) - 1  # a small node makes no more leaves than it has documents
    splits: dict[int, list[np.ndarray]] = {}
    for number in sorted(k_of):
        splits.setdefault(k_of[number], []).append(nodes[number])
    return splits


def _wide_enough(sizes: Sequence[int], width: int, room: int) -> int:
    """The least width, `width` or more, with which nodes of these sizes make `room` more, or as many as they can."""
    while width < max(sizes, default=0) and sum(min(width, size) - 1 for size in sizes) < room:
        width += 1
    return width


def _split_all(points, nodes, k, seed, level, metric, iterations) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each node's documents and the cluster of each. Nodes of like size share one compiled call."""
    by_size: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        by_size.setdefault(bucket(len(node)), []).append(number)
    for size, numbers in sorted(by_size.items()):
        if size >= _LARGE:
            for number in numbers:
                found = kmeans(
                    points[nodes[number]], k, seed=(seed, level, number), metric=metric, iterations=iterations
                )
                yield nodes[number], found.assignments
            continue
        at_once = min(_POINTS_PER_CALL // size, 8 ** math.ceil(math.log(max(len(numbers), 2), 8)))  # few shapes, too
        for start in range(0, len(numbers), at_once):
            part = numbers[start : start + at_once]
            batch = np.zeros((at_once, size, points.shape[1]), np.float32)
            counts = np.ones(at_once, np.int32)  # the empty rows of the last call are problems of one point
            uniforms = np.zeros((at_once, *seeding_numbers(k, seed).shape), np.float32)
            for row, number in enumerate(part):
                batch[row, : len(nodes[number])] = points[nodes[number]]
                counts[row] = len(nodes[number])
                uniforms[row] = seeding_numbers(k, seed, level, number)
            _, nearest, _, _ = lloyd.fit_batch(
                batch,
                counts,
                uniforms,
                k=k,
                iterations=iterations,
                tolerance=1e-4,
                spherical=metric == "cosine",
            )
            nearest = np.asarray(nearest)
            for row, number in enumerate(part):
                yield nodes[number], together(batch[row, : len(nodes[number])], nearest[row, : len(nodes[number])])

"""k-means within each of many groups of points, such as the states of each token (CGR, Lee et al. 2022, arXiv
2210.02068, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from gr_jax import progress as progress_lib
from gr_jax.clustering import lloyd
from gr_jax.clustering.kmeans import check_embeddings, kmeans, seeding_numbers, together
from gr_jax.errors import InputError

_LARGE = 1 << 13  # points of a group that is clustered by itself
_FLOATS = 1 << 24  # of a batch of groups: 64 MiB


@dataclasses.dataclass(frozen=True)
class GroupedKMeans:
    """A clustering within groups.

    Attributes:
      centroids: float32[clusters, d], those of a group beside each other, groups in ascending order.
      groups: int64[clusters], the group of each cluster.
      assignments: int32[n], the cluster of each point.
      inertia: sum of squared distances from the points to their centroids.
    """

    centroids: Float[np.ndarray, "clusters d"]
    groups: Int[np.ndarray, " clusters"]
    assignments: Int[np.ndarray, " n"]
    inertia: float


def kmeans_of_groups(
    embeddings: Float[np.ndarray, "n d"],
    groups: Int[np.ndarray, " n"],
    k: int | None,
    *,
    seed: int = 0,
    starts: int = 4,
    iterations: int = 50,
    tolerance: float = 1e-4,
    progress: bool = False,
) -> GroupedKMeans:
    """At most k clusters of each group; a group of k points or fewer keeps them as they are.

    Groups of about the same size run as one batched program, so that thousands of small ones take no longer than the
    arithmetic. Clusters that no point is nearest to are left out: equal points share one.

    Args:
      embeddings: the points.
      groups: the group of each point, any numbers.
      k: clusters of a group; None keeps every point.
      seed: of the seeding, with the group's number.
      starts: clusterings of a group that are tried, of which the one with the least inertia stays.
      iterations, tolerance: as of `kmeans`.
      progress: show a bar.

    Raises:
      InputError: what `kmeans` refuses; another number of groups than points.
    """
    if k is not None and k < 1:
        raise InputError("a group needs at least one cluster", "Give k ≥ 1, or None for every point.", value=k)
    if seed < 0:
        raise InputError("a seed cannot be negative", "Give seed ≥ 0.", value=seed)
    if starts < 1:
        raise InputError("a clustering starts somewhere", "Give starts ≥ 1.", value=starts)
    points = check_embeddings(embeddings, "euclidean")
    groups = np.asarray(groups)
    if groups.shape != (len(points),) or groups.dtype.kind not in "iu":
        raise InputError(f"groups of shape {groups.shape} for {len(points)} points", "Give each point one number.")
    order = np.argsort(groups, kind="stable")
    numbers, firsts, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    members = np.split(order, firsts[1:])
    nearest = np.empty(len(points), np.int64)  # within the group
    centroids: list[np.ndarray] = [np.empty(0)] * len(numbers)
    if k is None:
        k = int(sizes.max())
    with progress_lib.bar("Clustering groups", len(numbers), enabled=progress) as bar:
        for rows in _batches(sizes, k, points.shape[1]):
            if sizes[rows[0]] <= k:
                for row in rows:
                    nearest[members[row]], centroids[row] = np.arange(sizes[row]), points[members[row]]
            else:
                least = np.full(len(rows), np.inf)
                clouds = [points[members[row]] for row in rows]
                for start in range(starts):
                    seeds = [_seed(seed, numbers[row], start) for row in rows]
                    fitted = _fit(clouds, k, seeds, iterations, tolerance)
                    for place, (row, (its, centers, inertia)) in enumerate(zip(rows, fitted, strict=True)):
                        if inertia < least[place]:
                            least[place], nearest[members[row]], centroids[row] = inertia, its, centers
            bar.advance(len(rows))
    kept, group_of, first = [], [], 0
    assignments = np.empty(len(points), np.int32)
    for number, own, centers in zip(numbers, members, centroids, strict=True):
        used, which = np.unique(together(points[own], nearest[own]), return_inverse=True)
        assignments[own] = first + which
        kept.append(centers[used])
        group_of += [number] * len(used)
        first += len(used)
    whole = np.concatenate(kept).astype(np.float32)
    inertia = sum(
        float(np.sum((points[block] - whole[assignments[block]]) ** 2, dtype=np.float64))
        for block in np.array_split(np.arange(len(points)), max(1, len(points) >> 15))
    )
    return GroupedKMeans(whole, np.asarray(group_of, np.int64), assignments, inertia)


def _fit(
    groups: Sequence[Float[np.ndarray, "_ d"]],
    k: int,
    seeds: Sequence[tuple[int, ...]],
    iterations: int,
    tolerance: float,
) -> list[tuple[np.ndarray, np.ndarray, float]]:
    """Of each group of more than k points the cluster of each point, the centroids, and the inertia: of a large one, or
    of several as one program."""
    if len(groups[0]) > _LARGE:
        found = kmeans(groups[0], k, seed=seeds[0], iterations=iterations, tolerance=tolerance)
        return [(found.assignments, found.centroids, found.inertia)]
    shape = _rows(len(groups)), _padded(max(map(len, groups))), groups[0].shape[1]
    padded = np.zeros(shape, np.float32)
    counts = np.ones(len(padded), np.int32)  # a batch that is not full has groups of one point, of zeros
    uniforms = np.zeros((len(padded), *seeding_numbers(k, 0).shape), np.float32)
    for place, (points, numbers) in enumerate(zip(groups, seeds, strict=True)):
        padded[place, : len(points)] = points
        counts[place], uniforms[place] = len(points), seeding_numbers(k, *numbers)
    fitted = lloyd.fit_batch(padded, counts, uniforms, k=k, iterations=iterations, tolerance=tolerance, spherical=False)
    centers, own, inertia = (np.asarray(one) for one in fitted[:3])
    return [(own[i, : len(points)], centers[i], float(inertia[i])) for i, points in enumerate(groups)]


def _seed(seed: int, group: int, start: int) -> tuple[int, ...]:
    return (seed, int(group) & 0xFFFFFFFF, start)


def _padded(size: int) -> int:
    """8, 32, 128, …: few sizes, so that few programs are compiled."""
    bits = max(3, (size - 1).bit_length())
    return 1 << (bits + (bits + 1) % 2)


def _rows(count: int) -> int:
    """Groups of a batch: a power of four, for the same reason."""
    bits = (count - 1).bit_length()
    return 1 << (bits + bits % 2)


def _batches(sizes: np.ndarray, k: int, width: int) -> list[np.ndarray]:
    """Groups that are clustered together, the small ones that keep their points first."""
    whole = np.flatnonzero(sizes <= k)
    batches = [whole] if len(whole) else []
    batches += [np.array([row]) for row in np.flatnonzero((sizes > k) & (sizes > _LARGE))]
    middle = np.flatnonzero((sizes > k) & (sizes <= _LARGE))
    padded = np.array([_padded(int(size)) for size in sizes[middle]], np.int64)
    for size in np.unique(padded).tolist():
        own, most = middle[padded == size], max(1, _FLOATS // (size * width))
        most = 1 << (most.bit_length() - 1 - (most.bit_length() - 1) % 2)  # a power of four that fits
        batches += [own[start : start + most] for start in range(0, len(own), most)]
    return batches

"""Hierarchical agglomerative clustering: the two nearest clusters become one until there are few enough."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from gr_jax.clustering.boundaries import cluster_means
from gr_jax.clustering.kmeans import KMeans, assign, check_embeddings
from gr_jax.errors import InputError

LINKAGES = ("ward", "average", "complete", "single")


def agglomerative(
    embeddings: Float[np.ndarray, "n d"],
    k: int,
    *,
    linkage: str = "ward",
    max_points: int = 8192,
    seed: int = 0,
    metric: str = "euclidean",
) -> KMeans:
    """Merges clusters until k are left.

    Time and memory grow with the square of the number of points (4 · n² bytes), so with more than `max_points` a random
    sample of them is clustered, and every other point goes to the cluster of the sample whose mean is nearest.

    Args:
      embeddings: [n, d].
      k: clusters; at most as many as points are merged.
      linkage: what counts as near: "ward" (the least growth of inertia), "average", "complete" or "single".
      max_points: see above; at least k.
      seed: of the sample.
      metric: "euclidean" or "cosine": points are scaled to unit length first.

    Returns:
      As `kmeans`; centroids are the means of their points.

    Raises:
      InputError: no points, values that are not finite, k < 1, max_points < k, an unknown linkage or metric.
    """
    if k < 1:
        raise InputError("clustering needs at least one cluster", "Give k ≥ 1.", value=k)
    if max_points < k:
        raise InputError(f"a sample of {max_points} points cannot be {k} clusters", "Raise max_points.", value=k)
    if linkage not in LINKAGES:
        raise InputError("unknown linkage", f"Use one of {', '.join(LINKAGES)}.", value=linkage)
    points = check_embeddings(embeddings, metric)
    n = len(points)
    k = min(k, n)
    if n <= max_points:
        cluster = _merge(points, k, linkage)
    else:
        sample = np.sort(np.random.default_rng(seed).choice(n, max_points, replace=False))
        labels = _merge(points[sample], k, linkage)
        cluster, _ = assign(points, cluster_means(points[sample], labels, k))
        cluster[sample] = labels
    means = cluster_means(points, cluster, k)
    inertia = float(np.square(points - means[cluster], dtype=np.float64).sum())
    return KMeans(means, cluster, inertia, 0)


def _merge(points: Float[np.ndarray, "n d"], k: int, linkage: str) -> Int[np.ndarray, " n"]:
    """The cluster of each point after n − k merges; exactly k, numbered by their first points."""
    from scipy.cluster import hierarchy
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(points)
    if n == k:
        return np.arange(n, dtype=np.int32)
    merged = hierarchy.linkage(points, linkage)[: n - k, :2].astype(np.int64)  # row i makes cluster n + i of two
    made = np.repeat(n + np.arange(n - k), 2)
    graph = coo_array((np.ones(len(made), bool), (made, merged.reshape(-1))), shape=(2 * n - k, 2 * n - k))
    _, label = connected_components(graph, directed=False)
    _, first, cluster = np.unique(label[:n], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[cluster].astype(np.int32)

"""k-means whose clusters have room for so many points and no more."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.clustering import lloyd
from gr_jax.clustering.boundaries import cluster_means
from gr_jax.clustering.kmeans import KMeans, bucket, check_embeddings, kmeans
from gr_jax.errors import InputError

_CHUNK = 4096


def balanced_kmeans(
    embeddings: Float[np.ndarray, "n d"],
    k: int,
    *,
    slack: float = 0.0,
    seed: int = 0,
    metric: str = "euclidean",
    iterations: int = 10,
    nearest: int = 64,
) -> KMeans:
    """k-means in which no cluster has more than (1 + slack) · n / k points, rounded up.

    Between updates of the means points and clusters are matched by deferred acceptance (Gale and Shapley 1962): a point
    asks its nearest cluster, a cluster keeps the points that would lose most if they had to ask their next, and those
    that it turns away do. (Keeping the nearest points instead costs up to a fifth more inertia; this is within a few
    per cent of the best assignment.)

    Args:
      embeddings: [n, d].
      k: clusters; at most n are made.
      slack: by how much a cluster may be larger than the average.
      seed: of the k-means that it starts from.
      metric: "euclidean" or "cosine".
      iterations: most updates of the means; the best clustering on the way is returned.
      nearest: clusters that a point asks in this way; one that all of them turn away, which needs many clusters or
        points that lie together, goes to the nearest that has room left.

    Returns:
      As `kmeans`; centroids are the means of their points, of an empty cluster the last that it had.

    Raises:
      InputError: see `kmeans`; slack < 0, iterations < 1 or nearest < 1.
    """
    if not 0 <= slack < math.inf:
        raise InputError("slack is a share of the average size", "Give slack ≥ 0.", value=slack)
    if min(k, iterations, nearest) < 1:
        raise InputError(
            "k, iterations and nearest must be at least 1",
            "Give k, iterations and nearest ≥ 1.",
            value=(k, iterations, nearest),
        )
    points = check_embeddings(embeddings, metric)
    k = min(k, len(points))
    capacity = math.ceil(round((1 + slack) * len(points) / k, 9))  # 1.1 * 100 / 11 is a little more than 10
    centroids = kmeans(points, k, seed=seed, metric=metric).centroids
    best: KMeans | None = None
    for step in range(1, iterations + 1):
        cluster = _assign(points, centroids, capacity, min(nearest, k))
        full = np.bincount(cluster, minlength=k)[:, None] > 0  # rounded-up room may leave some without points
        centroids = np.where(full, cluster_means(points, cluster, k), centroids)
        if metric == "cosine":
            centroids /= np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
        inertia = float(np.square(points - centroids[cluster], dtype=np.float64).sum())
        if best is None or inertia < best.inertia:  # which need not fall with every step
            best = KMeans(centroids, cluster, inertia, step)
    assert best is not None
    return best


def _assign(
    points: Float[np.ndarray, "n d"], centroids: Float[np.ndarray, "k d"], capacity: int, width: int
) -> Int[np.ndarray, " n"]:
    """The cluster of each point, of which none has more than `capacity`; k · capacity ≥ n."""
    k = len(centroids)
    cluster = match(*_nearest_all(points, centroids, width), np.full(k, capacity))
    left = np.flatnonzero(cluster < 0)
    if len(left):
        room = capacity - np.bincount(cluster[cluster >= 0], minlength=k)
        cluster[left] = match(*_nearest_all(points[left], centroids, k), room)
    return cluster


def match(
    near: Int[np.ndarray, "n width"], distances: Float[np.ndarray, "n width"], room: Int[np.ndarray, " k"]
) -> Int[np.ndarray, " n"]:
    """Deferred acceptance: the cluster of each point, −1 for one that all of its clusters turn away.

    Args:
      near: the clusters that each point asks, the nearest first.
      distances: to them.
      room: of each cluster. It keeps the points with the largest differences between the distance to their next cluster
        and that to it, and those that have no other; of equal ones the first.
    """
    to_lose = np.full(distances.shape, np.inf, np.float32)
    to_lose[:, :-1] = distances[:, 1:] - distances[:, :-1]
    cluster = np.full(len(near), -1, np.int32)
    asked = np.zeros(len(near), np.int64)
    asking = np.arange(len(near))
    while len(asking):
        cluster[asking] = near[asking, asked[asking]]
        in_demand = np.zeros(len(room), bool)
        in_demand[cluster[asking]] = True
        members = np.flatnonzero((cluster >= 0) & in_demand[cluster])
        members = members[np.lexsort((-to_lose[members, asked[members]], cluster[members]))]
        _, first, which = np.unique(cluster[members], return_index=True, return_inverse=True)
        rank = np.arange(len(members)) - first[which]
        turned_away = members[rank >= room[cluster[members]]]
        cluster[turned_away] = -1
        asked[turned_away] += 1
        asking = turned_away[asked[turned_away] < near.shape[1]]
    return cluster


def _nearest_all(
    points: Float[np.ndarray, "n d"], centroids: Float[np.ndarray, "k d"], width: int
) -> tuple[Int[np.ndarray, "n width"], Float[np.ndarray, "n width"]]:
    """The nearest centroids of every point and the squared distances to them."""
    near = np.empty((len(points), width), np.int32)
    distances = np.empty((len(points), width), np.float32)
    chunk = min(_CHUNK, bucket(len(points)))
    for start in range(0, len(points), chunk):
        part = points[start : start + chunk]
        found = jax.device_get(_nearest(np.pad(part, ((0, chunk - len(part)), (0, 0))), centroids, width=width))
        near[start : start + chunk], distances[start : start + chunk] = (array[: len(part)] for array in found)
    return near, distances


@functools.partial(jax.jit, static_argnames=("width",))
def _nearest(
    points: Float[Array, "n d"], centroids: Float[Array, "k d"], *, width: int
) -> tuple[Int[Array, "n width"], Float[Array, "n width"]]:
    distances, index = lax.top_k(-lloyd.squared_distances(points, centroids), width)
    return index, -distances

"""Documents that lie near the border of another cluster than their own."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.clustering import lloyd
from gr_jax.clustering.kmeans import check_embeddings
from gr_jax.errors import InputError

_CHUNK = 1024


def cluster_means(
    points: Float[np.ndarray, "n d"], cluster: Int[np.ndarray, " n"], count: int
) -> Float[np.ndarray, "count d"]:
    """Mean of the points of each cluster; zero for those that have none."""
    order = np.argsort(cluster, kind="stable")
    present, starts = np.unique(cluster[order], return_index=True)
    means = np.zeros((count, points.shape[1]), np.float32)
    sizes = np.diff(np.append(starts, len(order)))
    means[present] = np.add.reduceat(points[order].astype(np.float32), starts, axis=0) / sizes[:, None]
    return means


def nearby_clusters(
    embeddings: Float[np.ndarray, "n d"],
    cluster: Int[np.ndarray, " n"],
    *,
    most: int,
    margin: float,
    metric: str = "euclidean",
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """Pairs of a point and another cluster than its own whose mean is nearly as near.

    Args:
      embeddings: [n, d].
      cluster: of each point, numbered from 0 without gaps.
      most: pairs of a point at most, the nearest clusters first.
      margin: a cluster is near where its mean is at most 1 + margin times as far as that of the point's own.
      metric: "euclidean" or "cosine".

    Returns:
      points and clusters, ordered by point, then by distance.

    Raises:
      InputError: see `kmeans`; most < 0; margin < 0 or no number.
    """
    if most < 0:
        raise InputError("a number of clusters cannot be negative", "Give most ≥ 0.", value=most)
    if not margin >= 0:
        raise InputError("a margin cannot be negative", "Give margin ≥ 0.", value=margin)
    points = check_embeddings(embeddings, metric)
    count = int(cluster.max()) + 1
    width = min(most + 1, count)
    if width < 2:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    means = jnp.asarray(cluster_means(points, cluster, count))
    found: list[tuple[np.ndarray, np.ndarray]] = []
    chunk = min(_CHUNK, 1 << (len(points) - 1).bit_length())
    for start in range(0, len(points), chunk):
        part = points[start : start + chunk]
        own = cluster[start : start + chunk]
        padding = chunk - len(part)
        near, distance, own_distance = jax.device_get(
            _nearest(np.pad(part, ((0, padding), (0, 0))), np.pad(own, (0, padding)), means, width=width)
        )
        near, distance = near[: len(part)], distance[: len(part)]
        reach = own_distance[: len(part), None] * np.float32(1 + margin) ** 2
        wanted = (near != own[:, None]) & ((distance <= reach) | np.isinf(margin))
        wanted &= np.cumsum(wanted, axis=1) <= most
        row, column = np.nonzero(wanted)
        found.append((row + start, near[row, column]))
    return np.concatenate([row for row, _ in found]), np.concatenate([near for _, near in found]).astype(np.int64)


@functools.partial(jax.jit, static_argnames=("width",))
def _nearest(
    points: Float[Array, "n d"], own: Int[Array, " n"], means: Float[Array, "count d"], *, width: int
) -> tuple[Int[Array, "n width"], Float[Array, "n width"], Float[Array, " n"]]:
    """The nearest means, their squared distances, and that to the mean of the own cluster."""
    distances = lloyd.squared_distances(points, means)  # --> [n, count]
    nearest, index = lax.top_k(-distances, width)
    return index, -nearest, jnp.take_along_axis(distances, own[:, None], axis=1)[:, 0]

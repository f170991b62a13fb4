"""k-means of one set of points, of any size."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Float, Int

from gr_jax.clustering import lloyd
from gr_jax.errors import InputError

METRICS = ("euclidean", "cosine")


@dataclasses.dataclass(frozen=True)
class KMeans:
    """A clustering.

    Attributes:
      centroids: float32[k, d].
      assignments: int32[n], the nearest centroid of each point.
      inertia: sum of squared distances from the points to their centroids.
      iterations: Lloyd steps that were made.
    """

    centroids: np.ndarray
    assignments: np.ndarray
    inertia: float
    iterations: int


def check_embeddings(embeddings: np.ndarray, metric: str) -> np.ndarray:
    """Returns the embeddings as float32 [n, d], of unit length for "cosine"; refuses what cannot be clustered."""
    if metric not in METRICS:
        raise InputError("unknown metric", f"Use one of {', '.join(METRICS)}.", value=metric)
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or embeddings.shape[0] == 0 or embeddings.shape[1] == 0:
        raise InputError(
            "embeddings must be a matrix with a row for each document",
            "Give float32[n, d], n and d ≥ 1.",
            value=embeddings.shape,
        )
    embeddings = np.ascontiguousarray(embeddings, dtype=np.float32)
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise InputError(
            "an embedding has a value that is not finite",
            "Find out how its text was encoded.",
            value=f"row {int(np.argmin(finite))}",
        )
    if metric == "cosine":
        norms = np.linalg.norm(embeddings, axis=1, keepdims=True)
        embeddings = embeddings / np.maximum(norms, 1e-12)
    return embeddings


def together(points: Float[np.ndarray, "n d"], cluster: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The clusters, those of equal points made one: that of the first.

    A matrix product may round equal rows differently, and so part them between centroids that are equally near.
    """
    words = np.ascontiguousarray(points, np.float32).view(np.uint32)
    factors = np.random.default_rng(0).integers(1, 1 << 63, words.shape[1], np.uint64)
    blocks = range(0, len(words), 1 << 16)
    hashes = np.concatenate([words[start : start + (1 << 16)].astype(np.uint64) @ factors for start in blocks])
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    like = first[which]
    copies = np.flatnonzero(like != np.arange(len(words)))
    copies = copies[(words[copies] == words[like[copies]]).all(axis=1)]
    cluster = cluster.copy()
    cluster[copies] = cluster[like[copies]]
    return cluster


def bucket(size: int) -> int:
    """The next size of a sparse grid, so that few shapes are compiled: 64 · 4ⁱ up to 4096, then powers of two."""
    bits = max(6, (size - 1).bit_length())
    return 1 << (bits + bits % 2 if bits <= 12 else bits)


def seeding_numbers(k: int, *seed: int) -> Float[np.ndarray, "k trials"]:
    """Random numbers in [0, 1) for k-means++: 2 + log k candidates a draw, as the greedy variant usually has. They come
    from NumPy since a generator inside the compiled program would be half of what is compiled."""
    trials = 2 + int(math.log(k))
    return np.random.default_rng(seed).random((k, trials), np.float32)


def kmeans(
    embeddings: Float[np.ndarray, "n d"],
    k: int,
    *,
    seed: int | tuple[int, ...] = 0,
    metric: str = "euclidean",
    iterations: int = 50,
    tolerance: float = 1e-4,
    max_points: int = 1 << 18,
) -> KMeans:
    """k-means with greedy k-means++ seeding; the same seed gives the same clusters.

    Args:
      embeddings: [n, d].
      k: clusters; with fewer points than k, every point gets its own and the other centroids mean nothing.
      seed: of the seeding; one number or several.
      metric: "euclidean", or "cosine": points and centroids are scaled to unit length.
      iterations: most Lloyd steps.
      tolerance: stop when the centroids' squared shift is below this fraction of the points' variance.
      max_points: with more points than this the centroids are fitted on a random sample of this size, so that memory
        stays flat; all points are then assigned to them.

    Raises:
      InputError: no points, values that are not finite, k < 1, an unknown metric.
    """
    if k < 1:
        raise InputError("k-means needs at least one cluster", "Give k ≥ 1.", value=k)
    numbers = seed if isinstance(seed, tuple) else (seed,)
    if min(numbers) < 0:
        raise InputError("a seed cannot be negative", "Give seed ≥ 0.", value=seed)
    points = check_embeddings(embeddings, metric)
    n = len(points)
    sample = points
    if n > max_points:
        chosen = np.random.default_rng(numbers).choice(n, max_points, replace=False)
        sample = points[np.sort(chosen)]
    padded = np.zeros((1, bucket(len(sample)), points.shape[1]), np.float32)
    padded[0, : len(sample)] = sample
    centroids, nearest, inertia, steps = lloyd.fit_batch(
        padded,
        np.asarray([len(sample)], np.int32),
        seeding_numbers(k, *numbers)[None],
        k=k,
        iterations=iterations,
        tolerance=tolerance,
        spherical=metric == "cosine",
    )
    centroids = np.asarray(centroids[0])
    if n > max_points:
        assignments, total = assign(points, centroids)
    else:
        assignments, total = np.asarray(nearest[0, :n]), float(inertia[0])
    return KMeans(centroids, together(points, assignments), total, int(steps[0]))


def assign(
    points: Float[np.ndarray, "n d"], centroids: Float[np.ndarray, "k d"], *, chunk: int = 1 << 15
) -> tuple[Int[np.ndarray, " n"], float]:
    """Nearest centroid of each point (Euclidean) and the inertia, `chunk` points at a time."""
    nearest = np.empty(len(points), np.int32)
    inertia = 0.0
    chunk = min(chunk, bucket(len(points)))
    padded = np.zeros((chunk, points.shape[1]), np.float32)
    for start in range(0, len(points), chunk):
        part = points[start : start + chunk]
        padded[: len(part)] = part
        index, distance = _nearest_of(padded, centroids)
        nearest[start : start + len(part)] = np.asarray(index)[: len(part)]
        inertia += float(np.asarray(distance)[: len(part)].sum(dtype=np.float64))
    return nearest, inertia


@jax.jit
def _nearest_of(points, centroids):
    return lloyd.first_minimum(lloyd.squared_distances(points, centroids))

"""Lloyd's algorithm with k-means++ seeding as one pure function on padded points, so that many small problems of a
hierarchy run as one batched program and sizes share compilations."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

# Distances that are held at once: 256 MiB. More points are looked at one block after the other.
_MOST_DISTANCES = 1 << 26
# Distances decide discrete ids, so matrix products are exact float32 on every backend (no TF32, no bf16 passes).
EXACT = lax.Precision.HIGHEST


def squared_distances(points: Float[Array, "n d"], centers: Float[Array, "k d"]) -> Float[Array, "n k"]:
    """Squared Euclidean distances, clipped at 0."""
    products = jnp.matmul(points, centers.T, precision=EXACT)  # --> [n, k]
    squares = jnp.sum(points**2, axis=-1)[:, None] + jnp.sum(centers**2, axis=-1)[None, :]
    return jnp.maximum(squares - 2 * products, 0.0)


def first_minimum(x: Float[Array, "*n k"]) -> tuple[Int[Array, "*n"], Float[Array, "*n"]]:
    """argmin and min of the last axis. A CPU takes half the time of `jnp.argmin`, which is not vectorised there."""
    smallest = jnp.min(x, axis=-1)
    k = x.shape[-1]
    first = jnp.min(jnp.where(x <= smallest[..., None], jnp.arange(k, dtype=jnp.int32), k), axis=-1)
    return first, smallest


def _normalized(vectors: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _seed(points, real, count, uniforms, *, k: int):
    """Greedy k-means++: each next center is the best of some points drawn in proportion to their squared distance from
    the centers so far (Arthur & Vassilvitskii 2007, section 7). uniforms: [k, trials] random numbers in [0, 1)."""
    n, d = points.shape
    first = points[jnp.minimum((uniforms[0, 0] * count).astype(jnp.int32), count - 1)]
    centers = jnp.zeros((k, d), points.dtype).at[0].set(first)
    nearest = jnp.where(real, squared_distances(points, first[None])[:, 0], 0.0)  # --> [n]

    def add(i, carry):
        centers, nearest = carry
        cumulative = jnp.cumsum(nearest)  # --> [n]
        draws = uniforms[i] * cumulative[-1]  # --> [trials]
        chosen = jnp.minimum(jnp.sum(cumulative[:, None] <= draws, axis=0), count - 1)
        distances = jnp.where(real[:, None], squared_distances(points, points[chosen]), 0.0)  # --> [n, trials]
        distances = jnp.minimum(nearest[:, None], distances)
        best = jnp.argmin(jnp.sum(distances, axis=0))
        return centers.at[i].set(points[chosen[best]]), distances[:, best]

    return lax.fori_loop(1, k, add, (centers, nearest))[0]


def _nearest(points, centers, active):
    """Nearest active center of each point, and the squared distance to it."""
    distances = jnp.where(active, squared_distances(points, centers), jnp.inf)  # --> [n, k]
    return first_minimum(distances)


def _assign(points, real, centers, active):
    """Of each point its nearest active center and the squared distance to it; of each center how many of the `real`
    points have it for that, and their sum."""
    n, k = len(points), len(centers)
    rows = max(1, _MOST_DISTANCES // k)
    if n <= rows:
        nearest, distances = _nearest(points, centers, active)
        members = (jnp.arange(k) == nearest[:, None]) & real[:, None]  # --> [n, k]
        sums = jnp.matmul(members.astype(points.dtype).T, points, precision=EXACT)  # --> [k, d]
        return nearest, distances, jnp.sum(members, axis=0), sums

    def block(so_far, part):
        nearest, distances, sizes, sums = _assign(part[0], part[1], centers, active)
        return (so_far[0] + sizes, so_far[1] + sums), (nearest, distances)

    blocks = -(-n // rows)
    padded = [jnp.pad(x, [(0, blocks * rows - n)] + [(0, 0)] * (x.ndim - 1)) for x in (points, real)]
    parts = tuple(x.reshape(blocks, rows, *x.shape[1:]) for x in padded)
    nothing = jnp.zeros(k, jnp.int32), jnp.zeros_like(centers)
    (sizes, sums), found = lax.scan(block, nothing, parts)
    nearest, distances = (x.reshape(-1)[:n] for x in found)
    return nearest, distances, sizes, sums


def fit_one(
    points: Float[Array, "n d"],
    count: Int[Array, ""],
    uniforms: Float[Array, "k trials"],
    *,
    k: int,
    iterations: int,
    tolerance: float,
    spherical: bool,
) -> tuple[Float[Array, "k d"], Int[Array, " n"], Float[Array, ""], Int[Array, ""]]:
    """k-means of the first `count` of `points`; the rest is padding.

    With fewer points than k only `count` centers are used. A center that lost all its points moves to the point that
    is worst served, the next such center to the next worst.

    Returns:
      centers, the center of each point (arbitrary for padding), inertia, iterations used.
    """
    n = points.shape[0]
    real = jnp.arange(n) < count  # --> [n]
    active = jnp.arange(k) < count  # --> [k]
    centers = _seed(points, real, count, uniforms, k=k)
    mean = jnp.sum(jnp.where(real[:, None], points, 0.0), axis=0) / count
    variance = jnp.sum(jnp.where(real[:, None], (points - mean) ** 2, 0.0)) / count

    def improve(carry):
        centers, _, step = carry
        _, distances, sizes, sums = _assign(points, real, centers, active)
        means = sums / jnp.maximum(sizes, 1)[:, None]
        empty = (sizes == 0) & active
        _, worst = lax.top_k(jnp.where(real, distances, -1.0), min(k, n))  # --> [k]
        heir = worst[jnp.clip(jnp.cumsum(empty) - 1, 0, min(k, n) - 1)]
        means = jnp.where(empty[:, None], points[heir], means)
        if spherical:
            means = _normalized(means)
        means = jnp.where(active[:, None], means, centers)
        shift = jnp.sum((means - centers) ** 2)
        return means, shift, step + 1

    def unsettled(carry):
        _, shift, step = carry
        return (step < iterations) & (shift > tolerance * variance)

    centers, _, steps = lax.while_loop(unsettled, improve, (centers, jnp.float32(jnp.inf), jnp.int32(0)))
    nearest, distances, _, _ = _assign(points, real, centers, active)
    return centers, nearest, jnp.sum(jnp.where(real, distances, 0.0)), steps


@partial(jax.jit, static_argnames=("k", "iterations", "tolerance", "spherical"))
def fit_batch(
    points: Float[Array, "m n d"],
    counts: Int[Array, " m"],
    uniforms: Float[Array, "m k trials"],
    *,
    k: int,
    iterations: int,
    tolerance: float,
    spherical: bool,
):
    """`fit_one` for m problems at once, each with its own number of points and random numbers."""
    fit = partial(fit_one, k=k, iterations=iterations, tolerance=tolerance, spherical=spherical)
    if points.shape[0] == 1:  # a plain matrix product is better served than a batched one
        return jax.tree.map(lambda x: x[None], fit(points[0], counts[0], uniforms[0]))
    return jax.vmap(fit)(points, counts, uniforms)


@partial(jax.jit, static_argnames=("iterations",))
def fit_from(points: Float[Array, "n d"], centers: Float[Array, "k d"], *, iterations: int) -> Float[Array, "k d"]:
    """A fixed number of Lloyd steps from given centers, n ≥ k. Empty clusters move as in `fit_one`."""
    k = len(centers)

    def improve(_, centers):
        distances = squared_distances(points, centers)  # --> [n, k]
        nearest, smallest = first_minimum(distances)
        sizes = jnp.zeros(k, jnp.int32).at[nearest].add(1)
        means = _sums(points, nearest, k) / jnp.maximum(sizes, 1)[:, None]
        empty = sizes == 0
        _, worst = lax.top_k(smallest, k)
        return jnp.where(empty[:, None], points[worst[jnp.cumsum(empty) - 1]], means)

    return lax.fori_loop(0, iterations, improve, centers)


def _sums(points: Float[Array, "n d"], cluster: Int[Array, " n"], k: int) -> Float[Array, "k d"]:
    """Sums of the points of each cluster. A CPU adds row by row; elsewhere that would be slow, and in no fixed order,
    so a matrix product with the memberships does it."""
    return lax.platform_dependent(points, cluster, cpu=partial(sum_rows, k=k), default=partial(sum_by_product, k=k))


def sum_rows(points: Float[Array, "n d"], cluster: Int[Array, " n"], *, k: int) -> Float[Array, "k d"]:
    """Sums of the points of each cluster, by adding them up one by one."""
    return jax.ops.segment_sum(points, cluster, k)


def sum_by_product(points: Float[Array, "n d"], cluster: Int[Array, " n"], *, k: int) -> Float[Array, "k d"]:
    """Sums of the points of each cluster, by a matrix product."""
    members = (jnp.arange(k) == cluster[:, None]).astype(points.dtype)  # --> [n, k]
    return jnp.matmul(members.T, points, precision=EXACT)

"""Top-k of a matrix product that is never held as a whole: block by block of documents, on every device of a mesh."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Num

from gr_jax.top_k import select

# Scores decide ranks, so products are exact float32 on every backend (no TF32, no bf16 passes).
EXACT = lax.Precision.HIGHEST
Best = tuple[Float[Array, "batch k"], Int[Array, "batch k"]]


def top_k(scores: Num[Array, "batch n"], k: int) -> Best:
    """The k largest and where they stand; equal ones by lower place. Exact, like `lax.top_k`, in less time for long
    rows: only groups whose largest is among the k largest of all groups can hold any of the k. −0 is given as 0."""
    # `lax.top_k` puts −0 behind 0, though they are equal. (Adding 0 would do; the compiler leaves that out.)
    scores = jnp.where(scores == 0, jnp.zeros_like(scores), scores)
    batch, n = scores.shape
    k = min(k, n)
    size = 1 << max(0, int(math.log2(n / k)) // 2) if n else 1  # about √(n/k), which makes both selections equally long
    if size < 4 or n % size:
        return select(scores, k)
    groups = scores.reshape(batch, n // size, size)
    _, chosen = select(jnp.max(groups, axis=-1), k)  # --> [batch, k]
    chosen = jnp.sort(chosen, axis=-1)  # so that among equal scores the lower place stands first
    inside = jnp.take_along_axis(groups, chosen[:, :, None], axis=1)  # --> [batch, k, size]
    places = chosen[:, :, None] * size + jnp.arange(size, dtype=chosen.dtype)
    best, order = select(inside.reshape(batch, -1), k)
    return best, jnp.take_along_axis(places.reshape(batch, -1), order, axis=-1)


def nothing(batch: int, k: int) -> Best:
    """Scores and positions where nothing was found yet."""
    return jnp.full((batch, k), -jnp.inf, jnp.float32), jnp.full((batch, k), -1, jnp.int32)


def better(first: Best, second: Best) -> Best:
    """The best of two; of equal scores the first's."""
    k = first[0].shape[-1]
    scores, order = select(jnp.concatenate([first[0], second[0]], axis=-1), k)
    return scores, jnp.take_along_axis(jnp.concatenate([first[1], second[1]], axis=-1), order, axis=-1)


@functools.partial(jax.jit, static_argnames=("block", "mesh"))
def search_part(
    queries: Float[Array, "batch d"],
    rows: Float[Array, "n d"],
    live: Bool[Array, " n"],
    allowed: Bool[Array, "filters n"] | None,
    first: Int[Array, ""],
    best: Best,
    *,
    block: int,
    mesh: Mesh,
) -> Best:
    """The best of `best` and of a part of the documents.

    Args:
      queries: on every device.
      rows: sharded over the documents; each device's share is a multiple of `block`.
      live: sharded as the rows; False for padding and removed documents.
      allowed: sharded as the rows along its second axis; one row for all queries or one for each.
      first: position of the first of the rows.
      best: what earlier parts gave; its positions are lower.
      block: documents whose scores are held at once, on each device.
      mesh: all of its devices share the rows.
    """
    k = best[0].shape[-1]
    axes = mesh.axis_names

    def search_share(queries, rows, live, allowed, first):
        start = first + lax.axis_index(axes).astype(jnp.int32) * rows.shape[0]

        def add_block(best, place):
            def cut(x, axis):
                return lax.dynamic_slice_in_dim(x, place * block, block, axis)

            scores = jnp.matmul(queries, cut(rows, 0).T, precision=EXACT)  # --> [batch, block]
            keep = cut(live, 0)[None]
            if allowed is not None:
                keep = keep & cut(allowed, 1)
            found, places = top_k(jnp.where(keep, scores, -jnp.inf), k)
            return better(best, (found, start + place * block + places.astype(jnp.int32))), None

        blocks = jnp.arange(rows.shape[0] // block, dtype=jnp.int32)
        scores, positions = lax.scan(add_block, nothing(len(queries), k), blocks)[0]
        scores = lax.all_gather(scores, axes, axis=1, tiled=True)  # --> [batch, devices · k], lower positions first
        positions = lax.all_gather(positions, axes, axis=1, tiled=True)
        scores, order = select(scores, k)
        return scores, jnp.take_along_axis(positions, order, axis=-1)

    everywhere, sharded = PartitionSpec(), PartitionSpec(axes)
    found = jax.shard_map(
        search_share,
        mesh=mesh,
        in_specs=(everywhere, sharded, sharded, PartitionSpec(None, axes), everywhere),
        out_specs=everywhere,
        check_vma=False,  # after the gathering all devices hold the same, which the checker cannot know of top_k
    )(queries, rows, live, allowed, first)
    return better(best, found)

"""Top-k of a matrix product that is never held as a whole: block by block of documents, on every device of a mesh."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Num

from gr_jax.top_k import top_k

# Scores decide ranks, so products are exact float32 on every backend (no TF32, no bf16 passes).
EXACT = lax.Precision.HIGHEST
Best = tuple[Float[Array, "batch k"], Int[Array, "batch k"]]


def highest(scores: Num[Array, "batch n"], k: int) -> Best:
    """The k largest, or all where there are fewer, and where they stand; of equal ones the lower places. −0 is 0."""
    # `top_k` puts −0 behind 0, though they are equal. (Adding 0 would do; the compiler leaves that out.)
    return top_k(jnp.where(scores == 0, jnp.zeros_like(scores), scores), min(k, scores.shape[-1]))


def nothing(batch: int, k: int) -> Best:
    """Scores and positions where nothing was found yet."""
    return jnp.full((batch, k), -jnp.inf, jnp.float32), jnp.full((batch, k), -1, jnp.int32)


def better(first: Best, second: Best) -> Best:
    """The best of two; of equal scores the first's."""
    k = first[0].shape[-1]
    scores, order = top_k(jnp.concatenate([first[0], second[0]], axis=-1), k)
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
            found, places = highest(jnp.where(keep, scores, -jnp.inf), k)
            return better(best, (found, start + place * block + places.astype(jnp.int32))), None

        blocks = jnp.arange(rows.shape[0] // block, dtype=jnp.int32)
        scores, positions = lax.scan(add_block, nothing(len(queries), k), blocks)[0]
        scores = lax.all_gather(scores, axes, axis=1, tiled=True)  # --> [batch, devices · k], lower positions first
        positions = lax.all_gather(positions, axes, axis=1, tiled=True)
        scores, order = top_k(scores, k)
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

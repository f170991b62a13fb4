"""Hypotheses of the same text, written in several ways, become one."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

WAYS = ("max", "sum")


def merge_equal(scores: Float[Array, "batch n"], keys: Int[Array, "batch n m"], how: str) -> Float[Array, "batch n"]:
    """Scores in which of the hypotheses with equal keys only the best (of equal scores the first) is left.

    Args:
      scores: log-probabilities; −inf where there is no hypothesis, whatever its key.
      keys: equal keys = the same text.
      how: "max": the best keeps its score. "sum": it gets the log of the sum of all their probabilities.

    Returns:
      Scores in the same order; −inf for all that gave way to another.
    """
    batch, n = scores.shape
    place = jnp.broadcast_to(jnp.arange(n), (batch, n))
    columns = [keys[:, :, i] for i in range(keys.shape[-1])]
    *columns, falling, order = lax.sort((*columns, -scores, place), num_keys=len(columns) + 1, is_stable=True)
    differs = jnp.any(jnp.stack([column[:, 1:] != column[:, :-1] for column in columns]), axis=0)
    is_best = jnp.pad(differs, ((0, 0), (1, 0)), constant_values=True)  # --> [batch, n], in sorted order
    kept = -falling
    rows = jnp.arange(batch)[:, None]
    if how == "sum":
        best_place = lax.cummax(jnp.where(is_best, place, 0), axis=1)  # of the best with the same key
        best = jnp.where(jnp.isfinite(kept), kept, 0.0)[rows, best_place]  # no −inf − −inf
        total = jnp.zeros_like(kept).at[rows, best_place].add(jnp.exp(kept - best))
        kept = best + jnp.log(total)
    return jnp.full_like(scores, -jnp.inf).at[rows, order].set(jnp.where(is_best, kept, -jnp.inf))

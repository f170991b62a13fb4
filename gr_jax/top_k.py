"""Exact top-k: of long rows by the maxima of blocks, and never by sorting all of a row."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int, Num

# Rows shorter than this, or than so many blocks of 16 for each of the k, are as fast by `lax.top_k`.
LONG_ROW, LEAST_BLOCK, LARGEST_BLOCK = 16_384, 16, 128


def top_k(x: Num[Array, "... n"], k: int) -> tuple[Num[Array, "... k"], Int[Array, "... k"]]:
    """The k largest of the last axis, best first, and where they are: what `lax.top_k` gives, ties included (of equal
    values the first).

    `lax.top_k` looks at one element after the other (1–6 ns each on CPU); the maxima of blocks are computed many at a
    time. The k blocks of the largest maxima hold the k largest elements: an element of any other block has before it
    the maxima of those k, each of which is larger, or equal and stands earlier. So only they are looked at.

    Args:
      x: [..., n], of any real type, without NaN (whose maxima differ between backends).
      k: static, at most n.
    """
    n = x.shape[-1]
    block = 2 ** int(math.log2(max(n / max(k, 1), 1)) / 2)  # n / block maxima, then k · block elements: about equal
    if n < LONG_ROW or block < LEAST_BLOCK:
        return _select(x, k)
    block = min(block, LARGEST_BLOCK)
    x = _pad(x, -n % block)
    *lead, padded = x.shape
    blocks = x.reshape(*lead, padded // block, block)
    # In two steps: the compiler makes the first of them, over an axis that is not the last, from vector instructions.
    folded = jnp.max(blocks.reshape(*lead, padded // block, block // 8, 8), axis=-2)
    chosen = jnp.sort(_select(jnp.max(folded, axis=-1), k)[1], axis=-1)  # in their order, for ties  --> [..., k]
    kept = jnp.take_along_axis(blocks, chosen[..., None], axis=-2).reshape(*lead, k * block)
    values, place = _select(kept, k)
    return values, jnp.take_along_axis(chosen, place // block, axis=-1) * block + place % block


def _select(x: Num[Array, "... n"], k: int) -> tuple[Num[Array, "... k"], Int[Array, "... k"]]:
    """What `lax.top_k` gives, also where the k-th alone is looked at.

    XLA for CPU makes `lax.top_k` of a sort and a slice that it finds together. A slice of the result, such as that of
    the k-th value, may be merged with the first one; then all of the row is sorted, which takes tens of times as long.
    The barriers keep the slices apart. (One barrier for both results would stand right behind the sort. XLA of jaxlib
    0.10 does not expect that there, and ends the process.)
    """
    values, place = lax.top_k(x, k)
    return lax.optimization_barrier(values), lax.optimization_barrier(place)


def _pad(x: Num[Array, "... n"], missing: int) -> Num[Array, "... m"]:
    """Adds the smallest value at the end, where it loses every tie."""
    if not missing:
        return x
    smallest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)], constant_values=smallest)

"""Gradient caching: contrastive batches larger than memory, with the gradient of the whole batch (Gao et al. 2021).

A contrastive loss needs the vectors of all rows at once, but the activations behind them only one chunk at a time:
vectors are made chunk by chunk without remembering how, the loss is differentiated with respect to them, and going back
each chunk is computed once more. That is rematerialisation inside a scan, so an ordinary `jax.grad` does all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from gr_jax.errors import InputError


def encode_in_chunks(
    encode: Callable[[Array, Array | None], Array],
    tokens: Int[Array, "rows length"],
    rng: Array | None,
    chunks: int,
) -> Float[Array, "rows d"]:
    """`encode(tokens, rng)`, of which backpropagation remembers one chunk at a time.

    Args:
      encode: gives one vector per row, from this row alone.
      tokens: of the whole batch.
      rng: for dropout, or None; every chunk gets a key of its own.
      chunks: parts that are computed one after the other; 1 computes all at once.

    Raises:
      InputError: the rows cannot be split evenly.
    """
    rows = tokens.shape[0]
    if chunks < 1 or rows % chunks:
        raise InputError(
            f"{rows} rows cannot be computed in {chunks} chunks", "Choose a divisor of the batch size.", value=chunks
        )
    if chunks == 1:
        return encode(tokens, rng)

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a scan keeps forward and backward apart anyway
    def part(number: Array, piece: Array) -> Array:
        return encode(piece, None if rng is None else jax.random.fold_in(rng, number))

    # Every device keeps its own rows: chunk i takes rows i, i + chunks, …
    pieces = tokens.reshape(rows // chunks, chunks, -1).swapaxes(0, 1)  # [chunks, rows / chunks, length]
    vectors = jax.lax.map(lambda x: part(*x), (jnp.arange(chunks), pieces))  # [chunks, rows / chunks, d]
    return vectors.swapaxes(0, 1).reshape(rows, -1)

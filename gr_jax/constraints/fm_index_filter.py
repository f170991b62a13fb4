"""Which rows of an FM-index lead to an allowed document, for each query."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from gr_jax.constraints import wavelet_matrix
from gr_jax.constraints.wavelet_matrix import BITS, WORDS

Filter = UInt32[Array, "batch blocks words_and_count"]  # of the bits of all rows, see `wavelet_matrix.rank`


@jax.jit
def make_filter(row_documents: Int[Array, " rows"], allowed: Bool[Array, "batch docs"]) -> Filter:
    """Reads the document of every row, one query at a time."""
    rows = row_documents.shape[0]
    blocks = rows // BITS + 1
    documents = jnp.pad(row_documents, (0, blocks * BITS - rows), constant_values=-1)

    def of_query(allowed: Bool[Array, " docs"]) -> UInt32[Array, "blocks words_and_count"]:
        bits = allowed[jnp.maximum(documents, 0)] & (documents >= 0)  # --> [blocks * BITS]
        bits = bits.reshape(blocks, WORDS, 32).astype(jnp.uint32)
        words = jnp.sum(bits << jnp.arange(32, dtype=jnp.uint32), axis=-1, dtype=jnp.uint32)  # --> [blocks, WORDS]
        ones = jnp.sum(jax.lax.population_count(words), axis=-1, dtype=jnp.uint32)
        before = jnp.cumsum(ones, dtype=jnp.uint32) - ones
        return jnp.concatenate([before[:, None], words], axis=-1)

    return jax.lax.map(of_query, allowed)


def rank(filter: Filter, row: Int[Array, "batch ..."]) -> Int[Array, "batch ..."]:
    """How many allowed rows stand before each."""
    batch, blocks, width = filter.shape
    return wavelet_matrix.rank(filter.reshape(batch * blocks, width), row, blocks * _query(row))


def is_allowed(filter: Filter, row: Int[Array, "batch ..."]) -> Bool[Array, "batch ..."]:
    """Whether rows lead to an allowed document."""
    return wavelet_matrix.has(filter.reshape(-1, filter.shape[-1]), row, filter.shape[1] * _query(row))


def _query(row: Int[Array, "batch ..."]) -> Int[Array, "batch ..."]:
    return jnp.arange(row.shape[0], dtype=jnp.int32).reshape(-1, *[1] * (row.ndim - 1))

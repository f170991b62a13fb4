"""Which rows of an FM-index lead to an allowed document, for each query."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from gr_jax.constraints import wavelet_matrix
from gr_jax.constraints.bits import pack
from gr_jax.constraints.wavelet_matrix import BITS
from gr_jax.errors import InputError

Filter = UInt32[Array, "batch blocks words_and_count"]  # of the bits of all rows, see `wavelet_matrix.rank`


@jax.jit
def make_filter(
    row_documents: Int[Array, " rows"], allowed: Bool[Array, "batch docs"], before: Filter | None
) -> Filter:
    """Reads the document of every row, one query at a time. before: a filter whose rows alone may be allowed."""
    rows = row_documents.shape[0]
    blocks = rows // BITS + 1
    documents = jnp.pad(row_documents, (0, blocks * BITS - rows), constant_values=-1)

    def of_query(query) -> UInt32[Array, "blocks words_and_count"]:
        allowed, own_before = query
        bits = allowed[jnp.maximum(documents, 0)] & (documents >= 0)  # --> [blocks * BITS]
        words = pack(bits.reshape(blocks, BITS))  # --> [blocks, WORDS]
        if own_before is not None:
            words &= own_before[:, 1:]
        ones = jnp.sum(jax.lax.population_count(words), axis=-1, dtype=jnp.uint32)
        counts = jnp.cumsum(ones, dtype=jnp.uint32) - ones
        return jnp.concatenate([counts[:, None], words], axis=-1)

    return jax.lax.map(of_query, (allowed, before))


def rank(filter: Filter, row: Int[Array, "batch ..."]) -> Int[Array, "batch ..."]:
    """How many allowed rows stand before each."""
    return wavelet_matrix.rank(filter.reshape(-1, filter.shape[-1]), row, _first_block(filter, row))


def is_allowed(filter: Filter, row: Int[Array, "batch ..."]) -> Bool[Array, "batch ..."]:
    """Whether rows lead to an allowed document."""
    return wavelet_matrix.has(filter.reshape(-1, filter.shape[-1]), row, _first_block(filter, row))


def _first_block(filter: Filter, row: Int[Array, "batch ..."]) -> Int[Array, "#batch ..."]:
    """Where the blocks of each query start. A single filter serves all queries."""
    batch, blocks, _ = filter.shape
    if batch not in (1, row.shape[0]):  # a gather would take another query's
        raise InputError(f"{row.shape[0]} queries under filters of {batch}", "Give each query a filter of its own.")
    return blocks * jnp.arange(batch, dtype=jnp.int32).reshape(-1, *[1] * (row.ndim - 1))

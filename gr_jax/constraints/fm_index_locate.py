"""Where the n-grams of an FM-index stand, and in which documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from gr_jax.constraints import fm_index_filter, wavelet_matrix

if TYPE_CHECKING:
    from gr_jax.constraints.fm_index_fields import FMFields, FMState

READ_AT_ONCE = 64  # rows of each state that `documents` locates


class Occurrences(NamedTuple):
    """Where n-grams stand; −1 where there is none.

    Attributes:
      document: int32[...].
      segment: int32[...], of the `TokenText`.
      position: int32[...], of the n-gram's first token in the segment.
    """

    document: Int[Array, ...]
    segment: Int[Array, ...]
    position: Int[Array, ...]


def locate(index: FMFields, row: Int[Array, ...], valid: Bool[Array, ...], depth: Int[Array, ...]) -> Occurrences:
    """What rows of n-grams of `depth` tokens stand for; −1 where they are not valid or not allowed. From each row a
    walk goes on through the text until it meets a sample."""
    row = jnp.where(valid, row, 0)
    if index.filter is not None:
        valid &= fm_index_filter.is_allowed(index.filter, row)
    view = jnp.searchsorted(index.view_rows, row, side="right").astype(jnp.int32) - 1

    def walk_on(carry):
        row, steps, found = carry
        symbol = index.bwt[row].astype(jnp.int32)
        after = index.wavelet.follow(symbol, row, row)[0] + index.first[view, symbol]
        row = jnp.where(found, row, after)
        return row, steps + ~found, found | wavelet_matrix.has(index.marks, row)

    start = row, jnp.zeros_like(row), wavelet_matrix.has(index.marks, row)
    row, steps, _ = lax.while_loop(lambda carry: ~jnp.all(carry[2]), walk_on, start)
    last = index.samples[wavelet_matrix.rank(index.marks, row)] - steps  # position of the n-gram's last token
    # The empty n-gram may stand on the separator before its segment.
    segment = jnp.searchsorted(index.segment_starts, last + (depth == 0), side="right").astype(jnp.int32) - 1
    position = last - index.segment_starts[segment] - depth + 1
    found = index.segment_documents[segment], index.segment_numbers[segment], position
    return Occurrences(*(jnp.where(valid, x, -1) for x in found))


def documents(index: FMFields, state: FMState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
    """See `FMIndex.documents`."""
    flat = jax.tree.map(lambda x: x.reshape(x.shape[0], -1), state)  # leaves --> [batch, states]
    low, width = flat.low[..., None], (flat.high - flat.low)[..., None]
    column = jnp.arange(READ_AT_ONCE, dtype=jnp.int32)
    batch, states = jnp.ogrid[: flat.low.shape[0], : flat.low.shape[1]]

    def read_on(carry):
        first, found, number = carry
        valid = first + column < width  # --> [batch, states, READ_AT_ONCE]
        document = locate(index, low + first + column, valid, flat.depth[..., None]).document
        earlier = (document[..., :, None] == document[..., None, :]) & (column[:, None] > column)
        new = (document >= 0) & ~earlier.any(-1) & ~(document[..., :, None] == found[..., None, :]).any(-1)
        place = number[..., None] + jnp.cumsum(new, axis=-1) - 1
        place = jnp.where(new, place, limit + 1)  # there is no such place, nor beyond: these are dropped
        found = found.at[batch[..., None], states[..., None], place].set(document, mode="drop")
        return first + READ_AT_ONCE, found, jnp.minimum(number + jnp.sum(new, axis=-1), limit + 1)

    def goes_on(carry):
        first, _, number = carry
        return jnp.any((first < width[..., 0]) & (number <= limit))

    nothing = jnp.full((*flat.low.shape, limit + 1), -1, jnp.int32)
    _, found, number = lax.while_loop(goes_on, read_on, (jnp.int32(0), nothing, jnp.zeros_like(flat.low)))
    return found[..., :limit].reshape(*state.low.shape, limit), number.reshape(state.low.shape)

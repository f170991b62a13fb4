"""Losses of docids' tokens over each position's own block of the vocabulary, of which alone the logits are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.losses.cross_entropy import TokenLosses, cross_entropy
from gr_jax.losses.rdrop import symmetric_kl

# Tokens of a packed row that are computed together; more would be more padding, fewer more parts.
_AT_ONCE = 8


def level_losses(
    passes: Sequence[Float[Array, "batch length d"]],
    output_table: Any,
    targets: Int[Array, "batch length"],
    levels: Sequence[tuple[int, int]],
    *,
    positions: Int[Array, "batch length"] | None = None,
    logits_of: Callable[[Array, Any], Array] = lambda features, rows: features.astype(jnp.float32) @ rows.T,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[list[TokenLosses], Float[Array, "batch length"]]:
    """`cross_entropy` and, of two passes, `symmetric_kl`, for docids without EOS.

    Equal to both over all logits with `level_mask`, at a fraction of the cost: a token costs its own block, padding
    costs little. Tokens outside of their block and positions past the last level have losses of 0.

    Args:
      passes: features of one pass, or of two with different dropout.
      output_table: `[vocab, d]`, or anything whose slices `logits_of` knows.
      levels: (start, size) of the block of each position.
      positions: of each target in its own docid, in packed rows; None: position t is level t.
      logits_of: logits, float32, from features `[…, d]` and a slice of the table.
      label_smoothing, z_loss: see `cross_entropy`.

    Returns:
      The losses of each pass, and how far two are apart: 0 where there is one.
    """
    length = targets.shape[1]
    nothing = _nothing(len(passes), targets.shape)
    blocks = [output_table[start : start + size] for start, size in levels]

    def of_block(level: int, block: Any, features: Sequence[Array], wanted: Int[Array, "batch n"]) -> Any:
        start, size = levels[level]
        logits = [logits_of(one, block) for one in features]  # [batch, n, size]
        inside = (wanted >= start) & (wanted < size + start)
        target = jnp.clip(wanted - start, 0, size - 1)
        losses = [cross_entropy(one, target, label_smoothing=label_smoothing, z_loss=z_loss) for one in logits]
        apart = symmetric_kl(*logits) if len(logits) == 2 else jnp.zeros(wanted.shape, jnp.float32)
        return jax.tree.map(lambda x: jnp.where(inside, x, jnp.zeros((), x.dtype)), (losses, apart))

    found = nothing
    if positions is None:
        for t in range(min(length, len(levels))):
            column = of_block(t, blocks[t], [features[:, t : t + 1] for features in passes], targets[:, t : t + 1])
            found = jax.tree.map(lambda all_, one, t=t: all_.at[:, t : t + 1].set(one), found, column)
        return found
    for level, (start, size) in enumerate(levels):
        here = (positions == level) & (targets >= start) & (targets < start + size)
        # A docid that has a token of this level has one of each level before it: so few of a row can be.
        most = max(length // (level + 1), 1)
        columns = jnp.argsort(~here, axis=1, stable=True)[:, :most]  # those of this level first
        for first in range(0, most, _AT_ONCE):
            some = columns[:, first : first + _AT_ONCE]
            found = _with_some(found, some, here, functools.partial(of_block, level), blocks[level], passes, targets)
    return found


def _with_some(
    found: Any,
    columns: Int[Array, "batch n"],
    here: Bool[Array, "batch length"],
    of_block: Callable[..., Any],
    block: Any,
    passes: Sequence[Array],
    targets: Int[Array, "batch length"],
) -> Any:
    """`found`, with the losses of one level at these columns of each row, where they are of this level."""
    own = jnp.take_along_axis(here, columns, axis=1)
    features = [jnp.take_along_axis(one, columns[..., None], axis=1) for one in passes]
    wanted = jnp.take_along_axis(targets, columns, axis=1)
    values = jax.lax.cond(  # rows are seldom full: where none has a token of this level no logits are computed
        jnp.any(own),
        of_block,
        lambda block, features, wanted: _nothing(len(features), wanted.shape),
        block,  # not the table, whose gradient would be as large as all blocks for each part
        features,
        wanted,
    )
    rows = jnp.arange(len(columns))[:, None]

    def put(all_: Array, new: Array) -> Array:
        return all_.at[rows, columns].set(jnp.where(own, new, all_[rows, columns]))

    return jax.tree.map(put, found, values)


def _nothing(passes: int, shape: tuple[int, ...]) -> tuple[list[TokenLosses], Array]:
    zero = jnp.zeros(shape, jnp.float32)
    return [TokenLosses(zero, zero, zero, zero.astype(bool))] * passes, zero

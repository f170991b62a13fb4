"""Every hypothesis that a beam search kept on its way: the scored n-grams of SEAL and MINDER, and where beams died."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import State


class Kept(NamedTuple):
    """What one step kept of its hypotheses, or all steps: then every array has an axis `steps` after `batch`.

    Attributes:
      tokens: int32[batch, n], what was written.
      parents: int32[batch, n], place of what was extended, among the first columns of the step before.
      scores: float32[batch, n], log-probability of all that was written, without length penalty.
      states: the constraint's states, leaves [batch, n].
    """

    tokens: Int[Array, "batch n"]
    parents: Int[Array, "batch n"]
    scores: Float[Array, "batch n"]
    states: State


class History(NamedTuple):
    """All that a search kept, step by step. `n` is 2 × beams, and a backoff's extra: first what goes on, then what
    a step completed.

    Attributes:
      tokens, parents, scores, states: see `Kept`; leaves [batch, steps, n]. A prefix that is not among those that go on
        at a step, although its parent is at the step before, was pruned there.
      valid: bool[batch, steps, n].
      complete: bool[batch, steps, n], the same everywhere: which columns are complete identifiers.
    """

    tokens: Int[Array, "batch steps n"]
    parents: Int[Array, "batch steps n"]
    scores: Float[Array, "batch steps n"]
    states: State
    valid: Bool[Array, "batch steps n"]
    complete: Bool[Array, "batch steps n"]

    def sequences(self) -> Int[Array, "batch steps n steps"]:
        """What each hypothesis had written: after step i its first i + 1 tokens, then 0."""
        batch, steps, n = self.tokens.shape
        before = jnp.zeros((batch, n, steps), jnp.int32)
        found = []
        for step in range(steps):
            rows = jnp.take_along_axis(before, self.parents[:, step, :, None], axis=1)
            before = jnp.where(self.valid[:, step, :, None], rows, 0)
            before = before.at[:, :, step].set(jnp.where(self.valid[:, step], self.tokens[:, step], 0))
            found.append(before)
        return jnp.stack(found, axis=1)


def empty(states: State, batch: int, steps: int, columns: int) -> Kept:
    """Room for what each of so many steps keeps; `states` are any of the constraint's, leaves [batch, beam]."""

    def room(leaf: Array) -> Array:
        return jnp.zeros((batch, steps, columns, *leaf.shape[2:]), leaf.dtype)

    shape = (batch, steps, columns)
    nothing = jnp.zeros(shape, jnp.int32)
    return Kept(nothing, nothing, jnp.full(shape, -jnp.inf), jax.tree.map(room, states))


def write(history: Kept, step: int | Array, kept: Kept, column: int) -> Kept:
    """The history with what a step kept, from a column on."""

    def put(all_steps: Array, leaf: Array) -> Array:
        place = (0, step, column, *([0] * (leaf.ndim - 2)))
        return lax.dynamic_update_slice(all_steps, leaf[:, None].astype(all_steps.dtype), place)

    return jax.tree.map(put, history, kept)


def finish(history: Kept, beams: int) -> History:
    """The history as it is returned."""
    complete = jnp.broadcast_to(jnp.arange(history.scores.shape[2]) >= beams, history.scores.shape)
    return History(*history, history.scores > -jnp.inf, complete)

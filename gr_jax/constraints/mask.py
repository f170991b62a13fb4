"""A constraint as a plain mask, for decoding loops that are not ours: Flax, Equinox, plain JAX, anything with logits.

A loop that keeps the constraint's state beside its own pays for one token a step. Greedy decoding of docids:

    state, tokens = start(trie, batch), jnp.zeros((batch, trie.max_steps), jnp.int32)
    for step in range(trie.max_steps):
        logits = model(tokens, step)                                     # [batch, vocab]
        token = jnp.argmax(mask_logits(trie, state, logits), axis=-1)
        done = ~jnp.any(trie.allowed(state), axis=-1)                    # complete: nothing may follow
        keep = lambda old, new: jnp.where(done, old, new)
        state = jax.tree.map(keep, state, trie.advance(state, token))
        tokens = tokens.at[:, step].set(keep(0, token))
    document, count = trie.documents(state, 1)

A function that only sees what was written so far walks the prefix anew every time, `max_len` cheap steps:

    allowed = make_mask_fn(trie)                                 # jitted; other arrays of the same shapes cost nothing
    logits = jnp.where(allowed(tokens, step), logits, MASKED)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Constraint, State
from gr_jax.errors import InputError

# What a forbidden token's logit becomes. Finite: a search that adds −inf to −inf, or multiplies it by a zero mask, as
# T5X's does, gets NaN. Half precision has no number so low; see `mask_logits`.
MASKED = -1.0e9


def start(constraint: Constraint, batch: int, view: Any = None) -> State:
    """States [batch] before the first token."""
    return jax.tree.map(lambda leaf: leaf[:, 0], constraint.initial_state(batch, view))


def mask_logits(
    constraint: Constraint, state: State, logits: Float[Array, "... vocab"], masked: float = MASKED
) -> Float[Array, "... vocab"]:
    """Logits with those of tokens that may not be written next set to `masked`.

    Args:
      constraint: what may be written.
      state: leaves [..., ].
      logits: at the same states. Columns beyond the constraint's vocabulary (padding of an output table) are masked.
      masked: replaced by the lowest number of the logits' type where that is higher (half precision).

    Raises:
      InputError: fewer logits than the constraint has tokens.
    """
    return _apply(_allowed(constraint, state, logits.shape[-1]), logits, masked)


def walk(
    constraint: Constraint,
    sequences: Int[Array, "... max_len"],
    step: int | Int[Array, ""],
    view: Any = None,
) -> State:
    """States after the first `step` tokens of each sequence; what was not allowed leads to states that allow nothing.

    Args:
      constraint: what may be written.
      sequences: [batch, max_len] or [batch, beam, max_len]; later tokens are arbitrary.
      step: may be traced.
      view: see `Constraint.initial_state`.
    """
    return _walk(constraint, constraint.initial_state(_batch(sequences), view), sequences, step)


def _batch(sequences: Int[Array, "... max_len"]) -> int:
    if sequences.ndim not in (2, 3):
        raise InputError(f"sequences of shape {sequences.shape}", "Give [batch, max_len] or [batch, beam, max_len].")
    return sequences.shape[0]


def _walk(constraint: Constraint, initial: State, sequences: Int[Array, "... max_len"], step: int | Array) -> State:
    """`walk` from states [batch, 1]."""
    *lead, max_len = sequences.shape
    rows = sequences.reshape(lead[0], -1, max_len)  # constraints lead with [batch, beam]
    states = jax.tree.map(lambda leaf: jnp.repeat(leaf, rows.shape[1], axis=1), initial)

    def body(i, states):
        return constraint.advance(states, lax.dynamic_index_in_dim(rows, i, axis=2, keepdims=False))

    states = lax.fori_loop(0, jnp.minimum(step, max_len), body, states)
    return jax.tree.map(lambda leaf: leaf.reshape(*lead, *leaf.shape[2:]), states)


def make_mask_fn(
    constraint: Constraint, *, vocab_size: int | None = None, view: Any = None
) -> Callable[[Int[Array, "... max_len"], int | Array], Bool[Array, "... vocab"]]:
    """A jitted function (sequences so far [batch, max_len] or [batch, beam, max_len], step) → which tokens may follow
    the first `step` ones [..., vocab].

    The start token is not one of them. After an EOS, and after what is not allowed, nothing may follow.

    Args:
      constraint: what may be written. Its arrays are arguments of the compiled function.
      vocab_size: columns of the model's logits where there are more than tokens (padding): nothing allows them.
      view: see `Constraint.initial_state`.
    """

    def mask(sequences: Int[Array, "... max_len"], step: int | Array) -> Bool[Array, "... vocab"]:
        # Outside of what is compiled: a view may be a name.
        initial = constraint.initial_state(_batch(sequences), view)
        return _mask(constraint, initial, sequences, jnp.asarray(step, jnp.int32), vocab_size)

    return mask


def _allowed(constraint: Constraint, state: State, vocab_size: int | None) -> Bool[Array, "... vocab"]:
    mask = constraint.allowed(state)
    missing = 0 if vocab_size is None else vocab_size - mask.shape[-1]
    if missing < 0:
        raise InputError(
            f"{vocab_size} logits for the {mask.shape[-1]} tokens of a constraint",
            "Use the docids of this model's vocabulary.",
            value=vocab_size,
        )
    return jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)])


def _apply(mask: Bool[Array, "... vocab"], logits: Float[Array, "... vocab"], masked: float) -> Array:
    lowest = max(masked, float(jnp.finfo(logits.dtype).min))
    return jnp.where(mask, logits, jnp.asarray(lowest, logits.dtype))


@jax.jit(static_argnames="vocab_size")
def _mask(constraint, initial, sequences, step, vocab_size):
    return _allowed(constraint, _walk(constraint, initial, sequences, step), vocab_size)

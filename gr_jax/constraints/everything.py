"""No constraint: every token may follow every prefix."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from gr_jax.constraints.base import Candidates, Scores
from gr_jax.errors import InputError


class EverythingState(NamedTuple):
    """Attributes:
    hash: polynomial hash of the tokens, for `key`.
    ended: EOS was written.
    """

    hash: Int[Array, ...]
    ended: Bool[Array, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Everything:
    """Allows every token of a vocabulary, as unconstrained beam search needs it.

    Attributes:
      vocab_size: tokens; those from here on (padding rows of an output table) are never written.
      eos_id: ends a sequence; None: sequences run to the last step.
    """

    vocab_size: int = dataclasses.field(metadata={"static": True})
    eos_id: int | None = dataclasses.field(metadata={"static": True}, default=None)
    open_ended = True

    def __post_init__(self):
        if self.vocab_size < 1:
            raise InputError("an empty vocabulary allows nothing", "Give vocab_size ≥ 1.", value=self.vocab_size)
        if self.eos_id is not None and not 0 <= self.eos_id < self.vocab_size:
            raise InputError(
                "eos_id is outside of the vocabulary", f"Give one below {self.vocab_size}.", value=self.eos_id
            )

    def initial_state(self, batch: int, view: Any = None) -> EverythingState:
        return EverythingState(jnp.zeros((batch, 1), jnp.int32), jnp.zeros((batch, 1), bool))

    def candidates(self, state: EverythingState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        # One more than k, since EOS, which ends a sequence and so is apart, may be among them.
        n = min(k + (self.eos_id is not None), self.vocab_size)
        token, log_prob = scores.top(n, below=self.vocab_size)  # --> [..., k + 1]
        valid = jnp.broadcast_to(~state.ended[..., None], token.shape)
        if self.eos_id is not None:
            valid &= token != self.eos_id
            end = jnp.full((*token.shape[:-1], 1), self.eos_id, token.dtype)
            token = jnp.concatenate([token, end], axis=-1)  # --> [..., k + 2]
            log_prob = jnp.concatenate([log_prob, scores.at(end)], axis=-1)
            valid = jnp.concatenate([valid, ~state.ended[..., None]], axis=-1)
        if scores.normalize == "constraint":
            log_prob = log_prob - scores.log_normalizer()[..., None]
        next_state = jax.tree.map(lambda x: jnp.broadcast_to(x[..., None], token.shape), state)
        return Candidates(token, log_prob, self.advance(next_state, token), valid, ending=int(self.eos_id is not None))

    def advance(self, state: EverythingState, token: Int[Array, ...]) -> EverythingState:
        ended = state.ended if self.eos_id is None else state.ended | (token == self.eos_id)
        return EverythingState(state.hash * 1_000_003 + token.astype(jnp.int32) + 1, ended)

    def allowed(self, state: EverythingState) -> Bool[Array, "... vocab"]:
        return jnp.broadcast_to(~state.ended[..., None], (*state.ended.shape, self.vocab_size))

    def accepts(self, state: EverythingState) -> Bool[Array, ...]:
        return jnp.ones(state.ended.shape, bool)

    def key(self, state: EverythingState) -> Int[Array, "... n"]:
        return jnp.stack([state.hash, state.ended.astype(jnp.int32)], axis=-1)

    def documents(self, state: EverythingState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """None: free text leads to no documents."""
        shape = state.ended.shape
        return jnp.full((*shape, limit), -1, jnp.int32), jnp.zeros(shape, jnp.int32)

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Everything:
        raise InputError("free text leads to no documents, so none can be excluded", "Restrict a Trie of docids.")

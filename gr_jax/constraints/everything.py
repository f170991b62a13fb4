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
    hash, other: two polynomial hashes of the tokens, for `key`: by one alone, different texts over a large vocabulary
      are often equal.
    ended: EOS was written, or a token that there is not.
    dead: the latter, or a token behind EOS.
    """

    hash: Int[Array, ...]
    other: Int[Array, ...]
    ended: Bool[Array, ...]
    dead: Bool[Array, ...]


_MULTIPLIERS = (1_000_003, 0x5BD1E995)  # odd; of the second the high bits differ, too


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Everything:
    """Allows every token of a vocabulary, as unconstrained beam search needs it.

    Under normalize="constraint" probabilities are normalised over the whole output table, padding rows included.

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
        start, no = jnp.zeros((batch, 1), jnp.int32), jnp.zeros((batch, 1), bool)
        return EverythingState(start, start, no, no)

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
        dead = state.ended | (token < 0) | (token >= self.vocab_size)
        ended = dead if self.eos_id is None else dead | (token == self.eos_id)
        one, other = (
            seen * by + token.astype(jnp.int32) + 1
            for seen, by in zip((state.hash, state.other), _MULTIPLIERS, strict=True)
        )
        return EverythingState(one, other, ended, dead)

    def allowed(self, state: EverythingState) -> Bool[Array, "... vocab"]:
        return jnp.broadcast_to(~state.ended[..., None], (*state.ended.shape, self.vocab_size))

    def accepts(self, state: EverythingState) -> Bool[Array, ...]:
        return ~state.dead

    def key(self, state: EverythingState) -> Int[Array, "... n"]:
        return jnp.stack([state.hash, state.other, state.ended.astype(jnp.int32)], axis=-1)

    def documents(self, state: EverythingState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """None: free text leads to no documents."""
        shape = state.ended.shape
        return jnp.full((*shape, limit), -1, jnp.int32), jnp.zeros(shape, jnp.int32)

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Everything:
        raise InputError("free text leads to no documents, so none can be excluded", "Restrict a Trie of docids.")

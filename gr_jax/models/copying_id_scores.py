"""Next-token logits to which copying adds, of as few ids as are asked for; see `copying_ids`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax.constraints.base import Scores
from gr_jax.top_k import top_k


class CopyingIdScores:
    """Logits of a network, with a bias for each id, and more for ids whose token stands in the query.

    Args:
      own: the network's logits, which nobody normalised.
      weights: how much likelier each place of the query makes its token.
      source: the query's tokens; 0 is padding.
      text_of: the token that each id writes; −1: it is never copied.
      bias: of each id.
      every: gives what is added to all ids, for those who ask for the whole vocabulary: a table of it is cheaper then
        than comparing each id with each place.
    """

    def __init__(
        self,
        own: Scores,
        weights: Float[Array, "batch beam source"],
        source: Int[Array, "batch source"],
        text_of: Sequence[int],
        bias: Float[Array, " vocab"],
        every: Callable[[], Float[Array, "batch beam vocab"]],
    ):
        self.normalize, self.vocab_size = own.normalize, len(text_of)
        self._own, self._weights, self._source, self._bias, self._every = own, weights, source, bias, every
        self._text_of = jnp.asarray(np.asarray(text_of, np.int32))

    def __copy__(self) -> CopyingIdScores:
        """What a copy's scores cache stays with it: it may be used in a branch of `lax.cond`."""
        new = object.__new__(CopyingIdScores)
        new.__dict__ = {**self.__dict__, "_own": copy.copy(self._own)}
        return new

    def at(self, tokens: Int[Array, "batch beam width"]) -> Float[Array, "batch beam width"]:
        added = self._added(tokens, self._weights[:, :, None], self._source[:, None, None])
        return self._own.at(tokens) + added

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        weights = self._weights[jnp.arange(len(parent))[:, None], parent]  # --> [batch, n, source]
        return self._own.at_parents(parent, tokens) + self._added(tokens, weights, self._source[:, None])

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "batch beam n"], Float[Array, "batch beam n"]]:
        scores, tokens = top_k(self._logits()[..., :below], n)
        return tokens, scores

    def log_normalizer(self) -> Float[Array, "batch beam"]:
        return jax.nn.logsumexp(self._logits(), axis=-1)

    def _logits(self) -> Float[Array, "batch beam vocab"]:
        ids = jnp.arange(self.vocab_size, dtype=jnp.int32)
        return self._own.at(jnp.broadcast_to(ids, (*self._weights.shape[:2], len(ids)))) + self._every()

    def _added(
        self, tokens: Int[Array, ...], weights: Float[Array, "... source"], source: Int[Array, "... source"]
    ) -> Float[Array, ...]:
        """A token that stands in several places counts as its likeliest; no id writes padding."""
        same = (self._text_of[tokens][..., None] == source) & (source != 0)
        best = jnp.max(jnp.where(same, weights, -jnp.inf), axis=-1)
        return jnp.where(jnp.isfinite(best), best, 0.0) + self._bias[tokens]

"""The best tokens that may follow n-grams of an FM-index in parts: the best of what each part finds."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints import fm_index_candidates
from gr_jax.constraints.base import Candidates, Scores
from gr_jax.errors import InputError
from gr_jax.top_k import top_k

if TYPE_CHECKING:
    from gr_jax.constraints.sharded_fm_index import ShardedFMIndex, ShardedFMState


class _Best(NamedTuple):
    """Attributes:
    token: int32[..., k]; −1 where there are fewer.
    log_prob: float32[..., k], descending.
    """

    token: Int[Array, "... k"]
    log_prob: Float[Array, "... k"]


def candidates(index: ShardedFMIndex, state: ShardedFMState, scores: Scores, k: int) -> Candidates:
    """See `ShardedFMIndex.candidates`; states are [batch, beam].

    Raises:
      InputError: normalised by level.
    """
    if scores.normalize == "level":
        raise InputError("n-grams have no blocks of tokens per level to normalise over", 'Use normalize="vocabulary".')
    k = min(k, index.vocab_size, sum(part.tokens.shape[0] - 1 for part in index.parts))
    total = None
    if scores.normalize == "constraint":
        best, total = _normalizable(index, state, scores, k)
    else:
        best = _merged(index, state, scores, k)
    axis = state.view.ndim

    def spread(x: Array) -> Array:
        return jnp.broadcast_to(jnp.expand_dims(x, axis), (*best.token.shape, *x.shape[axis:]))

    after = index.extend(jax.tree.map(spread, state), best.token)
    found = Candidates(jnp.maximum(best.token, 0), best.log_prob, after, best.token >= 0)
    return fm_index_candidates.finish(found, state, index.accepts(state), scores, index.eos_id, total)


def _merged(index: ShardedFMIndex, state: ShardedFMState, scores: Scores, k: int) -> _Best:
    """The best of the best of all parts: what is among the k best of all is among the k best of its part."""
    tokens, log_probs = [], []
    for part, own in zip(index.parts, state.of_parts(), strict=True):
        best, _ = fm_index_candidates.best_of(part, own, scores, k)
        tokens.append(part.tokens[best.symbol])  # −1 where there are fewer
        log_probs.append(best.log_prob)
    every = jnp.concatenate(tokens, axis=-1), jnp.concatenate(log_probs, axis=-1)
    token, log_prob = lax.sort(every, num_keys=1)  # stable: a token that several parts found is as the first has it
    is_first = jnp.pad(token[..., 1:] != token[..., :-1], [(0, 0)] * (token.ndim - 1) + [(1, 0)], constant_values=True)
    return _take_best(token, log_prob, is_first & (token >= 0), k)


def _normalizable(
    index: ShardedFMIndex, state: ShardedFMState, scores: Scores, k: int
) -> tuple[_Best, Float[Array, "batch beam"]]:
    """The best logits of each state, and the log of what the exps of all that may follow in any part add up to."""
    # What scores keep for a later call has to be computed outside of the loop.
    scores.log_normalizer()
    batch, beams = state.view.shape

    def of_beam(beam: Int[Array, ""]) -> tuple[_Best, Float[Array, " batch"]]:
        masks = []
        for part, own in zip(index.parts, state.of_parts(), strict=True):
            chosen = jax.tree.map(lambda x: x[:, beam], own)
            masks.append(fm_index_candidates.follows(part, chosen)[:, part.symbols] & (part.symbols > 0))
        follows: Bool[Array, "batch vocab"] = functools.reduce(operator.or_, masks)
        token = jnp.broadcast_to(jnp.arange(index.vocab_size, dtype=jnp.int32), follows.shape)
        log_prob = scores.at_parents(jnp.broadcast_to(beam, follows.shape), token)
        total = jax.nn.logsumexp(log_prob, axis=-1, where=follows)
        return _take_best(token, log_prob, follows, k), total

    by_beam = lax.map(of_beam, jnp.arange(beams, dtype=jnp.int32))  # leaves --> [beam, batch, …]
    best, total = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), by_beam)
    return best, total


def _take_best(token: Array, log_prob: Array, valid: Array, k: int) -> _Best:
    """The k best valid tokens; there are at least k columns."""
    log_prob, place = top_k(jnp.where(valid, log_prob, -jnp.inf), k)
    chosen = jnp.take_along_axis(valid, place, axis=-1)
    return _Best(jnp.where(chosen, jnp.take_along_axis(token, place, axis=-1), -1), log_prob)

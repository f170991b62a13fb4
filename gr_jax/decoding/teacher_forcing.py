"""Scores of given docids: what beam search must agree with, and what reranking and training on ranks use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.constraints.base import Candidates, Constraint
from gr_jax.constraints.everything import Everything
from gr_jax.decoding.decoder import NORMALIZERS, Cache, Decoder
from gr_jax.decoding.scores import check_vocabulary
from gr_jax.errors import InputError


def score_docids(
    decoder: Decoder,
    cache: Cache,
    sequences: Int[Array, "batch n max_len"],
    lengths: Int[Array, "batch n"],
    *,
    normalize: str = "vocabulary",
    constraint: Constraint | None = None,
) -> Float[Array, "batch n"]:
    """Log-probabilities of given sequences, each fed to the decoder token by token.

    Args:
      decoder: the network.
      cache: with n slots for each of max_len steps.
      sequences: tokens, EOS included where decoding ends in it; padding arbitrary.
      lengths: tokens of each.
      normalize: see `beam_search`.
      constraint: needed for "constraint"; a sequence that it does not allow scores −inf.

    Raises:
      InputError: an unknown normaliser; "constraint" without one; a constraint over more tokens than are scored.
    """
    if normalize not in NORMALIZERS:
        raise InputError("unknown normaliser", f"Use one of {', '.join(NORMALIZERS)}.", value=normalize)
    if normalize == "constraint" and constraint is None:
        raise InputError("there is no constraint to normalise over", "Give the constraint.")
    if normalize == "constraint" and isinstance(constraint, Everything):
        normalize = "vocabulary"  # the same, and it has too many candidates to look a token up among them
    batch, n, max_len = sequences.shape
    slots = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32)[None, :, None], sequences.shape)
    total = jnp.zeros((batch, n), jnp.float32)
    last = jnp.full((batch, n), decoder.start_token, sequences.dtype)
    state = None
    if normalize == "constraint":
        assert constraint is not None
        state = jax.tree.map(lambda x: jnp.repeat(x, n, axis=1), constraint.initial_state(batch))
    for step in range(max_len):
        token = sequences[:, :, step]
        features, cache = decoder.step(last, step, slots, cache)
        scores = decoder.scores(features, step, normalize)
        if constraint is not None:
            check_vocabulary(constraint, scores)
        if state is None:
            log_prob = scores.at(token[..., None])[..., 0]
        else:
            assert constraint is not None
            # Not the best alone: any token may be asked for.
            every = jax.eval_shape(constraint.allowed, state).shape[-1]
            candidates = constraint.candidates(state, scores, every, range(step, step + 1))
            log_prob = _of_token(candidates, token)
            state = constraint.advance(state, token)
        total += jnp.where(step < lengths, log_prob, 0.0)
        last = token
    return total


def prefix_scores(
    decoder: Decoder,
    cache: Cache,
    sequences: Int[Array, "batch n max_len"],
    lengths: Int[Array, "batch n"],
    slots: int,
) -> Float[Array, "batch n max_len"]:
    """Log-probabilities over the vocabulary of every prefix of given sequences: of the first token, the first two, …

    It takes as many steps as the longest has tokens, and as many rounds as the query with the most of them needs. It
    cannot be differentiated.

    Args:
      decoder: the network.
      cache: as it was before the first step, of `slots` hypotheses and max_len steps or more.
      sequences: tokens.
      lengths: tokens of each; 0: it is not scored.
      slots: so many sequences of a query are scored at a time.

    Returns:
      −inf behind the lengths.
    """
    batch, n, max_len = sequences.shape
    if n == 0:
        return jnp.zeros(sequences.shape, jnp.float32)
    rounds = -(-n // slots)
    order = jnp.argsort(lengths == 0, axis=1, stable=True)  # those that are scored first
    ordered = jnp.take_along_axis(sequences, order[..., None], axis=1)
    ordered = jnp.pad(ordered, ((0, 0), (0, rounds * slots - n), (0, 0)))
    own_slot = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None, :, None], (batch, slots, max_len))
    longest = jnp.max(lengths, initial=0)

    def of_round(number: Array, found: Array) -> Array:
        tokens = lax.dynamic_slice_in_dim(ordered, number * slots, slots, axis=1)

        def of_step(step: Array, carry: tuple[Array, Cache, Array, Array]) -> tuple[Array, Cache, Array, Array]:
            last, filled, total, its_own = carry
            features, filled = decoder.step(last, step, own_slot, filled)
            last = lax.dynamic_index_in_dim(tokens, step, axis=2, keepdims=False)
            total += decoder.scores(features, step, "vocabulary").at(last[..., None])[..., 0]
            return last, filled, total, lax.dynamic_update_index_in_dim(its_own, total, step, axis=2)

        last = jnp.full((batch, slots), decoder.start_token, sequences.dtype)
        zeros = jnp.zeros((batch, slots, max_len), jnp.float32)
        *_, its_own = lax.fori_loop(0, longest, of_step, (last, cache, zeros[:, :, 0], zeros))
        return lax.dynamic_update_slice_in_dim(found, its_own, number * slots, axis=1)

    most = jnp.max(jnp.sum(lengths > 0, axis=1), initial=0)
    found = jnp.zeros((batch, rounds * slots, max_len), jnp.float32)
    found = lax.fori_loop(0, -(-most // slots), of_round, found)
    found = jnp.take_along_axis(found, jnp.argsort(order, axis=1)[..., None], axis=1)
    return jnp.where(jnp.arange(max_len) < lengths[..., None], found, -jnp.inf)


def _of_token(candidates: Candidates, token: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
    """Log-probabilities of one token at each state; −inf where it is no candidate."""
    if candidates.parent is None:
        same = candidates.valid & (candidates.token == token[..., None])
        return jnp.max(candidates.log_prob, axis=-1, where=same, initial=-jnp.inf)
    row = jnp.arange(len(token))[:, None]
    same = candidates.valid & (candidates.token == token[row, candidates.parent])
    log_prob = jnp.where(same, candidates.log_prob, -jnp.inf)
    return jnp.full(token.shape, -jnp.inf, log_prob.dtype).at[row, candidates.parent].max(log_prob)

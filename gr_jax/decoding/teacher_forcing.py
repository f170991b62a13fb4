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
    if isinstance(constraint, Everything):
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
    decoder: Decoder, cache: Cache, sequences: Int[Array, "batch n max_len"], slots: int
) -> Float[Array, "batch n max_len"]:
    """Log-probabilities over the vocabulary of every prefix of given sequences: of the first token, the first two, …

    Args:
      decoder: the network.
      cache: as it was before the first step, of `slots` hypotheses and max_len steps or more.
      sequences: tokens.
      slots: so many sequences are scored at a time.
    """
    batch, n, max_len = sequences.shape
    parts = -(-n // slots)
    padded = jnp.pad(sequences, ((0, 0), (0, parts * slots - n), (0, 0)))
    own_slot = jnp.broadcast_to(jnp.arange(slots, dtype=jnp.int32)[None, :, None], (batch, slots, max_len))

    def of_part(part: Int[Array, "batch slots max_len"]) -> Float[Array, "batch slots max_len"]:
        last, filled, found = jnp.full((batch, slots), decoder.start_token, sequences.dtype), cache, []
        for step in range(max_len):
            features, filled = decoder.step(last, step, own_slot, filled)
            last = part[:, :, step]
            found.append(decoder.scores(features, step, "vocabulary").at(last[..., None])[..., 0])
        return jnp.cumsum(jnp.stack(found, axis=-1), axis=-1)

    by_part = lax.map(of_part, jnp.moveaxis(padded.reshape(batch, parts, slots, max_len), 1, 0))
    return jnp.moveaxis(by_part, 0, 1).reshape(batch, parts * slots, max_len)[:, :n]


def _of_token(candidates: Candidates, token: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
    """Log-probabilities of one token at each state; −inf where it is no candidate."""
    if candidates.parent is None:
        same = candidates.valid & (candidates.token == token[..., None])
        return jnp.max(candidates.log_prob, axis=-1, where=same, initial=-jnp.inf)
    row = jnp.arange(len(token))[:, None]
    same = candidates.valid & (candidates.token == token[row, candidates.parent])
    log_prob = jnp.where(same, candidates.log_prob, -jnp.inf)
    return jnp.full(token.shape, -jnp.inf, log_prob.dtype).at[row, candidates.parent].max(log_prob)

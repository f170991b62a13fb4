"""Hypotheses of a beam search, and their extensions by one token."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.constraints.base import Candidates, State
from gr_jax.decoding.decoder import Decoder


class Live(NamedTuple):
    """Hypotheses that go on; scores are plain log-probabilities."""

    sequences: Int[Array, "batch beam max_len"]
    scores: Float[Array, "batch beam"]
    states: State
    ancestors: Int[Array, "batch beam max_len"]


class Extensions(NamedTuple):
    """Hypotheses with one more token, of a query in one flat list."""

    scores: Float[Array, "batch n"]
    parent: Int[Array, "batch n"]
    token: Int[Array, "batch n"]
    states: State


def extensions_of(live: Live, candidates: Candidates) -> tuple[Extensions, Extensions]:
    """All extensions of a query's hypotheses as flat lists: those that go on, and those that complete a docid."""
    batch, beam = live.scores.shape
    log_prob = jnp.where(candidates.valid, candidates.log_prob, -jnp.inf).astype(jnp.float32)
    if candidates.parent is None:
        parent = jnp.broadcast_to(jnp.arange(beam, dtype=jnp.int32)[:, None], log_prob.shape)
        before = live.scores[:, :, None]
    else:
        parent = candidates.parent
        before = jnp.take_along_axis(live.scores, parent, axis=1)
    every = Extensions(before + log_prob, parent, candidates.token, candidates.next_state)
    width, axis = log_prob.shape[-1] - candidates.ending, log_prob.ndim - 1

    def columns(leaf: Array, start: int, stop: int) -> Array:
        n = (stop - start) * (beam if candidates.parent is None else 1)
        return lax.slice_in_dim(leaf, start, stop, axis=axis).reshape(batch, n, *leaf.shape[axis + 1 :])

    going_on = jax.tree.map(lambda leaf: columns(leaf, 0, width), every)
    return going_on, jax.tree.map(lambda leaf: columns(leaf, width, width + candidates.ending), every)


def follow(live: Live, chosen: Extensions, step: int | Array) -> Live:
    """The hypotheses that chosen extensions make."""
    rows = jnp.arange(len(chosen.parent))[:, None]
    sequences = write(live.sequences[rows, chosen.parent], step, chosen.token)
    return Live(sequences, chosen.scores, chosen.states, live.ancestors[rows, chosen.parent])


def write(table: Int[Array, "batch beam max_len"], step: int | Array, column: Int[Array, "batch beam"]) -> Array:
    """The table with what every hypothesis has at a step."""
    return lax.dynamic_update_slice_in_dim(table, column[:, :, None].astype(table.dtype), step, axis=2)


def last_tokens(
    decoder: Decoder, sequences: Int[Array, "batch beam max_len"], step: int | Array
) -> Int[Array, "batch beam"]:
    """What a step consumes: the token before it, and before the first, which is never traced, the start token."""
    if isinstance(step, int) and step == 0:
        return jnp.full(sequences.shape[:2], decoder.start_token, sequences.dtype)
    return sequences[:, :, jnp.maximum(step - 1, 0)]


def pad_live(live: Live, size: int) -> Live:
    """As many hypotheses as `size`; those that are added have no probability."""
    missing = size - live.scores.shape[1]
    scores = jnp.pad(live.scores, ((0, 0), (0, missing)), constant_values=-math.inf)
    return jax.tree.map(lambda leaf: pad_axis(leaf, missing), live)._replace(scores=scores)


def pad_axis(leaf: Array, missing: int) -> Array:
    """Zeros for so many more hypotheses, axis 1."""
    return jnp.pad(leaf, ((0, 0), (0, missing), *([(0, 0)] * (leaf.ndim - 2))))

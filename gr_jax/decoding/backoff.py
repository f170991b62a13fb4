"""Backoff: after a low-confidence prefix, siblings of the hypotheses re-enter the search."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax.decoding.decoder import Cache, Decoder, Features
from gr_jax.decoding.hypotheses import pad_axis
from gr_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Backoff:
    """Where the model was not sure of the prefix that it likes best, more prefixes go on.

    Definition. At each step a beam search keeps its `beams` best hypotheses. If the token by which a query's best one
    came had a log-probability below `threshold`, then for this query the next `extra` best ones, which are siblings
    that would be pruned, re-enter and are extended at the next step too. Scores stay log-probabilities of what is
    written. A step at which no query of the batch is unsure costs what it costs without backoff.

    Results lie between those of `beams` and of `beams + extra` beams, and so does the time. Measured (rows "backoff" of
    `benchmarks.decoding`: how often a small trained network's best docid of all is found) it is no better than as many
    plain beams as it feeds hypotheses at a step in the mean, and worse where it is used sparingly: .876 against .932 at
    5.4 hypotheses. Prefer more beams, unless they do not fit every query and few queries are unsure.

    Attributes:
      extra: how many siblings re-enter; the decoder's cache needs slots for as many more beams.
      threshold: log-probability of a token below which the prefix is of low confidence.
    """

    extra: int
    threshold: float

    def __post_init__(self):
        if self.extra < 1:
            raise InputError("backoff needs siblings that re-enter", "Give extra ≥ 1, or no backoff.", value=self.extra)


def drop_reserve(
    scores: Float[Array, "batch live"], token_log_prob: Float[Array, " batch"], beams: int, backoff: Backoff
) -> Float[Array, "batch live"]:
    """−inf for the siblings where the query was sure of the token by which its best hypothesis came."""
    sure = token_log_prob >= backoff.threshold
    return jnp.where(sure[:, None] & (jnp.arange(scores.shape[1]) >= beams), -jnp.inf, scores)


def step_decoder(
    decoder: Decoder,
    tokens: Int[Array, "batch live"],
    step: int | Array,
    ancestors: Int[Array, "batch live max_len"],
    cache: Cache,
    scores: Float[Array, "batch live"],
    beams: int,
) -> tuple[Features, Cache]:
    """A step of the decoder that leaves the siblings out where no query needs them; their features are then 0."""
    live = tokens.shape[1]
    if live <= beams:
        return decoder.step(tokens, step, ancestors, cache)

    def with_siblings(cache: Cache) -> tuple[Features, Cache]:
        return decoder.step(tokens, step, ancestors, cache)

    def without(cache: Cache) -> tuple[Features, Cache]:
        features, cache = decoder.step(tokens[:, :beams], step, ancestors[:, :beams], cache)
        return jax.tree.map(lambda leaf: pad_axis(leaf, live - beams), features), cache

    found: Any = lax.cond(jnp.any(scores[:, beams:] > -jnp.inf), with_siblings, without, cache)
    return found

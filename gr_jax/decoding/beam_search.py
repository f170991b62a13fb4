"""Beam search over a constraint's candidates.

What makes it cheap: only the tokens that the constraint allows are ranked, never the vocabulary; keys and values are
written once and hypotheses remember which slots are their ancestors; the first step runs one beam and the beam grows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Candidates, Constraint, State
from gr_jax.decoding.decoder import NORMALIZERS, Cache, Decoder
from gr_jax.decoding.top_k import top_k
from gr_jax.errors import InputError

# Steps that are unrolled by default. A short docid's steps have different shapes (the beam grows, levels differ in
# width), and each is cheapest compiled by itself; longer ones share one body to keep compiling short.
UNROLLED_STEPS = 8


class Beams(NamedTuple):
    """What was found, best first.

    Attributes:
      sequences: int32[batch, beam, max_len]; the tokens written, EOS included where decoding ends in it, then 0.
      lengths: int32[batch, beam], tokens of each.
      scores: float32[batch, beam]; log-probability, divided by the length penalty; −inf where not valid.
      states: the constraint's states after each sequence; leaves [batch, beam].
      valid: bool[batch, beam]; False where there are fewer complete sequences than beams.
    """

    sequences: Int[Array, "batch beam max_len"]
    lengths: Int[Array, "batch beam"]
    scores: Float[Array, "batch beam"]
    states: State
    valid: Bool[Array, "batch beam"]


class _Live(NamedTuple):
    """Hypotheses that go on; scores are plain log-probabilities."""

    sequences: Int[Array, "batch beam max_len"]
    scores: Float[Array, "batch beam"]
    states: State
    ancestors: Int[Array, "batch beam max_len"]


class _Extensions(NamedTuple):
    """Hypotheses with one more token, of a query in one flat list."""

    scores: Float[Array, "batch n"]
    parent: Int[Array, "batch n"]
    token: Int[Array, "batch n"]
    states: State


def beam_search(
    decoder: Decoder,
    cache: Cache,
    constraint: Constraint,
    *,
    beams: int,
    max_len: int,
    normalize: str = "vocabulary",
    length_penalty: float = 0.0,
    batch: int | None = None,
    unroll: int | None = None,
    end_within_beams: bool = False,
) -> Beams:
    """Finds the `beams` best identifiers of each query.

    At every step the best `beams` hypotheses go on, and whatever is completed competes for the best `beams` complete
    ones, which is what is returned. With beams ≥ the widest level of a trie, and no length penalty, these are the best
    there are. Scores equal the teacher-forced scores of the same sequences.

    Args:
      decoder: the network.
      cache: of the network, with `beams` slots for each of `max_len` steps.
      constraint: what may be written; an argument of the jitted function, not closed over.
      beams: hypotheses that are kept.
      max_len: most tokens, EOS included (`Trie.max_steps`). What is not complete by then is not returned, unless the
        constraint is open-ended.
      normalize: "vocabulary", "level" or "constraint": what the probabilities of the next tokens sum to one over.
      length_penalty: α of Wu et al. 2016, eq. 14: complete sequences of n tokens, EOS included, are ranked by
        log-probability / ((5 + n) / 6)^α. 0: by log-probability.
      batch: queries; default: the leading size of the cache's first array.
      unroll: so many first steps are unrolled, each with the shapes that it needs, and the others share one loop which
        ends as soon as nothing better can come. Default: all up to 8, else the first.
      end_within_beams: a hypothesis may end only where its end is among the `beams` best continuations of its query, as
        in transformers. For free text, which could end at every step: without it the empty text, unlikely as it is,
        beats every long one; with it one beam is greedy search. For docids every end counts.

    Raises:
      InputError: beams < 1, max_len < 1, an unknown normaliser.
    """
    if beams < 1:
        raise InputError("beam search needs at least one beam", "Give beams ≥ 1.", value=beams)
    if max_len < 1:
        raise InputError("nothing can be written in no steps", "Give max_len ≥ 1.", value=max_len)
    if normalize not in NORMALIZERS:
        raise InputError("unknown normaliser", f"Use one of {', '.join(NORMALIZERS)}.", value=normalize)
    if batch is None:
        batch = jax.tree.leaves(cache)[0].shape[0]
    if unroll is None:
        unroll = max_len if max_len <= UNROLLED_STEPS else 1
    search = _Search(decoder, constraint, beams, max_len, normalize, length_penalty, end_within_beams)
    live: _Live | None = search.start(batch)
    complete: Beams | None = None
    step = 0
    while live is not None and step < min(max(unroll, 1), max_len):
        live, complete, cache = search.step(live, complete, cache, step, range(step, step + 1))
        step += 1
    if live is not None and step < max_len:
        live, complete = search.loop(live, complete, cache, step)
    if live is not None and constraint.open_ended:
        length = jnp.full(live.scores.shape, max_len, jnp.int32)
        cut = _flagged(live.sequences, length, live.scores / search.penalty(max_len), live.states)
        complete = search.best(complete, cut)
    if complete is None:  # the constraint completes nothing in so few steps
        assert live is not None
        nothing = jnp.full(live.scores.shape, -jnp.inf)
        complete = _flagged(live.sequences, jnp.zeros_like(live.scores, jnp.int32), nothing, live.states)
    return _pad(complete, beams)


class _Search(NamedTuple):
    decoder: Decoder
    constraint: Constraint
    beams: int
    max_len: int
    normalize: str
    length_penalty: float
    end_within_beams: bool

    def penalty(self, length: int | Array) -> float | Array:
        return ((5.0 + length) / 6.0) ** self.length_penalty

    def start(self, batch: int) -> _Live:
        nothing = jnp.zeros((batch, 1, self.max_len), jnp.int32)
        return _Live(nothing, jnp.zeros((batch, 1), jnp.float32), self.constraint.initial_state(batch), nothing)

    def step(
        self, live: _Live, complete: Beams | None, cache: Cache, step: int | Array, steps: range
    ) -> tuple[_Live | None, Beams | None, Cache]:
        """Writes one token. `steps` are the values that `step` can have."""
        batch, beam, _ = live.sequences.shape
        own_slot = jnp.broadcast_to(jnp.arange(beam, dtype=jnp.int32), (batch, beam))
        ancestors = _write(live.ancestors, step, own_slot)
        last = live.sequences[:, :, jnp.maximum(step - 1, 0)]  # at step 0 nothing was written: 0 is the start token
        features, cache = self.decoder.step(last, step, ancestors, cache)
        scores = self.decoder.scores(features, step, self.normalize)
        candidates = self.constraint.candidates(live.states, scores, self.beams, steps)  # --> [batch, beam, width]
        going_on, ending = _extensions(live, candidates)
        live = live._replace(ancestors=ancestors)
        next_live, next_complete = None, complete
        is_last = isinstance(step, int) and step + 1 == self.max_len
        nothing_complete = complete is None and not candidates.ending
        if going_on.scores.shape[1] and (not is_last or self.constraint.open_ended or nothing_complete):
            next_live = self._extend(live, going_on, step)
        if candidates.ending:
            if self.end_within_beams:
                every = jnp.concatenate([going_on.scores, ending.scores], axis=1)
                cut = top_k(every, min(self.beams, every.shape[1]))[0][:, -1:]  # --> [batch, 1]
                ending = ending._replace(scores=jnp.where(ending.scores < cut, -jnp.inf, ending.scores))
            ended = self._extend(live, ending, step)
            length = jnp.broadcast_to(jnp.asarray(step + 1, jnp.int32), ended.scores.shape)
            done = _flagged(ended.sequences, length, ended.scores / self.penalty(step + 1), ended.states)
            next_complete = self.best(complete, done)
        return next_live, next_complete, cache

    def _extend(self, live: _Live, extensions: _Extensions, step: int | Array) -> _Live:
        """The best extensions of all hypotheses."""
        index = top_k(extensions.scores, min(self.beams, extensions.scores.shape[1]))[1]  # --> [batch, beam]
        rows = jnp.arange(len(index))[:, None]
        chosen = jax.tree.map(lambda leaf: leaf[rows, index], extensions)
        sequences = _write(live.sequences[rows, chosen.parent], step, chosen.token)
        return _Live(sequences, chosen.scores, chosen.states, live.ancestors[rows, chosen.parent])

    def best(self, one: Beams | None, other: Beams) -> Beams:
        """The best `beams` of two sets of complete sequences."""
        if one is None:
            return other
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), one, other)
        scores, index = top_k(both.scores, min(self.beams, both.scores.shape[1]))
        rows = jnp.arange(scores.shape[0])[:, None]
        return jax.tree.map(lambda leaf: leaf[rows, index], both)

    def loop(self, live: _Live, complete: Beams | None, cache: Cache, start: int) -> tuple[_Live, Beams]:
        """The remaining steps by one body that serves them all."""
        live = _pad_live(live, self.beams)
        if complete is None:
            nothing = jnp.full(live.scores.shape, -jnp.inf)
            complete = _flagged(live.sequences, jnp.zeros_like(live.scores, jnp.int32), nothing, live.states)
        complete = _pad(complete, self.beams)
        steps = range(start, self.max_len)

        def body(carry):
            step, live, complete, cache = carry
            live_next, complete, cache = self.step(live, complete, cache, step, steps)
            live_next = live if live_next is None else _pad_live(live_next, self.beams)
            return step + 1, live_next, complete, cache

        def can_improve(carry):
            step, live, complete, _ = carry
            # Log-probabilities only fall, so the best a hypothesis can become is what it is, at the kinder penalty.
            best = jnp.max(live.scores, axis=1)
            bound = jnp.maximum(best / self.penalty(step + 1), best / self.penalty(self.max_len))
            return (step < self.max_len) & jnp.any(bound > jnp.min(complete.scores, axis=1))

        carry = (jnp.int32(start), live, complete, cache)
        _, live, complete, _ = lax.while_loop(can_improve, body, carry)
        return live, complete


def _extensions(live: _Live, candidates: Candidates) -> tuple[_Extensions, _Extensions]:
    """All extensions of a query's hypotheses as flat lists: those that go on, and those that complete a docid."""
    batch, beam = live.scores.shape
    log_prob = jnp.where(candidates.valid, candidates.log_prob, -jnp.inf).astype(jnp.float32)
    if candidates.parent is None:
        parent = jnp.broadcast_to(jnp.arange(beam, dtype=jnp.int32)[:, None], log_prob.shape)
        before = live.scores[:, :, None]
    else:
        parent = candidates.parent
        before = jnp.take_along_axis(live.scores, parent, axis=1)
    every = _Extensions(before + log_prob, parent, candidates.token, candidates.next_state)
    width, axis = log_prob.shape[-1] - candidates.ending, log_prob.ndim - 1

    def columns(leaf: Array, start: int, stop: int) -> Array:
        n = (stop - start) * (beam if candidates.parent is None else 1)
        return lax.slice_in_dim(leaf, start, stop, axis=axis).reshape(batch, n, *leaf.shape[axis + 1 :])

    going_on = jax.tree.map(lambda leaf: columns(leaf, 0, width), every)
    return going_on, jax.tree.map(lambda leaf: columns(leaf, width, width + candidates.ending), every)


def _write(table: Int[Array, "batch beam max_len"], step: int | Array, column: Int[Array, "batch beam"]) -> Array:
    return lax.dynamic_update_slice_in_dim(table, column[:, :, None].astype(table.dtype), step, axis=2)


def _flagged(sequences: Array, lengths: Array, scores: Array, states: State) -> Beams:
    return Beams(sequences, lengths, scores, states, scores > -jnp.inf)


def _pad(beams: Beams, size: int) -> Beams:
    """Adds sequences that are flagged as not valid, and blanks those that are not."""
    missing = size - beams.scores.shape[1]
    beams = jax.tree.map(lambda leaf: _pad_axis(leaf, missing), beams)
    scores = jnp.where(jnp.arange(size) < size - missing, beams.scores, -jnp.inf)
    return beams._replace(
        sequences=jnp.where(beams.valid[:, :, None], beams.sequences, 0),
        lengths=jnp.where(beams.valid, beams.lengths, 0),
        scores=scores,
    )


def _pad_live(live: _Live, size: int) -> _Live:
    missing = size - live.scores.shape[1]
    scores = jnp.pad(live.scores, ((0, 0), (0, missing)), constant_values=-math.inf)
    return jax.tree.map(lambda leaf: _pad_axis(leaf, missing), live)._replace(scores=scores)


def _pad_axis(leaf: Array, missing: int) -> Array:
    return jnp.pad(leaf, ((0, 0), (0, missing), *([(0, 0)] * (leaf.ndim - 2))))

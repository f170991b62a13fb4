"""Sampling identifiers: each token drawn among those that the constraint allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Constraint, Scores, State, normalize_over
from gr_jax.constraints.mixed import Mixed
from gr_jax.constraints.token_text_trie import TokenTextTrie
from gr_jax.constraints.trie import Trie
from gr_jax.decoding.beam_search import UNROLLED_STEPS
from gr_jax.decoding.decoder import NORMALIZERS, Cache, Decoder
from gr_jax.decoding.hypotheses import last_tokens, write
from gr_jax.decoding.processors import Processor, Written, allowed_scores, process
from gr_jax.decoding.scores import check_vocabulary
from gr_jax.errors import InputError
from gr_jax.top_k import top_k


class Samples(NamedTuple):
    """What was drawn, in the order of drawing.

    Attributes:
      sequences: int32[batch, samples, max_len]; the tokens written, EOS included where decoding ends in it, then 0.
      lengths: int32[batch, samples], tokens of each.
      scores: float32[batch, samples]; log-probability under the model, as beam search and `score_docids` give it.
      drawn: float32[batch, samples]; log of the probability with which this sequence was drawn, which differs from
        `scores` where tokens outside of the constraint have probability, and by what processors do. Their difference is
        the log of the importance weight.
      states: the constraint's states after each sequence; leaves [batch, samples].
      valid: bool[batch, samples]; False where no identifier was completed in max_len tokens, or where processors
        forbade every next token. Such rows are blank and score −inf.
    """

    sequences: Int[Array, "batch samples max_len"]
    lengths: Int[Array, "batch samples"]
    scores: Float[Array, "batch samples"]
    drawn: Float[Array, "batch samples"]
    states: State
    valid: Bool[Array, "batch samples"]


class _Drawn(NamedTuple):
    """Samples so far. `going` is False where a sequence is complete or can go nowhere, and `complete` tells which."""

    sequences: Int[Array, "batch samples max_len"]
    lengths: Int[Array, "batch samples"]
    scores: Float[Array, "batch samples"]
    drawn: Float[Array, "batch samples"]
    states: State
    going: Bool[Array, "batch samples"]
    complete: Bool[Array, "batch samples"]


class _Options(NamedTuple):
    """Tokens that may be written next; log_prob −inf where not. Where the states after them are given, the last
    `ending` columns complete an identifier."""

    token: Int[Array, "batch beam width"]
    log_prob: Float[Array, "batch beam width"]
    next_state: State | None
    ending: int


def sample(
    decoder: Decoder,
    cache: Cache,
    constraint: Constraint,
    *,
    samples: int,
    max_len: int,
    key: Array,
    normalize: str = "vocabulary",
    processors: Sequence[Processor] = (),
    batch: int | None = None,
    view: object = None,
    unroll: int | None = None,
    children: bool | None = None,
    top_k: int | None = None,
) -> Samples:
    """Draws identifiers of each query, independently and with replacement, token by token (ancestral sampling).

    Each token is drawn among those that the constraint allows, in proportion to the exponential of its (processed)
    score. With normalize="constraint" and no processors a docid is so drawn with exactly its probability.

    Args:
      decoder: the network.
      cache: of the network, with `samples` slots for each of `max_len` steps.
      constraint: what may be written; an argument of the jitted function, not closed over.
      samples: drawn for each query.
      max_len: most tokens, EOS included. What is not complete by then is not valid, unless the constraint is
        open-ended.
      key: of `jax.random`.
      normalize: "vocabulary", "level" or "constraint": what `Samples.scores` are probabilities over; with "none" they
        are sums of logits. Tokens are drawn with the same probabilities under each, unless processors tell them apart.
      processors: applied to each step's scores; see `gr_jax.decoding.processors`. `Samples.scores` is without them.
      batch: queries; default: the leading size of the cache's first array.
      view: which automaton each row walks, where there are several.
      unroll: so many first steps are unrolled, the others share one loop, which ends when all samples are complete.
        Default: all up to 8, else the first.
      children: draw among the constraint's `candidates` (cheap for tries) instead of over a mask of the vocabulary.
        Default: where the constraint is made of tries; other constraints rank what they give.
      top_k: draw each token among the so many best that are allowed (Fan et al. 2018, arXiv 1805.04833, section 5.3).
        Unlike the processor `TopK`, which goes over the vocabulary, it asks the constraint for no more than these.

    Raises:
      InputError: samples < 1, max_len < 1, top_k < 1, an unknown normaliser, a constraint over more tokens than are
        scored.
    """
    if samples < 1:
        raise InputError("nothing to draw", "Give samples ≥ 1.", value=samples)
    if max_len < 1:
        raise InputError("decoding needs at least one step", "Give max_len ≥ 1.", value=max_len)
    if top_k is not None and top_k < 1:
        raise InputError("top_k leaves no token to draw", "Give top_k ≥ 1, or None.", value=top_k)
    if normalize not in NORMALIZERS:
        raise InputError("unknown normaliser", f"Use one of {', '.join(NORMALIZERS)}.", value=normalize)
    if batch is None:
        batch = jax.tree.leaves(cache)[0].shape[0]
    if unroll is None:
        unroll = max_len if max_len <= UNROLLED_STEPS else 1
    if children is None:
        children = _lists_children(constraint)
    sampler = _Sampler(decoder, constraint, samples, max_len, normalize, tuple(processors), key, children, top_k)
    step, unroll = 0, min(max(unroll, 1), max_len)
    state = sampler.start(batch, view)
    while step < unroll:
        state, cache = sampler.step(state, cache, step, range(step, step + 1))
        step += 1
    if step < max_len:
        steps = range(step, max_len)

        def body(carry):
            step, state, cache = carry
            return step + 1, *sampler.step(state, cache, step, steps)

        _, state, _ = lax.while_loop(
            lambda carry: (carry[0] < max_len) & jnp.any(carry[1].going), body, (jnp.int32(step), state, cache)
        )
    return sampler.finish(state)


def _lists_children(constraint: Constraint) -> bool:
    if isinstance(constraint, Mixed):
        return all(_lists_children(one) for one in constraint.constraints)
    return isinstance(constraint, (Trie, TokenTextTrie))


class _Sampler(NamedTuple):
    decoder: Decoder
    constraint: Constraint
    samples: int
    max_len: int
    normalize: str
    processors: tuple[Processor, ...]
    key: Array
    children: bool
    top_k: int | None

    def start(self, batch: int, view: object) -> _Drawn:
        """One row until the first token is drawn: before it all samples are equal."""
        zeros = jnp.zeros((batch, 1), jnp.float32)
        nothing = jnp.zeros((batch, 1, self.max_len), jnp.int32)
        states = self.constraint.initial_state(batch, view)
        return _Drawn(nothing, nothing[..., 0], zeros, zeros, states, zeros == 0, zeros != 0)

    def step(self, now: _Drawn, cache: Cache, step: int | Array, steps: range) -> tuple[_Drawn, Cache]:
        """Draws one token of each sample. `steps` are the values that `step` can have."""
        batch, beam, _ = now.sequences.shape
        # Every sample writes and reads its own slot, but for the first step, which one row took for all of them.
        slots = jnp.broadcast_to(jnp.arange(beam, dtype=jnp.int32)[:, None], (batch, beam, self.max_len))
        slots = slots.at[:, :, 0].set(0)
        last = last_tokens(self.decoder, now.sequences, step)
        features, cache = self.decoder.step(last, step, slots, cache)
        scores = self.decoder.scores(features, step, self.normalize)
        check_vocabulary(self.constraint, scores)
        written = Written(now.sequences, step, self.constraint, now.states)
        options = self._options(written, process(self.processors, scores, written), steps, self.top_k)

        row = jnp.arange(batch)[:, None]
        of_sample = jnp.arange(self.samples) if beam == self.samples else jnp.zeros(self.samples, jnp.int32)
        now = jax.tree.map(lambda leaf: leaf[row, of_sample], now)  # --> [batch, samples, ...]
        log_prob = options.log_prob[row, of_sample]  # --> [batch, samples, width]
        total = jax.nn.logsumexp(log_prob, axis=-1)
        alive = now.going & (total > -jnp.inf)
        noise = jax.random.gumbel(jax.random.fold_in(self.key, step), log_prob.shape)
        column = jnp.argmax(log_prob + noise, axis=-1)  # the Gumbel-max trick  --> [batch, samples]
        token = options.token[row, of_sample, column]
        gained = options.log_prob[row, of_sample, column]
        drawn = gained - total
        if self.processors:  # what the model itself gives to the token drawn
            if self.normalize == "constraint":
                plain = self._options(written, scores, steps, None)
                same = plain.token[row, of_sample] == token[..., None]
                gained = jnp.max(plain.log_prob[row, of_sample], axis=-1, where=same, initial=-jnp.inf)
            else:
                gained = scores.at_parents(jnp.broadcast_to(of_sample, token.shape), token)
        if options.next_state is not None:
            states = jax.tree.map(lambda leaf: leaf[row, of_sample, column], options.next_state)
            ends = column >= log_prob.shape[-1] - options.ending
        else:
            states = self.constraint.advance(now.states, token)
            ends = self.constraint.accepts(states) & ~jnp.any(self.constraint.allowed(states), axis=-1)
        return _Drawn(
            sequences=write(now.sequences, step, jnp.where(alive, token, 0)),
            lengths=now.lengths + alive,
            scores=now.scores + jnp.where(alive, gained, 0.0),
            drawn=now.drawn + jnp.where(alive, drawn, 0.0),
            states=_where(alive, states, now.states),
            going=alive & ~ends,
            complete=now.complete | (alive & ends),
        ), cache

    def _options(self, written: Written, scores: Scores, steps: range, most: int | None) -> _Options:
        """The tokens that may be written next, with their log-probabilities: all, or the `most` best."""
        if not self.children and most is None:
            log_prob = allowed_scores(scores, written)
            if self.normalize == "constraint":
                log_prob = normalize_over(log_prob, written.allowed)
            token = jnp.broadcast_to(jnp.arange(log_prob.shape[-1], dtype=jnp.int32), log_prob.shape)
            return _Options(token, log_prob, None, 0)
        # As many as there are tokens, so all of them.
        found = self.constraint.candidates(written.states, scores, most or written.vocab_size, steps)
        token, log_prob, valid, next_state = found.token, found.log_prob, found.valid, found.next_state
        if found.parent is not None:  # one list for all states: each takes its own  --> [batch, beam, n]
            beam = jnp.arange(written.sequences.shape[1])
            own = found.parent[:, None] == beam[:, None]
            token, log_prob, valid, next_state = jax.tree.map(
                lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], len(beam), *x.shape[1:])),
                (token, log_prob, valid, next_state),
            )
            valid &= own
        log_prob = jnp.where(valid, log_prob, -jnp.inf).astype(jnp.float32)
        if most is not None and most < log_prob.shape[-1]:  # constraints may give more than they are asked for
            log_prob = jnp.where(log_prob >= top_k(log_prob, most)[0][..., -1:], log_prob, -jnp.inf)
        return _Options(token, log_prob, next_state, found.ending)

    def finish(self, end: _Drawn) -> Samples:
        valid = end.complete
        if self.constraint.open_ended:
            cut = end.going
            if hasattr(self.constraint, "open_rows"):  # queries walk several constraints; not all may be open-ended
                cut &= self.constraint.open_rows(end.states)
            valid |= cut
        return Samples(
            sequences=jnp.where(valid[:, :, None], end.sequences, 0),
            lengths=jnp.where(valid, end.lengths, 0),
            scores=jnp.where(valid, end.scores, -jnp.inf),
            drawn=jnp.where(valid, end.drawn, -jnp.inf),
            states=end.states,
            valid=valid,
        )


def _where(chosen: Bool[Array, "batch samples"], one: State, other: State) -> State:
    return jax.tree.map(lambda x, y: jnp.where(chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), x, y), one, other)

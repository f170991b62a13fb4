"""Beam search over a constraint's candidates.

What makes it cheap: only the tokens that the constraint allows are ranked, never the vocabulary; keys and values are
written once and hypotheses remember which slots are their ancestors; the first step runs one beam and the beam grows;
later steps run with fewer beams where no query needs the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Constraint, State
from gr_jax.decoding import history as histories
from gr_jax.decoding.backoff import Backoff, drop_reserve, step_decoder
from gr_jax.decoding.decoder import NORMALIZERS, Cache, Decoder
from gr_jax.decoding.groups import choose_by_group
from gr_jax.decoding.history import History, Kept
from gr_jax.decoding.hypotheses import Extensions, Live, extensions_of, follow, last_tokens, pad_axis, pad_live, write
from gr_jax.decoding.lookahead import Ahead, Lookahead, check_lookahead
from gr_jax.decoding.merging import WAYS, merge_equal
from gr_jax.decoding.narrowing import narrower_widths, narrowing_loop
from gr_jax.decoding.processors import Processor, Written, process
from gr_jax.decoding.scores import check_vocabulary
from gr_jax.errors import InputError
from gr_jax.top_k import top_k

# Steps that are unrolled by default. A short docid's steps have different shapes (the beam grows, levels differ in
# width), and each is cheapest compiled by itself; longer ones share a loop to keep compiling short.
UNROLLED_STEPS = 8


class Beams(NamedTuple):
    """What was found, best first.

    Attributes:
      sequences: int32[batch, beam, max_len]; the tokens written, EOS included where decoding ends in it, then 0.
      lengths: int32[batch, beam], tokens of each: they alone tell what was written, for 0 may be a token.
      scores: float32[batch, beam]; log-probability, or the sum of logits, divided by the length penalty; −inf where
        not valid.
      states: the constraint's states after each sequence; leaves [batch, beam].
      valid: bool[batch, beam]; False where there are fewer complete sequences than beams.
      history: what the search kept on its way, where that was asked for.
    """

    sequences: Int[Array, "batch beam max_len"]
    lengths: Int[Array, "batch beam"]
    scores: Float[Array, "batch beam"]
    states: State
    valid: Bool[Array, "batch beam"]
    history: History | None = None


class _Found(NamedTuple):
    """What a step leaves behind; `complete` is None while nothing could be complete."""

    complete: Beams | None
    history: Kept | None
    cache: Cache
    ahead: Ahead | None  # from the first step on, where there is a lookahead


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
    view: Any = None,
    processors: Sequence[Processor] = (),
    merge: str | None = None,
    groups: int = 1,
    diversity: float | Array = 0.0,
    backoff: Backoff | None = None,
    history: bool = False,
    unroll: int | None = None,
    end_within_beams: bool = False,
    lookahead: Lookahead | None = None,
) -> Beams:
    """Finds the `beams` best identifiers of each query.

    At every step the best `beams` hypotheses go on, and whatever is completed competes for the best `beams` complete
    ones, which is what is returned. With beams ≥ the widest level of a trie, and no length penalty, these are the best
    there are. Scores equal the teacher-forced scores of the same sequences, except where processors change them or
    merging adds them up.

    Args:
      decoder: the network.
      cache: of the network, with `beams` slots (and `backoff.extra` more) for each of `max_len` steps.
      constraint: what may be written; an argument of the jitted function, not closed over.
      beams: hypotheses that are kept.
      max_len: most tokens, EOS included (`Trie.max_steps`). What is not complete by then is not returned, unless the
        constraint is open-ended.
      normalize: "vocabulary", "level" or "constraint": what the probabilities of the next tokens sum to one over.
        "none": they are no probabilities, and an identifier's score is the sum of its tokens' logits, divided by the
        length penalty: of cosines, say, a sum of matches, where a probability would pay for every token. The penalty
        favours short sequences where sums are positive and long ones where they are negative; merging by "sum" adds
        exponentials.
      length_penalty: α of Wu et al. 2016, eq. 14: complete sequences of n tokens, EOS included, are ranked by
        score / ((5 + n) / 6)^α. 0: by the score.
      batch: queries; default: the leading size of the cache's first array.
      view: which of the constraint's automata each query walks, where it has several.
      processors: change the scores of each step before anything is chosen; see `decoding.processors`.
      merge: what becomes of hypotheses that the constraint's `key` says are the same text, among those that go on and
        among complete ones: "max": the best stays; "sum": the best stays and gets the sum of their probabilities. It
        goes on from what the decoder read on its own path. None: all stay. A constraint that gives the k best tokens
        of a state instead of all of them loses what is beyond those.
      groups: diverse beam search (Vijayakumar et al. 2018): so many groups of beams, each a beam search of its own
        except that it avoids what groups before it chose at the same step. Two groups may find the same docid, of which
        merging leaves the best: no probability is added up across groups.
      diversity: λ of the same: what a token loses, in the choice only, for each time that an earlier group chose it at
        this step, among what goes on or among what is completed.
      backoff: more hypotheses where the model is unsure; see `Backoff`.
      history: also return every hypothesis kept on the way; see `History`.
      unroll: so many first steps are unrolled, each with the shapes that it needs. The others share a loop, which ends
        as soon as nothing better can come. With 16 beams or more it is compiled for fewer of them, too, and goes on
        with these where no query needs the others; but not for groups, free text, or a lookahead over probabilities.
        Default: all up to 8, else the first.
      end_within_beams: a hypothesis may end only where its end is among the `beams` best continuations of its query, as
        in transformers. For free text, which could end at every step: without it the empty text, unlikely as it is,
        beats every long one; with it one beam is greedy search. For docids every end counts.
      lookahead: hypotheses go on by what they could still become under the trie that it was made of; see `Lookahead`.
        Scores stay what they are. What processors change is not foreseen. None: by what they are.

    Raises:
      InputError: beams < 1, max_len < 1, an unknown normaliser or way to merge, groups that do not divide the beams,
        what cannot be combined, or a constraint over more tokens than the network scores.
    """
    _check(beams, max_len, normalize, merge, groups, diversity, backoff, end_within_beams)
    _check_lookahead(lookahead, normalize, getattr(decoder, "levels", None), groups, backoff)
    if batch is None:
        batch = jax.tree.leaves(cache)[0].shape[0]
    if unroll is None:
        unroll = max_len if max_len <= UNROLLED_STEPS else 1
    sums = merge == "sum"
    if merge is not None and groups == 1 and hasattr(constraint, "merged"):
        constraint, merge = constraint.merged(merge), None
    search = _Search(
        decoder,
        constraint,
        beams,
        max_len,
        normalize,
        length_penalty,
        tuple(processors),
        merge,
        sums,
        groups,
        diversity,
        backoff,
        end_within_beams,
        lookahead,
    )
    live: Live | None = search.start(batch, view)
    assert live is not None
    kept = histories.empty(live.states, batch, max_len, search.most_live + beams) if history else None
    found = _Found(None, kept, cache, None)
    step = 0
    while live is not None and step < min(max(unroll, 1), max_len):
        live, found = search.step(live, found, step, range(step, step + 1))
        step += 1
    if live is not None and step < max_len:
        live, found = search.loop(live, found, step)
    complete = found.complete
    if live is not None and constraint.open_ended:
        length = jnp.full(live.scores.shape, max_len, jnp.int32)
        scores = live.scores / search.penalty(max_len)
        if hasattr(constraint, "open_rows"):  # queries walk several constraints, not all of which are open-ended
            scores = jnp.where(constraint.open_rows(live.states), scores, -jnp.inf)
        cut = _flagged(live.sequences, length, scores, live.states)
        complete = search.best(complete, cut)
    if complete is None:  # the constraint completes nothing in so few steps
        assert live is not None
        complete = _nothing(live)
    if groups > 1:
        complete = search.best(None, complete, across_groups=True)
    complete = _pad(complete, beams)
    if found.history is None:
        return complete
    return complete._replace(history=histories.finish(found.history, search.most_live))


def _check(
    beams: int,
    max_len: int,
    normalize: str,
    merge: str | None,
    groups: int,
    diversity: float | Array,
    backoff: Backoff | None,
    end_within_beams: bool,
) -> None:
    if beams < 1:
        raise InputError("beam search needs at least one beam", "Give beams ≥ 1.", value=beams)
    if max_len < 1:
        raise InputError("decoding needs at least one step", "Give max_len ≥ 1.", value=max_len)
    if normalize not in NORMALIZERS:
        raise InputError("unknown normaliser", f"Use one of {', '.join(NORMALIZERS)}.", value=normalize)
    if merge is not None and merge not in WAYS:
        raise InputError("unknown way to merge", f"Use one of {', '.join(WAYS)}, or None.", value=merge)
    if groups < 1 or beams % groups:
        raise InputError(f"{beams} beams cannot be split into {groups} equal groups", "Give groups that divide beams.")
    if isinstance(diversity, (int, float)) and not 0.0 <= diversity < math.inf:
        raise InputError("diversity cannot be negative", "Give a number ≥ 0.", value=diversity)
    if normalize == "none" and backoff is not None:
        raise InputError(
            "whether the model is unsure is read off a probability, and logits are none",
            'Give backoff=None, or normalize="vocabulary".',
        )
    if groups > 1 and (backoff is not None or end_within_beams):
        raise InputError("groups of beams support neither backoff nor end_within_beams", "Give groups=1, or neither.")


def _check_lookahead(
    lookahead: Lookahead | None, normalize: str, levels: object, groups: int, backoff: Backoff | None
) -> None:
    if lookahead is None:
        return
    problem = check_lookahead(normalize, levels)
    if problem is not None:
        raise InputError(problem, 'Give lookahead=None, or normalize="vocabulary".', value=normalize)
    if groups > 1 or backoff is not None:
        raise InputError("a lookahead goes with neither groups of beams nor backoff", "Give groups=1 and backoff=None.")


_Carry = tuple[Array, Live, _Found]


class _Search(NamedTuple):
    decoder: Decoder
    constraint: Constraint
    beams: int
    max_len: int
    normalize: str
    length_penalty: float
    processors: tuple[Processor, ...]
    merge: str | None  # what is still to be done here
    sums: bool  # whether hypotheses of one text add up, here or in the constraint
    groups: int
    diversity: float | Array
    backoff: Backoff | None
    end_within_beams: bool
    lookahead: Lookahead | None

    @property
    def most_live(self) -> int:
        return self.beams + (0 if self.backoff is None else self.backoff.extra)

    def penalty(self, length: int | Array) -> float | Array:
        return ((5.0 + length) / 6.0) ** self.length_penalty

    def start(self, batch: int, view: Any) -> Live:
        """One empty hypothesis a group."""
        states = self.constraint.initial_state(batch, view)
        states = jax.tree.map(lambda leaf: jnp.repeat(leaf, self.groups, axis=1), states)
        nothing = jnp.zeros((batch, self.groups, self.max_len), jnp.int32)
        return Live(nothing, jnp.zeros((batch, self.groups), jnp.float32), states, nothing)

    def step(self, live: Live, found: _Found, step: int | Array, steps: range) -> tuple[Live | None, _Found]:
        """Writes one token. `steps` are the values that `step` can have."""
        complete, history, cache, ahead = found
        batch, beam, _ = live.sequences.shape
        own_slot = jnp.broadcast_to(jnp.arange(beam, dtype=jnp.int32), (batch, beam))
        live = live._replace(ancestors=write(live.ancestors, step, own_slot))
        last = last_tokens(self.decoder, live.sequences, step)
        features, cache = step_decoder(self.decoder, last, step, live.ancestors, cache, live.scores, self.beams)
        scores = self.decoder.scores(features, step, self.normalize)
        check_vocabulary(self.constraint, scores)
        if self.lookahead is not None and ahead is None:
            ahead = self.lookahead.begin(scores, batch, self.length_penalty, sums=self.sums)
        if self.processors:
            scores = process(self.processors, scores, Written(live.sequences, step, self.constraint, live.states))
        candidates = self.constraint.candidates(live.states, scores, self.most_live, steps)
        going_on, ending = extensions_of(live, candidates)
        next_live = None
        is_last = isinstance(step, int) and step + 1 == self.max_len
        nothing_complete = complete is None and not candidates.ending
        if going_on.scores.shape[1] and (not is_last or self.constraint.open_ended or nothing_complete):
            chosen = self.choose(going_on, beam, self.most_live, ahead)
            if self.backoff is not None:
                before = jnp.take_along_axis(live.scores, chosen.parent[:, :1], axis=1)
                confidence = (chosen.scores[:, :1] - before)[:, 0]  # of the token by which the best one came
                chosen = chosen._replace(scores=drop_reserve(chosen.scores, confidence, self.beams, self.backoff))
            next_live = follow(live, chosen, step)
            history = _record(history, step, chosen, 0)
        if candidates.ending:
            if self.end_within_beams:
                every = jnp.concatenate([going_on.scores, ending.scores], axis=1)
                cut = top_k(every, min(self.beams, every.shape[1]))[0][:, -1:]  # --> [batch, 1]
                ending = ending._replace(scores=jnp.where(ending.scores < cut, -jnp.inf, ending.scores))
            chosen = self.choose(ending, beam, self.beams)
            ended = follow(live, chosen, step)
            length = jnp.broadcast_to(jnp.asarray(step + 1, jnp.int32), ended.scores.shape)
            done = _flagged(ended.sequences, length, ended.scores / self.penalty(step + 1), ended.states)
            complete = self.best(complete, done)
            history = _record(history, step, chosen, self.most_live)
        return next_live, _Found(complete, history, cache, ahead)

    def choose(self, extensions: Extensions, beam: int, k: int, ahead: Ahead | None = None) -> Extensions:
        """The k best extensions of the hypotheses of each query, or k / groups of each group, of which there are then
        always so many; by what they could become, where that is given."""
        scores, n = extensions.scores, extensions.scores.shape[1]
        if self.groups > 1 and n < k // self.groups:
            extensions = jax.tree.map(lambda leaf: pad_axis(leaf, k // self.groups - n), extensions)
            scores = jnp.pad(scores, ((0, 0), (0, k // self.groups - n)), constant_values=-math.inf)
        group = extensions.parent // (beam // self.groups)
        if self.merge is not None:
            keys = jnp.concatenate([self.constraint.key(extensions.states), group[..., None]], axis=-1)
            scores = merge_equal(scores, keys, self.merge)
        if ahead is not None and self.lookahead is not None:
            index = top_k(self.lookahead.priorities(ahead, extensions.states, scores), min(k, n))[1]
            scores = jnp.take_along_axis(scores, index, axis=1)
        elif self.groups == 1:
            scores, index = top_k(scores, min(k, n))  # --> [batch, beam]
        else:
            index, scores = choose_by_group(
                scores, extensions.token, group, groups=self.groups, k=k // self.groups, diversity=self.diversity
            )
        rows = jnp.arange(len(index))[:, None]
        return jax.tree.map(lambda leaf: leaf[rows, index], extensions)._replace(scores=scores)

    def best(self, one: Beams | None, other: Beams, *, across_groups: bool = False) -> Beams:
        """The best `beams` of two sets of complete sequences; of each group its own, unless across groups."""
        if one is None and not across_groups:
            return other
        groups, batch = 1 if across_groups else self.groups, len(other.scores)
        sets = [
            jax.tree.map(lambda leaf: leaf.reshape(batch * groups, leaf.shape[1] // groups, *leaf.shape[2:]), beams)
            for beams in (one, other)
            if beams is not None
        ]
        both: Beams = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *sets)
        if self.merge is not None:
            # Groups find the same sequences: what each of them summed up must not be counted again.
            how = "max" if across_groups else self.merge
            penalty = self.penalty(both.lengths) if how == "sum" else 1.0  # probabilities add up, not scores
            merged = merge_equal(both.scores * penalty, self.constraint.key(both.states), how) / penalty
            both = both._replace(scores=merged, valid=merged > -jnp.inf)
        index = top_k(both.scores, min(self.beams // groups, both.scores.shape[1]))[1]
        rows = jnp.arange(len(index))[:, None]
        return jax.tree.map(lambda leaf: leaf[rows, index].reshape(batch, -1, *leaf.shape[2:]), both)

    def loop(self, live: Live, found: _Found, start: int) -> tuple[Live, _Found]:
        """The remaining steps: of the first half of the hypotheses, or an eighth, where no query needs the others."""
        live = pad_live(live, self.most_live)
        complete = _nothing(live) if found.complete is None else found.complete
        complete = jax.tree.map(lambda leaf: leaf[:, : self.beams], complete)
        found = found._replace(complete=_pad(complete, self.beams))
        steps = range(start, self.max_len)
        # Whether the scores of what goes on only fall: then nothing need be awaited that is behind already, unless all
        # that is kept on the way is asked for.
        only_fall = not self.sums and not self.processors and self.normalize != "none" and found.history is None

        def needs_behind(carry: _Carry, place: int) -> Array:
            """Whether a hypothesis from a place on can still become one of the best."""
            step, live, found = carry
            best, bound = live.scores[:, place:], jnp.float32(-math.inf)
            if only_fall:
                assert found.complete is not None
                # The best that a hypothesis can become is what it is, at the kinder penalty.
                best = jnp.maximum(best / self.penalty(step + 1), best / self.penalty(self.max_len))
                bound = jnp.min(found.complete.scores, axis=1, keepdims=True)
            return (step < self.max_len) & jnp.any(best > bound)

        def body(carry: _Carry, width: int) -> _Carry:
            step, live, found = carry
            following, found = self.step(jax.tree.map(lambda leaf: leaf[:, :width], live), found, step, steps)
            return step + 1, live if following is None else pad_live(following, self.most_live), found

        # What is behind can be left out where it would only take the place of what is worse still. By a lookahead's
        # priorities it may take that of something better. Groups are told apart by their places. Narrower bodies would
        # be compiled in vain where free text goes on with all beams to the end.
        by_score = self.lookahead is None or not only_fall
        narrows = by_score and self.groups == 1 and not self.constraint.open_ended
        widths = narrower_widths(self.most_live) if narrows else [self.most_live]
        _, live, found = narrowing_loop((jnp.int32(start), live, found), widths, needs_behind, body)
        return live, found


def _record(history: Kept | None, step: int | Array, chosen: Extensions, column: int) -> Kept | None:
    if history is None:
        return None
    return histories.write(history, step, Kept(chosen.token, chosen.parent, chosen.scores, chosen.states), column)


def _flagged(sequences: Array, lengths: Array, scores: Array, states: State) -> Beams:
    return Beams(sequences, lengths, scores, states, scores > -jnp.inf)


def _nothing(live: Live) -> Beams:
    """As many sequences as there are hypotheses, none of them valid."""
    nothing = jnp.full(live.scores.shape, -jnp.inf)
    return _flagged(live.sequences, jnp.zeros_like(live.scores, jnp.int32), nothing, live.states)


def _pad(beams: Beams, size: int) -> Beams:
    """Adds sequences that are flagged as not valid, and blanks those that are not."""
    missing = size - beams.scores.shape[1]
    beams = jax.tree.map(lambda leaf: pad_axis(leaf, missing), beams)
    scores = jnp.where(jnp.arange(size) < size - missing, beams.scores, -jnp.inf)
    return beams._replace(
        sequences=jnp.where(beams.valid[:, :, None], beams.sequences, 0),
        lengths=jnp.where(beams.valid, beams.lengths, 0),
        scores=scores,
    )

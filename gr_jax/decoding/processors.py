"""Logits processors: what beam search and samplers do to the scores of the next token before they choose.

A processor is a function `processor(scores, written) -> scores` of a step's lazy `Scores` and of what was written so
far. Processors compose: `process` applies them in order, each to what the one before made of the scores. They are
pytrees, so they are given to jitted functions as arguments, and another temperature compiles nothing again.

One meaning everywhere, in beam search and in sampling: processors change what `Scores.at` gives. Under the normalisers
"vocabulary" and "level" those are log-probabilities (transformers' beam search, too, processes log-softmaxed scores),
and what comes out is not normalised again unless `Renormalize` is one of the processors; a sampler draws in proportion
to exp(score), which needs no normalising. Under "constraint" those are logits, and the constraint normalises what comes
out; under "none" they are logits that nobody normalises. A token that a processor forbids scores −inf. Processors that
compare the tokens of a state with one another (`TopK`, `TopP`, `MinP`) compare those that the constraint allows, so
they never make a dead end; they and `Renormalize` look at every allowed token, all others change only the scores that
someone asks for.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Constraint, Scores, State
from gr_jax.decoding.decoder import LOGITS
from gr_jax.errors import InputError
from gr_jax.top_k import top_k


@dataclasses.dataclass(frozen=True)
class Written:
    """What was written before the step whose scores are processed.

    Attributes:
      sequences: int32[batch, beam, max_len]; the first `step` tokens of each count, the rest is arbitrary.
      step: how many tokens were written; a Python int where decoding is unrolled, else a scalar array.
      constraint: what may be written.
      states: its states after each sequence, leaves [batch, beam].
    """

    sequences: Int[Array, "batch beam max_len"]
    step: int | Int[Array, ""]
    constraint: Constraint
    states: State

    @functools.cached_property
    def allowed(self) -> Bool[Array, "batch beam vocab"]:
        """The tokens that may be written next."""
        return self.constraint.allowed(self.states)

    @functools.cached_property
    def vocab_size(self) -> int:
        """Tokens of the constraint's vocabulary; found out without computing anything."""
        return jax.eval_shape(self.constraint.allowed, self.states).shape[-1]


class Processor(Protocol):
    """A function from scores to scores, and a pytree."""

    def __call__(self, scores: Scores, written: Written) -> Scores:
        """Args:
        scores: of the next token at states [batch, beam].
        written: what each of them wrote so far.
        """
        ...


def process(processors: Sequence[Processor], scores: Scores, written: Written) -> Scores:
    """Scores after all processors, the first one first."""
    for processor in processors:
        scores = processor(scores, written)
    return scores


Change = Callable[..., Array]  # (values [..., width], tokens [..., width], *rows of the states [..., n]) -> values


class Processed:
    """Scores with a change to every value, computed only where someone asks.

    Args:
      scores: before the change.
      written: of the same step.
      change: makes new values [..., width] of values and tokens [..., width] and the rows [..., n] of their states.
      rows: arrays [batch, beam, n] that the change needs.
      keeps_order: the change never alters which of two tokens of a state is better.
    """

    def __init__(
        self,
        scores: Scores,
        written: Written,
        change: Change,
        rows: tuple[Array, ...] = (),
        keeps_order: bool = False,
    ):
        self.normalize = scores.normalize
        self._scores, self._written, self._change, self._rows = scores, written, change, rows
        self._keeps_order = keeps_order

    def __copy__(self) -> Processed:
        """What a copy caches stays with it, as in the scores below: it may be used in a branch of `lax.cond`."""
        new = object.__new__(Processed)
        new.__dict__ = {**self.__dict__, "_scores": copy.copy(self._scores), "_written": copy.copy(self._written)}
        return new

    def at(self, tokens: Int[Array, "... width"]) -> Float[Array, "... width"]:
        return self._change(self._scores.at(tokens), tokens, *self._rows)

    def at_parents(self, parent: Int[Array, "batch n"], tokens: Int[Array, "batch n"]) -> Float[Array, "batch n"]:
        values = self._scores.at_parents(parent, tokens)[..., None]  # --> [batch, n, 1]
        rows = (jnp.take_along_axis(row, parent[..., None], axis=1) for row in self._rows)
        return self._change(values, tokens[..., None], *rows)[..., 0]

    def between(self, start: int, size: int) -> Float[Array, "... size"]:
        """What `at` gives of the tokens start … start + size − 1; see `LogitScores.between`."""
        values, tokens = _between(self._scores, self._written, start, size)
        return self._change(values, tokens, *self._rows)

    def top(self, n: int, below: int | None = None) -> tuple[Int[Array, "... n"], Float[Array, "... n"]]:
        if self._keeps_order:
            tokens, values = self._scores.top(n, below)
            return tokens, self._change(values, tokens, *self._rows)
        values, tokens = top_k(every_score(self, self._written, below), n)
        return tokens, values

    def log_normalizer(self) -> Float[Array, ...]:
        if self.normalize not in LOGITS:
            return self._scores.log_normalizer()
        return jax.nn.logsumexp(every_score(self, self._written), axis=-1)


def every_score(scores: Scores, written: Written, below: int | None = None) -> Float[Array, "batch beam vocab"]:
    """Scores of the whole vocabulary, or of the tokens below `below`."""
    return _between(scores, written, 0, written.vocab_size if below is None else below)[0]


def _between(scores: Scores, written: Written, start: int, size: int) -> tuple[Array, Array]:
    """Scores of the tokens start … start + size − 1 and these tokens, [batch, beam, size]; sliced where that works."""
    tokens = jnp.broadcast_to(start + jnp.arange(size, dtype=jnp.int32), (*written.sequences.shape[:2], size))
    return (scores.between(start, size) if hasattr(scores, "between") else scores.at(tokens)), tokens


def allowed_scores(scores: Scores, written: Written) -> Float[Array, "batch beam vocab"]:
    """Scores of all tokens that may be written next, −inf elsewhere."""
    return jnp.where(written.allowed, every_score(scores, written), -jnp.inf)


def _pytree(cls: type, *, static: tuple[str, ...] = ()) -> None:
    fields = [field.name for field in dataclasses.fields(cls)]
    jax.tree_util.register_dataclass(cls, [name for name in fields if name not in static], list(static))


LARGEST = float(np.finfo(np.float32).max)


def _check(value: Any, low: float, high: float, what: str, remedy: str) -> None:
    """Refuses a number outside of (low, high]; traced arrays cannot be looked at."""
    if isinstance(value, (int, float)) and not low < value <= high:
        raise InputError(what, remedy, value=value)


@dataclasses.dataclass(frozen=True)
class Temperature:
    """Divides scores by a temperature: below 1 sharper, above 1 flatter."""

    temperature: float | Array

    def __post_init__(self):
        _check(self.temperature, 0.0, LARGEST, "a temperature that is not positive and finite", "Give one above 0.")

    def __call__(self, scores: Scores, written: Written) -> Scores:
        return Processed(scores, written, lambda values, tokens: values / self.temperature, keeps_order=True)


@dataclasses.dataclass(frozen=True)
class TokenBias:
    """Adds a bias to the score of each token.

    Attributes:
      bias: float32[vocab]; −inf forbids.
    """

    bias: Float[Array, " vocab"]

    @classmethod
    def of(cls, biases: Mapping[int, float], vocab_size: int) -> TokenBias:
        """From the biases of some tokens.

        Raises:
          InputError: a token outside of the vocabulary.
        """
        table = np.zeros(vocab_size, np.float32)
        for token, bias in biases.items():
            if not 0 <= token < vocab_size:
                raise InputError(
                    "a bias for a token outside of the vocabulary", f"Give tokens below {vocab_size}.", value=token
                )
            table[token] = bias
        return cls(jnp.asarray(table))

    def __call__(self, scores: Scores, written: Written) -> Scores:
        def change(values, tokens):
            return values + self.bias.at[tokens].get(mode="fill", fill_value=0.0)

        return Processed(scores, written, change)


def forbid_tokens(tokens: Sequence[int], vocab_size: int) -> TokenBias:
    """The processor that forbids some tokens everywhere."""
    return TokenBias.of(dict.fromkeys(tokens, -float("inf")), vocab_size)


@dataclasses.dataclass(frozen=True)
class ForbidSequences:
    """Forbids token sequences ("bad words") anywhere in what is written: the last token of each may not follow the
    others.

    Attributes:
      sequences: int32[count, longest], right-aligned: −1 stands before the first token.
    """

    sequences: Int[Array, "count longest"]

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> ForbidSequences:
        """From lists of tokens.

        Raises:
          InputError: no sequence, or an empty one, which would forbid everything.
        """
        if not sequences or not all(len(sequence) for sequence in sequences):
            raise InputError("an empty sequence cannot be forbidden", "Give at least one token in each.")
        table = np.full((len(sequences), max(map(len, sequences))), -1, np.int32)
        for row, sequence in zip(table, sequences, strict=True):
            row[len(row) - len(sequence) :] = sequence
        return cls(jnp.asarray(table))

    def __call__(self, scores: Scores, written: Written) -> Scores:
        before = self.sequences.shape[1] - 1
        place = written.step - before + jnp.arange(before)
        tail = written.sequences[..., jnp.maximum(place, 0)]  # --> [batch, beam, longest − 1]
        tail = jnp.where(place >= 0, tail, -2)[..., None, :]
        follows = jnp.all((self.sequences[:, :-1] == -1) | (self.sequences[:, :-1] == tail), axis=-1)
        last = jnp.where(follows, self.sequences[:, -1], -1)  # --> [batch, beam, count]
        return Processed(scores, written, _forbid, (last,))


@dataclasses.dataclass(frozen=True)
class NoRepeatNgram:
    """Forbids what would write an n-gram a second time.

    Attributes:
      n: static.
    """

    n: int

    def __post_init__(self):
        _check(self.n, 0, float("inf"), "n-grams of no tokens", "Give n ≥ 1.")

    def __call__(self, scores: Scores, written: Written) -> Scores:
        sequences, before = written.sequences, self.n - 1
        starts = max(sequences.shape[-1] - before, 0)  # where an n-gram can start
        windows = jnp.arange(starts)[:, None] + jnp.arange(before)  # --> [starts, n − 1]
        tail = sequences[..., jnp.maximum(written.step - before + jnp.arange(before), 0)]
        same = jnp.all(sequences[..., windows] == tail[..., None, :], axis=-1)  # --> [batch, beam, starts]
        last = jnp.arange(starts) + before
        again = jnp.where(same & (last < written.step), sequences[..., last], -1)
        return Processed(scores, written, _forbid, (again,))


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty:
    """Multiplies negative scores of tokens that were written before by a penalty, and divides positive ones by it
    (CTRL, arXiv 1909.05858, section 4.1, in the form that all libraries use). Above 1 repetition is rarer."""

    penalty: float | Array

    def __post_init__(self):
        _check(self.penalty, 0.0, LARGEST, "a repetition penalty that is not positive and finite", "Give one above 0.")

    def __call__(self, scores: Scores, written: Written) -> Scores:
        def change(values, tokens, before):
            penalised = jnp.where(values < 0, values * self.penalty, values / self.penalty)
            return jnp.where(_among(tokens, before), penalised, values)

        place = jnp.arange(written.sequences.shape[-1])
        return Processed(scores, written, change, (jnp.where(place < written.step, written.sequences, -1),))


@dataclasses.dataclass(frozen=True)
class MinLength:
    """Forbids EOS before `length` tokens were written."""

    length: int | Array
    eos_id: int

    def __call__(self, scores: Scores, written: Written) -> Scores:
        def change(values, tokens):
            return jnp.where((tokens == self.eos_id) & (written.step < self.length), -jnp.inf, values)

        return Processed(scores, written, change)


@dataclasses.dataclass(frozen=True)
class TopK:
    """Keeps the k best allowed tokens of each state, and what scores as well as the last of them.

    Attributes:
      k: static.
    """

    k: int

    def __post_init__(self):
        _check(self.k, 0, float("inf"), "the best no tokens", "Give k ≥ 1.")

    def __call__(self, scores: Scores, written: Written) -> Scores:
        best, _ = top_k(allowed_scores(scores, written), min(self.k, written.vocab_size))
        return Processed(scores, written, _cut, (best[..., -1:],))


@dataclasses.dataclass(frozen=True)
class TopP:
    """Nucleus sampling (Holtzman et al. 2020, section 3.1): keeps the fewest best allowed tokens of each state that
    together have at least probability p among the allowed ones, and what scores as well as the last of them."""

    p: float | Array

    def __post_init__(self):
        _check(self.p, 0.0, 1.0, "a probability outside of (0, 1]", "Give 0 < p ≤ 1.")

    def __call__(self, scores: Scores, written: Written) -> Scores:
        best = -jnp.sort(-allowed_scores(scores, written), axis=-1)
        largest = jnp.where(jnp.isfinite(best[..., :1]), best[..., :1], 0.0)
        mass = jnp.exp(best - largest)
        before = jnp.cumsum(mass, axis=-1) - mass
        kept = (before < self.p * jnp.sum(mass, axis=-1, keepdims=True)) | (self.p >= 1)  # sums round
        least = jnp.min(jnp.where(kept, best, jnp.inf), axis=-1, keepdims=True)
        return Processed(scores, written, _cut, (least,))


@dataclasses.dataclass(frozen=True)
class MinP:
    """Keeps the allowed tokens of each state at least p times as probable as the best one (arXiv 2407.01082)."""

    p: float | Array

    def __post_init__(self):
        _check(self.p, 0.0, 1.0, "a ratio outside of (0, 1]", "Give 0 < p ≤ 1.")

    def __call__(self, scores: Scores, written: Written) -> Scores:
        best = jnp.max(allowed_scores(scores, written), axis=-1, keepdims=True)
        return Processed(scores, written, _cut, (best + jnp.log(self.p),))


@dataclasses.dataclass(frozen=True)
class Renormalize:
    """Log-softmax of the scores: what other processors took away is shared out again.

    Attributes:
      over: static; "allowed": the probabilities of the tokens that the constraint allows sum to one; "vocabulary":
        those of all tokens do.
    """

    over: str = "allowed"

    def __post_init__(self):
        if self.over not in ("allowed", "vocabulary"):
            raise InputError("unknown set to normalise over", 'Use "allowed" or "vocabulary".', value=self.over)

    def __call__(self, scores: Scores, written: Written) -> Scores:
        if self.over == "vocabulary" and scores.normalize == "level":
            raise InputError(
                "scores of one level cannot be normalised over the whole vocabulary", 'Use Renormalize(over="allowed").'
            )

        over = allowed_scores if self.over == "allowed" else every_score
        total = jax.nn.logsumexp(over(scores, written), axis=-1, keepdims=True)
        total = jnp.where(jnp.isfinite(total), total, 0.0)
        return Processed(scores, written, lambda values, tokens, total: values - total, (total,), keeps_order=True)


def _among(tokens: Int[Array, "... width"], listed: Int[Array, "... n"]) -> Bool[Array, "... width"]:
    return jnp.any(tokens[..., :, None] == listed[..., None, :], axis=-1)


def _forbid(values: Array, tokens: Array, listed: Int[Array, "... n"]) -> Array:
    return jnp.where(_among(tokens, listed), -jnp.inf, values)


def _cut(values: Array, tokens: Array, least: Float[Array, "... 1"]) -> Array:
    return jnp.where(values >= least, values, -jnp.inf)


for _class in (Temperature, TokenBias, ForbidSequences, RepetitionPenalty, TopP, MinP):
    _pytree(_class)
_pytree(MinLength, static=("eos_id",))
_pytree(NoRepeatNgram, static=("n",))
_pytree(TopK, static=("k",))
_pytree(Renormalize, static=("over",))

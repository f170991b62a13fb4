"""The best tokens that may follow n-grams, exactly, at the cost of few.

Most n-grams have few occurrences: the tokens that follow them are read where they stand, of all n-grams at once where
there are a handful, else of one n-gram of each query at a time. Where most n-grams have many, the model's own best
tokens are looked up, and that they contain the best allowed ones is certified: all others score no more than the k-th
of those found. What is left is done one n-gram of each query at a time: the tokens that follow are collected, from
where they stand or, for the most frequent n-grams, from the wavelet matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints import fm_index_filter
from gr_jax.constraints.base import Candidates, Scores
from gr_jax.constraints.fm_index_arrays import NARROW
from gr_jax.errors import InputError
from gr_jax.top_k import top_k

if TYPE_CHECKING:
    from gr_jax.constraints.fm_index_fields import FMFields, FMState

# Of all n-grams so many occurrences are read; of those that have more, `NARROW`.
FEWEST = 64
# Where a larger share of a query's n-grams than this have many occurrences, the model's best tokens are looked up for
# all at once, which costs a top-k over the vocabulary for each: so many, or so many for each of the k.
FEW_WIDE = 0.5
LOOKED_UP, LOOKED_UP_EACH = 64, 4
# Up to so many occurrences, what follows is collected from where it stands, so much at a time.
READ, READ_AT_ONCE = 1 << 16, 4096


class Best(NamedTuple):
    """Attributes:
    symbol: int32[..., k]; 0 where there are fewer.
    log_prob: float32[..., k], descending.
    """

    symbol: Int[Array, "... k"]
    log_prob: Float[Array, "... k"]


def candidates(index: FMFields, state: FMState, scores: Scores, k: int) -> Candidates:
    """See `FMIndex.candidates`; states are [batch, beam].

    Raises:
      InputError: normalised by level.
    """
    best, total = best_of(index, state, scores, k)
    spread = jax.tree.map(lambda x: jnp.broadcast_to(x[..., None], best.symbol.shape), state)
    token, valid = jnp.maximum(index.tokens[best.symbol], 0), best.symbol > 0
    found = Candidates(token, best.log_prob, index.extend(spread, best.symbol), valid)
    return finish(found, state, index.accepts(state), scores, index.eos_id, total)


def best_of(index: FMFields, state: FMState, scores: Scores, k: int) -> tuple[Best, Float[Array, "batch beam"] | None]:
    """The best symbols that may follow, without EOS; under normalize="constraint" their logits, and the log of what the
    exps of all that may follow add up to.

    Raises:
      InputError: normalised by level.
    """
    if scores.normalize == "level":
        raise InputError("n-grams have no blocks of tokens per level to normalise over", 'Use normalize="vocabulary".')
    # What scores keep for a later call has to be computed outside of the conditions and loops below.
    scores.log_normalizer()
    k = min(k, index.tokens.shape[0] - 1)
    width = jnp.where(state.ended, 0, state.high - state.low)
    if scores.normalize == "constraint":
        return _normalizable(index, state, scores, k)
    few = _of_few(index, state.low, width, scores, k)
    is_wide = width > NARROW
    return lax.cond(jnp.any(is_wide), lambda: _of_many(index, state, is_wide, scores, k, few), lambda: few), None


def finish(
    found: Candidates,
    state: Any,
    accepts: Bool[Array, "batch beam"],
    scores: Scores,
    eos_id: int | None,
    total: Float[Array, "batch beam"] | None,
) -> Candidates:
    """Candidates with EOS as the last column, where there is one, and normalised.

    Args:
      found: tokens that go on, [batch, beam, width].
      state: before them; an `FMState`, or one whose ranges have further axes.
      accepts: which of the states may end.
      scores: at the states.
      eos_id: None: there is no EOS.
      total: the log of what the exps of all that may go on add up to; None: log-probabilities stay as they are.
    """
    if eos_id is not None:
        found = _with_end(found, state, accepts & ~state.ended, scores, eos_id)
        if total is not None:
            end = jnp.where(found.valid[..., -1], found.log_prob[..., -1], -jnp.inf)
            total = jnp.logaddexp(total, end)
    if total is not None:
        total = jnp.where(jnp.isfinite(total), total, 0.0)  # where all are −inf there is no −inf − −inf
        found = dataclasses.replace(found, log_prob=found.log_prob - total[..., None])
    return found


def _with_end(
    found: Candidates, state: Any, may_end: Bool[Array, "batch beam"], scores: Scores, eos_id: int
) -> Candidates:
    """EOS as one more candidate."""
    axis = may_end.ndim
    end = jnp.full((*may_end.shape, 1), eos_id, jnp.int32)
    low, high = (jnp.where(may_end.reshape(*may_end.shape, *[1] * (x.ndim - axis)), x, 0) for x in state[:2])
    ended = state._replace(low=low, high=high, ended=may_end)

    def join(a, b):
        return jnp.concatenate([a, b], axis=axis)

    return Candidates(
        token=join(found.token, end),
        log_prob=join(found.log_prob, scores.at(end)),
        next_state=jax.tree.map(lambda a, b: join(a, jnp.expand_dims(b, axis)), found.next_state, ended),
        valid=join(found.valid, may_end[..., None]),
        ending=1,
    )


def _normalizable(index: FMFields, state: FMState, scores: Scores, k: int) -> tuple[Best, Float[Array, "batch beam"]]:
    """The best logits of each state, and what the logits of all that may follow add up to."""

    def of_beam(beam):
        return _of_all(index, state, scores, k, jnp.broadcast_to(beam, state.low.shape[:1]))

    by_beam = lax.map(of_beam, jnp.arange(state.low.shape[1], dtype=jnp.int32))  # leaves --> [beam, batch, …]
    best, total = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), by_beam)
    return best, total


def _of_few(index: FMFields, low: Array, width: Array, scores: Scores, k: int) -> Best:
    """The best of all that follow states of up to `NARROW` occurrences; of others it says nothing."""
    column = jnp.arange(FEWEST, dtype=jnp.int32)
    symbol = _symbols(index, low[..., None] + column, column < width[..., None])  # --> [batch, beam, FEWEST]
    before = (symbol[..., :, None] == symbol[..., None, :]) & (column[:, None] > column)
    log_prob = scores.at(jnp.maximum(index.tokens[symbol], 0))
    best = _take_best(symbol, log_prob, ~jnp.any(before, axis=-1) & (symbol > 0), k)

    def read(chosen: Int[Array, " batch"]) -> Best:
        own = jnp.take_along_axis(low, chosen[:, None], 1), jnp.take_along_axis(width, chosen[:, None], 1)
        return _of_one(index, *own, scores, k, chosen)

    return _one_by_one((width > FEWEST) & (width <= NARROW), width, best, read)


def _one_by_one(
    is_open: Bool[Array, "batch beam"],
    width: Int[Array, "batch beam"],
    best: Best,
    find: Callable[[Int[Array, " batch"]], Best],
) -> Best:
    """Replaces what is `best` of open states by what is found, of one state of each query at a time."""

    def find_one(carry: tuple[Bool[Array, "batch beam"], Best]) -> tuple[Bool[Array, "batch beam"], Best]:
        is_open, best = carry
        # Widest first: queries that are done together then have about equally much to do.
        chosen = jnp.argmax(jnp.where(is_open, width, -1), axis=1).astype(jnp.int32)  # --> [batch]
        is_chosen = is_open & (jnp.arange(is_open.shape[1]) == chosen[:, None])
        return is_open & ~is_chosen, _replace(best, jax.tree.map(lambda x: x[:, None], find(chosen)), is_chosen)

    return lax.while_loop(lambda carry: jnp.any(carry[0]), find_one, (is_open, best))[1]


def _of_one(
    index: FMFields,
    low: Int[Array, "batch 1"],
    width: Int[Array, "batch 1"],
    scores: Scores,
    k: int,
    beam: Int[Array, " batch"],
) -> Best:
    """The same of one state of each query, [batch, k], of `NARROW` occurrences."""
    column = jnp.arange(NARROW, dtype=jnp.int32)
    symbol = _symbols(index, low + column, column < width)  # --> [batch, NARROW]
    row = jnp.arange(symbol.shape[0])[:, None]
    places = jnp.zeros((symbol.shape[0], index.tokens.shape[0]), jnp.int32)
    places = places.at[row, symbol].set(jnp.broadcast_to(column, symbol.shape))  # one of the places of each symbol
    is_distinct = places[row, symbol] == column
    token = jnp.maximum(index.tokens[symbol], 0)
    log_prob = scores.at_parents(jnp.broadcast_to(beam[:, None], token.shape), token)
    return _take_best(symbol, log_prob, is_distinct & (symbol > 0), k)


def _of_many(index: FMFields, state: FMState, is_wide: Array, scores: Scores, k: int, best: Best) -> Best:
    """Replaces what is `best` of wide states."""
    many = jnp.any(jnp.mean(is_wide, axis=1) > FEW_WIDE)
    is_open, best = lax.cond(many, lambda: _certified(index, state, is_wide, scores, k, best), lambda: (is_wide, best))

    width = state.high - state.low
    return _one_by_one(is_open, width, best, lambda chosen: _of_all(index, state, scores, k, chosen)[0])


def _certified(
    index: FMFields, state: FMState, is_open: Array, scores: Scores, k: int, best: Best
) -> tuple[Bool[Array, "batch beam"], Best]:
    """Looks the model's best tokens up; which states stay open, and what is best of the others."""
    n = min(max(LOOKED_UP, LOOKED_UP_EACH * k), index.vocab_size)
    token, log_prob = scores.top(n, below=index.vocab_size)  # --> [batch, beam, n]
    # The ends of segments are looked up too: when all this adds up to all occurrences, nothing else follows.
    symbol = jnp.pad(index.symbols[token], ((0, 0), (0, 0), (0, 1)))
    low, high = (jnp.broadcast_to(x[..., None], symbol.shape) for x in state[:2])
    low, high = index.wavelet.follow(symbol, low, high)
    valid = ((high > low) & (symbol > 0))[..., :n]
    if index.filter is not None:
        shift = index.first[state.view[..., None], symbol]
        valid &= index.occurrences(low + shift, high + shift)[..., :n] > 0
    found = _take_best(symbol[..., :n], log_prob, valid, k)
    counted = jnp.sum(high - low, axis=-1, where=(symbol > 0).at[..., n].set(True))
    certain = (found.log_prob[..., -1] >= log_prob[..., -1]) | (counted == state.high - state.low)
    return is_open & ~certain, _replace(best, found, is_open & certain)


def _of_all(
    index: FMFields, state: FMState, scores: Scores, k: int, beam: Int[Array, " batch"]
) -> tuple[Best, Float[Array, " batch"]]:
    """The best of all that may follow one state of each query, [batch, k], and the log of the sum of their exps."""
    chosen = jax.tree.map(lambda x: x[jnp.arange(x.shape[0]), beam], state)
    following = follows(index, chosen)
    symbol = jnp.broadcast_to(jnp.arange(index.tokens.shape[0], dtype=jnp.int32), following.shape)
    token = jnp.maximum(index.tokens[symbol], 0)
    log_prob = scores.at_parents(jnp.broadcast_to(beam[:, None], token.shape), token)
    valid = following & (symbol > 0)
    total = jax.nn.logsumexp(log_prob, axis=-1, where=valid)
    return _take_best(symbol, log_prob, valid, k), total


def follows(index: FMFields, state: FMState) -> Bool[Array, "batch symbols"]:
    """Which symbols may follow states [batch]; of symbol 0 it says nothing."""
    width = jnp.where(state.ended, 0, state.high - state.low)
    return lax.cond(
        jnp.any(width > READ),
        lambda: index.symbol_counts(state) > 0,
        lambda: _read(index, state.low, width),
    )


def _read(index: FMFields, low: Int[Array, " batch"], width: Int[Array, " batch"]) -> Bool[Array, "batch symbols"]:
    """Which symbols stand in ranges of rows."""
    batch = jnp.arange(low.shape[0])[:, None]
    column = jnp.arange(READ_AT_ONCE, dtype=jnp.int32)

    def read_on(carry):
        first, found = carry
        place = first + column
        symbol = _symbols(index, low[:, None] + place, place < width[:, None])
        return first + READ_AT_ONCE, found.at[batch, symbol].set(True)

    start = jnp.int32(0), jnp.zeros((low.shape[0], index.tokens.shape[0]), bool)
    return lax.while_loop(lambda carry: jnp.any(carry[0] < width), read_on, start)[1]


def _symbols(index: FMFields, row: Array, valid: Array) -> Int[Array, ...]:
    """What follows rows, [batch, …]; 0 where they are not valid or not allowed."""
    row = jnp.where(valid, row, 0)
    if index.filter is not None:
        valid &= fm_index_filter.is_allowed(index.filter, row)
    return jnp.where(valid, index.bwt[row].astype(jnp.int32), 0)


def _take_best(symbol: Array, log_prob: Array, valid: Array, k: int) -> Best:
    n = min(k, symbol.shape[-1])
    log_prob, place = top_k(jnp.where(valid, log_prob, -jnp.inf), n)
    symbol = jnp.where(jnp.take_along_axis(valid, place, axis=-1), jnp.take_along_axis(symbol, place, axis=-1), 0)
    missing = [(0, 0)] * (symbol.ndim - 1) + [(0, k - n)]
    return Best(jnp.pad(symbol, missing), jnp.pad(log_prob, missing, constant_values=-jnp.inf))


def _replace(old: Best, new: Best, where: Bool[Array, "batch beam"]) -> Best:
    return jax.tree.map(lambda a, b: jnp.where(where[..., None], b, a), old, new)

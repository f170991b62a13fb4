"""The children of a trie's states: a row of columns for each state, or one flat list for all beams of a query."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from gr_jax.constraints.base import Scores, normalize_over
from gr_jax.constraints.bits import WORD
from gr_jax.constraints.trie_arrays import Level
from gr_jax.top_k import top_k

if TYPE_CHECKING:
    from gr_jax.constraints.trie_fields import TrieFields


class Edges(NamedTuple):
    """What leaves states, leaves [...].

    Attributes:
      node: int32; −1 where nothing may follow.
      rank: int32; nodes before it that have children.
      depth: int32, tokens so far.
      first, end: int32; the node's children are at the edges first … end − 1, the end of a docid not among them. None
        where nothing may follow.
      rest: int32; the next token of a node that stands for a single docid, where it has one; else 0.
      may_end: bool; a docid has exactly the tokens so far.
      end_node: int32; the node at which it ends.
    """

    node: Int[Array, ...]
    rank: Int[Array, ...]
    depth: Int[Array, ...]
    first: Int[Array, ...]
    end: Int[Array, ...]
    rest: Int[Array, ...]
    may_end: Bool[Array, ...]
    end_node: Int[Array, ...]


class Children(NamedTuple):
    """Tokens that may follow and do not write EOS: leaves [..., width], or [batch, n] with `parent`, the beam of each.
    Where not valid, node is −1."""

    token: Int[Array, ...]
    node: Int[Array, ...]
    valid: Bool[Array, ...]
    parent: Int[Array, "batch n"] | None = None


def padded(trie: TrieFields, edges: Edges, level: Level) -> Children:
    """As many columns for each state as the one with the most children can need."""
    width = max(level.width, int(level.tails))
    column = jnp.arange(width, dtype=jnp.int32)
    shape = (*edges.node.shape, width)
    if level.width:
        edge = edges.first[..., None] + column  # --> [..., width]
        valid = edge < edges.end[..., None]
        edge = jnp.minimum(edge, trie.edge_tokens.shape[0] - 1)
        token, node = trie.edge_tokens[edge].astype(jnp.int32), edge + 1
    else:
        valid, token, node = jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32)
    if level.tails:
        at_tail = (column == 0) & (edges.rest != 0)[..., None]
        token = jnp.where(at_tail, edges.rest[..., None], token)
        node = jnp.where(at_tail, edges.node[..., None], node)
        valid |= at_tail
    return _allowed(trie, Children(token, node, valid))


def windowed(trie: TrieFields, edges: Edges, level: Level, depth: int) -> Children:
    """A column for each token of the level's window. Nothing is gathered here but masks, and next nodes are computed
    where the compiler is asked for them: those of the tokens that are chosen."""
    masks = trie.masks[depth]
    assert masks is not None and level.window is not None
    start, size = level.window
    row = edges.rank - sum(above.parents for above in trie.levels[:depth])
    row = jnp.clip(row, 0, level.parents - 1)
    shape = (*edges.node.shape, size)
    bit = jnp.arange(WORD, dtype=jnp.uint32)

    def of_tokens(words: Array) -> Array:  # [..., words, 32] --> [..., size]
        return words.reshape(shape)

    words = masks.words[row][..., None]  # --> [..., words, 1]
    below = lax.population_count(words & ((jnp.uint32(1) << bit) - 1)).astype(jnp.int32)
    rank = of_tokens(masks.before[row].astype(jnp.int32)[..., None] + below)
    valid = of_tokens((words >> bit) & 1 != 0) & (edges.first < edges.end)[..., None]
    node = edges.first[..., None] + rank + 1
    column = start + jnp.arange(size, dtype=jnp.int32)
    token = jnp.broadcast_to(jnp.minimum(column, trie.vocab_size - 1), shape)
    if level.tails:
        # By column: of those beyond the vocabulary none is a token, though all are given its last one.
        is_rest = (column == edges.rest[..., None]) & (edges.rest != 0)[..., None]
        valid |= is_rest
        node = jnp.where(is_rest, edges.node[..., None], node)
    return _allowed(trie, Children(token, node, valid))


def flat(trie: TrieFields, edges: Edges, level: Level, n: int) -> tuple[Children, Bool[Array, ""]]:
    """The first n children of all beams of a query, one after the other, and whether these are all."""
    batch, beams = edges.node.shape
    is_tail = edges.rest != 0
    counts = jnp.where(is_tail, 1, edges.end - edges.first)  # --> [batch, beam]
    ends = lax.cumsum(counts, axis=1)
    starts = ends - counts
    place = jnp.arange(n, dtype=jnp.int32)
    rows = jnp.arange(batch)[:, None]
    # Each place belongs to the last beam that starts at or before it; beams without children start where the next does.
    steps = jnp.zeros((batch, n + 1), jnp.int32).at[rows, jnp.minimum(starts, n)].add(1)
    parent = lax.cumsum(steps[:, :n], axis=1) - 1  # --> [batch, n]
    shift = edges.first - starts
    edge = jnp.clip(place + shift[rows, parent], 0, max(trie.edge_tokens.shape[0] - 1, 0))
    token, node = trie.edge_tokens[edge].astype(jnp.int32), edge + 1
    if level.tails:
        rest = edges.rest[rows, parent]
        token, node = jnp.where(rest != 0, rest, token), jnp.where(rest != 0, edges.node[rows, parent], node)
    valid = place < ends[:, -1:]
    return _allowed(trie, Children(token, node, valid, parent)), jnp.all(ends[:, -1] <= n)


def _allowed(trie: TrieFields, children: Children) -> Children:
    valid = children.valid
    if trie.filter is not None:
        valid &= trie.filter.nodes.has(jnp.maximum(children.node, 0))
    return children._replace(valid=valid, node=jnp.where(valid, children.node, -1))


def score(
    children: Children, edges: Edges, scores: Scores, eos_id: int | None, window: tuple[int, int] | None = None
) -> tuple[Float[Array, ...], Float[Array, "... 1"] | None]:
    """Log-probabilities of children, and of EOS for each state, where docids can end with it.

    Args:
      window: (start, size), where the children are all tokens of it.
    """
    eos = None
    if children.parent is None:
        token = children.token
        if eos_id is not None:
            token = jnp.concatenate([token, jnp.full((*edges.node.shape, 1), eos_id, token.dtype)], axis=-1)
        log_prob = _at_columns(scores, token, window)
        if scores.normalize == "constraint":
            valid = children.valid
            if eos_id is not None:
                valid = jnp.concatenate([valid, edges.may_end[..., None]], axis=-1)
            log_prob = normalize_over(log_prob, valid)
        if eos_id is not None:
            log_prob, eos = log_prob[..., :-1], log_prob[..., -1:]
        return log_prob, eos
    log_prob = scores.at_parents(children.parent, children.token)
    if eos_id is not None:
        eos = scores.at(jnp.full((*edges.node.shape, 1), eos_id, jnp.int32))
    if scores.normalize == "constraint":
        log_prob, eos = _normalize_flat(log_prob, children, eos, edges)
    return log_prob, eos


def _at_columns(scores: Scores, token: Int[Array, "... width"], window: tuple[int, int] | None) -> Array:
    """scores.at(token); the columns of a window are a slice, where scores can be sliced."""
    if window is None or not hasattr(scores, "between"):
        return scores.at(token)
    log_prob = scores.between(*window)
    if token.shape[-1] > window[1]:  # EOS, too
        log_prob = jnp.concatenate([log_prob, scores.at(token[..., window[1] :])], axis=-1)
    return log_prob


def _normalize_flat(
    log_prob: Float[Array, "batch n"], children: Children, eos: Float[Array, "batch beam 1"] | None, edges: Edges
) -> tuple[Float[Array, "batch n"], Float[Array, "batch beam 1"] | None]:
    """Log-softmax over the valid children of each beam and its EOS."""
    batch, beams = edges.node.shape
    rows = jnp.arange(batch)[:, None]
    where = (rows, children.parent)
    masked = jnp.where(children.valid, log_prob, -jnp.inf)
    ends = None if eos is None else jnp.where(edges.may_end, eos[..., 0], -jnp.inf)
    largest = jnp.full((batch, beams), -jnp.inf) if ends is None else ends
    largest = largest.at[where].max(masked)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    total = jnp.zeros((batch, beams)) if ends is None else jnp.exp(ends - largest)
    total = total.at[where].add(jnp.exp(masked - largest[where]))
    normalizer = largest + jnp.log(jnp.where(total > 0, total, 1.0))  # as `normalize_over`: no −inf − −inf
    log_prob = jnp.where(children.valid, masked - normalizer[where], -jnp.inf)
    return log_prob, None if ends is None else jnp.where(edges.may_end, ends - normalizer, -jnp.inf)[..., None]


def flat_or_best(
    trie: TrieFields, edges: Edges, level: Level, scores: Scores, eos_id: int | None, k: int, n: int
) -> tuple[Children, Float[Array, "batch n"], Float[Array, "batch beam 1"] | None]:
    """All children of all beams as one list of n, scored; where states that are not distinct have more together, the
    k best of each (n must hold them)."""
    children, fits = flat(trie, edges, level, n)
    everything = (children, *score(children, edges, scores, eos_id))

    def best_of_each():
        every = padded(trie, edges, level)
        own = copy.copy(scores)  # what it caches in this branch must not be used outside of it
        log_prob, eos = score(every, edges, own, eos_id)
        ranked = jnp.where(every.valid, log_prob, -jnp.inf)
        best = top_k(ranked, min(k, ranked.shape[-1]))[1]  # --> [batch, beam, k]
        parent = jnp.broadcast_to(jnp.arange(best.shape[1], dtype=jnp.int32)[:, None], best.shape)
        chosen = [jnp.take_along_axis(x, best, axis=-1) for x in (every.token, every.node, every.valid, log_prob)]
        missing = n - best.shape[1] * best.shape[2]
        token, node, valid, log_prob, parent = (
            jnp.pad(x.reshape(x.shape[0], -1), ((0, 0), (0, missing))) for x in (*chosen, parent)
        )
        return Children(token, jnp.where(valid, node, -1), valid, parent), log_prob, eos

    return lax.cond(fits, lambda: everything, best_of_each)

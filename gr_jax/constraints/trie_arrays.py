"""Building a trie's arrays from sorted docids (host, NumPy)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class Level:
    """What is known of all states that have consumed the same number of tokens: static, so that a decoding step
    computes only what can happen at it.

    Attributes:
      width: most children of a stored node here; 0: no node has any.
      tails: whether there are states here whose only continuation is the rest of one docid.
      ends: whether docids have exactly this length.
      next_ends: whether docids are longer by exactly one token.
      next_goes_on: whether docids are longer by more than one token.
    """

    width: int
    tails: bool
    ends: bool
    next_ends: bool
    next_goes_on: bool

    @staticmethod
    def join(levels: Sequence[Level]) -> Level:
        """What holds at any of several levels."""
        return Level(
            width=max((level.width for level in levels), default=0),
            tails=any(level.tails for level in levels),
            ends=any(level.ends for level in levels),
            next_ends=any(level.next_ends for level in levels),
            next_goes_on=any(level.next_goes_on for level in levels),
        )


@dataclasses.dataclass(frozen=True)
class TrieArrays:
    """The arrays of a `Trie`, which describes them, and its static levels, from 0 to the longest docid."""

    edge_tokens: np.ndarray
    edge_offsets: np.ndarray
    first_row: np.ndarray
    end_row: np.ndarray
    levels: tuple[Level, ...]


def build(docids: Docids) -> TrieArrays:
    """Numbers nodes breadth-first. A node that stands for a single docid has no stored children: what follows is read
    from the docid's row.

    Rows are sorted, so the nodes at a depth are runs of rows that share so many tokens, and a row starts a run where
    it shares no more than that with the row before. Everything is array operations on those shared lengths.
    """
    tokens, lengths = docids.tokens, docids.lengths
    n, max_len = tokens.shape
    if n >= 2**31 - 2:
        raise InputError(f"{n} docids do not fit one trie", "Split them over several tries of less than 2³¹ docids.")
    shared = np.zeros(n + 1, np.int32)  # with the row before
    shared[1:n] = rows.compare_neighbours(tokens)[0]
    company = np.maximum(shared[:-1], shared[1:])  # a row is alone at depths beyond what it shares with a neighbour
    edge_tokens, first_rows, end_rows = [], [np.zeros(1, np.int64)], [np.full(1, n, np.int64)]
    counts, levels = [], []
    for depth in range(max_len + 1):
        run_starts = np.append(np.flatnonzero(shared[:n] <= depth), n)  # --> [runs + 1]
        is_child = (lengths > depth)[run_starts[:-1]] & (company >= depth)[run_starts[:-1]]
        children = run_starts[:-1][is_child]
        parents = np.searchsorted(first_rows[-1], children, side="right") - 1
        counts.append(np.bincount(parents, minlength=len(first_rows[-1])))
        longer = lengths[lengths > depth]
        levels.append(
            Level(
                width=int(counts[-1].max()) if len(counts[-1]) else 0,
                tails=bool(((company < depth) & (lengths > depth)).any()),
                ends=bool((lengths == depth).any()),
                next_ends=bool((longer == depth + 1).any()),
                next_goes_on=bool((longer > depth + 1).any()),
            )
        )
        if depth < max_len:
            edge_tokens.append(tokens[children, depth])
            first_rows.append(children)
            end_rows.append(run_starts[1:][is_child])
    all_counts = np.concatenate(counts)
    offsets = np.zeros(len(all_counts) + 1, np.int64)
    np.cumsum(all_counts, out=offsets[1:])
    if offsets[-1] >= 2**31 - 1:
        raise InputError("the trie has more than 2³¹ nodes", "Split the docids over several tries.", value=offsets[-1])
    return TrieArrays(
        edge_tokens=np.concatenate(edge_tokens).astype(token_type(docids.vocab_size)),
        edge_offsets=offsets.astype(np.int32),
        first_row=np.concatenate(first_rows).astype(np.int32),
        end_row=np.concatenate(end_rows).astype(np.int32),
        levels=tuple(levels),
    )


def token_type(vocab_size: int) -> type:
    """The smallest type that holds every token."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32

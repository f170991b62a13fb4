"""Building a trie's arrays from sorted docids (host, NumPy)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

END = 0  # the token of the edge to a docid that ends at a node with children; it is padding, so no docid contains it


@dataclasses.dataclass(frozen=True)
class Level:
    """What is known of all states that have consumed the same number of tokens: static, so that a decoding step
    computes only what can happen at it.

    Attributes:
      nodes: how many nodes the trie has at this depth.
      parents: how many of them have children.
      width: most children of one, not counting an end; 0: none has any.
      sums: children of the 1, 2, 4, … nodes with the most; the last entry is that of all nodes.
      tails: whether there are states here whose only continuation is the rest of one docid.
      ends: whether docids have exactly this length.
      next_ends: whether docids are longer by exactly one token.
      next_goes_on: whether docids are longer by more than one token.
    """

    nodes: int
    parents: int
    width: int
    sums: tuple[int, ...]
    tails: bool
    ends: bool
    next_ends: bool
    next_goes_on: bool

    @staticmethod
    def join(levels: Sequence[Level]) -> Level:
        """What holds at any of several levels."""
        longest = max((len(level.sums) for level in levels), default=0)
        sums = [level.sums + level.sums[-1:] * (longest - len(level.sums)) for level in levels if level.sums]
        return Level(
            nodes=max((level.nodes for level in levels), default=0),
            parents=max((level.parents for level in levels), default=0),
            width=max((level.width for level in levels), default=0),
            sums=tuple(map(max, zip(*sums, strict=True))),
            tails=any(level.tails for level in levels),
            ends=any(level.ends for level in levels),
            next_ends=any(level.next_ends for level in levels),
            next_goes_on=any(level.next_goes_on for level in levels),
        )

    def most_children(self, states: int) -> int:
        """No so many distinct states have more children together."""
        power = (states - 1).bit_length()  # the first of 1, 2, 4, … that is not less
        stored = self.sums[min(power, len(self.sums) - 1)] if self.sums else 0
        if 0 < power < len(self.sums):
            # Each further node adds no more than those before it did on average.
            half = 1 << (power - 1)
            stored = min(stored, self.sums[power - 1] * states // half)
        return stored + (states if self.tails else 0)


@dataclasses.dataclass(frozen=True)
class TrieArrays:
    """The arrays of a `Trie`, which describes them, and its static levels, from 0 to the longest docid."""

    edge_tokens: np.ndarray
    has_children: Bool[np.ndarray, " nodes"]
    edge_offsets: np.ndarray
    leaf_rows: np.ndarray
    rests: np.ndarray
    levels: tuple[Level, ...]


def build(docids: Docids) -> TrieArrays:
    """Numbers nodes breadth-first. A node that stands for a single docid has no children: what follows is read from
    the docid's row.

    Rows are sorted, so the nodes at a depth are runs of rows that share so many tokens. Row r shares s tokens with the
    row before and no more than c with either neighbour: it is the first row of its nodes at depths s + 1 … c + 1, of
    which the last is its own leaf. A docid that is a prefix of the next has the padding as its token there, so its
    leaf is the first child.
    """
    tokens, lengths = docids.tokens, docids.lengths
    n, max_len = tokens.shape
    if n >= 2**31 - 2:
        raise InputError(f"{n} docids do not fit one trie", "Split them over several tries of less than 2³¹ docids.")
    small = np.int16 if max_len < 2**15 else np.int32
    shared = np.full(n + 1, -1, small)  # with the row before
    shared[1:n] = rows.compare_neighbours(tokens)[0]
    company = np.maximum(np.maximum(shared[:-1], shared[1:]), 0)
    token_dtype = token_type(docids.vocab_size)
    edge_tokens, has_children, first_edges, leaf_rows, counts = [], [np.ones(1, bool)], [], [], []
    edges = 0
    for depth in range(max_len):
        children = np.flatnonzero((shared[:-1] <= depth) & (company >= depth))
        goes_on = company[children] > depth
        firsts = np.flatnonzero(shared[children] < depth) if depth else np.zeros(1, np.int64)
        token = tokens[children, depth]
        # Ends do not count: decoding lists them apart.
        counts.append(np.diff(firsts, append=len(children)) - (token[firsts] == END))
        edge_tokens.append(token.astype(token_dtype))
        has_children.append(goes_on)
        first_edges.append((firsts + edges).astype(np.int32))
        leaf_rows.append(children[~goes_on].astype(np.int32))
        edges += len(children)
        if edges >= 2**31 - 1:
            raise InputError("the trie has more than 2³¹ nodes", "Split the docids over several tries.")
    counts.append(np.zeros(0, np.int64))
    return TrieArrays(
        edge_tokens=np.concatenate(edge_tokens),
        has_children=np.concatenate(has_children),
        edge_offsets=np.concatenate([*first_edges, [edges]]).astype(np.int32),
        leaf_rows=np.concatenate(leaf_rows),
        rests=np.ascontiguousarray(tokens[:, _first_rest(company, lengths, max_len) :].astype(token_dtype)),
        levels=_levels(counts, [len(flags) for flags in has_children], company, lengths),
    )


def _first_rest(company: np.ndarray, lengths: np.ndarray, max_len: int) -> int:
    """The least depth of a leaf from which something is read."""
    depth = np.where(lengths > company, company + 1, max_len)
    return min(int(depth.min()), max_len)


def _levels(
    counts: Sequence[Int[np.ndarray, " parents"]], nodes: Sequence[int], company: np.ndarray, lengths: np.ndarray
) -> tuple[Level, ...]:
    """counts: for each depth, how many children its nodes with any have."""
    max_len = len(counts) - 1
    place = company.astype(np.int64) * (max_len + 1) + lengths
    pairs = np.bincount(place, minlength=(max_len + 1) ** 2).reshape(max_len + 1, max_len + 1)
    of_length = pairs.sum(axis=0) > 0
    return tuple(
        Level(
            nodes=nodes[depth],
            parents=len(counts[depth]),
            width=int(counts[depth].max(initial=0)),
            sums=_largest_sums(counts[depth]),
            tails=bool(pairs[:depth, depth + 1 :].any()),
            ends=bool(of_length[depth]),
            next_ends=bool(of_length[depth + 1 : depth + 2].any()),
            next_goes_on=bool(of_length[depth + 2 :].any()),
        )
        for depth in range(max_len + 1)
    )


def _largest_sums(counts: Int[np.ndarray, " n"]) -> tuple[int, ...]:
    """Sums of the 1, 2, 4, … largest, and of all."""
    if not len(counts):
        return ()
    of_size = np.bincount(counts)[::-1]  # --> [largest + 1], how many are so large, from the largest down
    size = np.arange(len(of_size))[::-1]
    number, total = np.cumsum(of_size), np.cumsum(of_size * size)
    sums = []
    for power in range((len(counts) - 1).bit_length() + 1):
        k = min(1 << power, len(counts))
        place = int(np.searchsorted(number, k))  # the k largest reach into those of this size
        sums.append(int(total[place] - (number[place] - k) * size[place]))
    return tuple(sums)


def token_type(vocab_size: int) -> type:
    """The smallest type that holds every token."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32

"""Building a trie's arrays from sorted docids (host, NumPy)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Int, Integer, UInt32

from gr_jax.constraints.bits import WORD
from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

END = 0  # the token of the edge to a docid that ends at a node with children; it is padding, so no docid contains it

# What gathering a child costs, in tokens of a window that are looked at one after the other (measured on CPU).
GATHERED_CHILD = 16
# Bits of masks for each docid; half as much again counts them.
MASK_BITS = 6


@dataclasses.dataclass(frozen=True)
class Level:
    """What is known of all states that have consumed the same number of tokens: static, so that a decoding step
    computes only what can happen at it.

    Attributes:
      nodes: how many nodes the trie has at this depth.
      parents: how many of them have children.
      width: most children of one, not counting an end; 0: none has any.
      sums: children of the 1, 2, 4, … nodes with the most; the last entry is that of all nodes.
      window: (start, size) of the tokens of all edges here, where a mask of them is kept for each node; else None.
      tails: whether there are states here whose only continuation is the rest of one docid.
      ends: whether docids have exactly this length.
      next_ends: whether docids are longer by exactly one token.
      next_goes_on: whether docids are longer by more than one token.
    """

    nodes: int
    parents: int
    width: int
    sums: tuple[int, ...]
    window: tuple[int, int] | None
    tails: bool
    ends: bool
    next_ends: bool
    next_goes_on: bool

    @staticmethod
    def join(levels: Sequence[Level]) -> Level:
        """What holds at any of several levels."""
        if len(levels) == 1:
            return levels[0]
        longest = max((len(level.sums) for level in levels), default=0)
        sums = [level.sums + level.sums[-1:] * (longest - len(level.sums)) for level in levels if level.sums]
        return Level(
            nodes=max((level.nodes for level in levels), default=0),
            parents=max((level.parents for level in levels), default=0),
            width=max((level.width for level in levels), default=0),
            sums=tuple(map(max, zip(*sums, strict=True))),
            window=None,
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChildMasks:
    """Which tokens of a level's window follow each of its nodes with children.

    Attributes:
      words: uint32[parents, size / 32]; bit i % 32 of word i // 32 stands for token start + i.
      before: uint16 or int32, same shape; how many bits are set in the words before.
    """

    words: UInt32[np.ndarray, "parents words"]
    before: Int[np.ndarray, "parents words"]


@dataclasses.dataclass(frozen=True)
class TrieArrays:
    """The arrays of a `Trie`, which describes them, and its static levels, from 0 to the longest docid."""

    edge_tokens: np.ndarray
    has_children: Bool[np.ndarray, " nodes"]
    edge_offsets: np.ndarray
    masks: tuple[ChildMasks | None, ...]
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
    token_dtype = rows.token_type(docids.vocab_size)
    edge_tokens, has_children, first_edges, leaf_rows, counts, masks = [], [np.ones(1, bool)], [], [], [], []
    edges = 0
    for depth in range(max_len):
        children = np.flatnonzero((shared[:-1] <= depth) & (company >= depth))
        goes_on = company[children] > depth
        firsts = np.flatnonzero(shared[children] < depth) if depth else np.zeros(1, np.int64)
        token = tokens[children, depth]
        # Ends do not count: decoding lists them apart.
        counts.append(np.diff(firsts, append=len(children)) - (token[firsts] == END))
        masks.append(child_masks(token, firsts, tokens[:, depth], company < depth, docids.vocab_size))
        edge_tokens.append(token.astype(token_dtype))
        has_children.append(goes_on)
        first_edges.append((firsts + edges).astype(np.int32))
        leaf_rows.append(children[~goes_on].astype(np.int32))
        edges += len(children)
        check_edges(edges)
    counts.append(np.zeros(0, np.int64))
    masks.append((None, None))
    nodes = [len(flags) for flags in has_children]
    return TrieArrays(
        edge_tokens=np.concatenate(edge_tokens),
        has_children=np.concatenate(has_children),
        edge_offsets=np.concatenate([*first_edges, [edges]]).astype(np.int32),
        masks=tuple(mask for _, mask in masks),
        leaf_rows=np.concatenate(leaf_rows),
        rests=np.ascontiguousarray(tokens[:, first_rest(company, lengths, max_len) :].astype(token_dtype)),
        levels=make_levels(counts, nodes, [window for window, _ in masks], company, lengths),
    )


def check_edges(edges: int) -> None:
    """Raises InputError where so many edges have no 32-bit numbers."""
    if edges >= 2**31 - 1:
        raise InputError("a trie of 2³¹ nodes or more", "Split the docids over several tries.", value=edges + 1)


def child_masks(
    token: Integer[np.ndarray, " edges"],
    firsts: Int[np.ndarray, " parents"],
    column: Integer[np.ndarray, " num_docids"],
    alone: Bool[np.ndarray, " num_docids"],
    vocab_size: int,
) -> tuple[tuple[int, int] | None, ChildMasks | None]:
    """The window and the masks of a level's edges, where they pay: where a node can have so many children that looking
    at every token of the window is faster than gathering them, and they are small beside the trie.

    Args:
      token: of the level's edges.
      firsts: each parent's first edge.
      column: the docids' tokens at this level.
      alone: the docids whose leaf is above.
    """
    widest = int(np.diff(firsts, append=len(token)).max(initial=0))
    real = token != END
    if not real.any() or not _masks_pay(_window(token[real], vocab_size), widest, len(firsts), len(column)):
        return None, None
    start, size = _window(np.concatenate([token[real], column[alone & (column != END)]]), vocab_size)
    if not _masks_pay((start, size), widest, len(firsts), len(column)):
        return None, None
    parent = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(token)))
    has = np.zeros((len(firsts), size), bool)
    has[parent[real], token[real] - start] = True
    mask = np.packbits(has, axis=1, bitorder="little").view("<u4")
    counts = np.bitwise_count(mask)
    before = np.cumsum(counts, axis=1, dtype=np.int32) - counts
    return (start, size), ChildMasks(mask, before.astype(np.uint16 if size < 2**16 else np.int32))


def _window(token: Integer[np.ndarray, " n"], vocab_size: int) -> tuple[int, int]:
    """A range of tokens that holds these, in whole words and where it is long in whole blocks of a top-k, which are
    cheaper to lay out; within the vocabulary where that is large enough."""
    start, end = int(token.min()), int(token.max()) + 1
    unit = WORD if end - start < 8 * WORD else 4 * WORD
    size = -(-(end - start) // unit) * unit
    return max(0, min(start, vocab_size - size)), size


def _masks_pay(window: tuple[int, int], widest: int, parents: int, num_docids: int) -> bool:
    return window[1] <= GATHERED_CHILD * widest and parents * window[1] <= MASK_BITS * num_docids


def first_rest(company: np.ndarray, lengths: np.ndarray, max_len: int) -> int:
    """The least depth of a leaf from which something is read."""
    depth = np.where(lengths > company, company + 1, max_len)
    return min(int(depth.min()), max_len)


def make_levels(
    counts: Sequence[Int[np.ndarray, " parents"]],
    nodes: Sequence[int],
    windows: Sequence[tuple[int, int] | None],
    company: np.ndarray,
    lengths: np.ndarray,
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
            window=windows[depth],
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

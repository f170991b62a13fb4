"""Docids added to a trie: the arrays of the trie of all of them, from the old arrays and the new rows (host, NumPy).

Only the new rows and the old rows beside them, in sorted order, can begin nodes that were not there: a new row below
the node at which it leaves the trie, and an old row that was alone and is not any more. All other nodes keep their
order, so the arrays are the old ones with entries inserted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer

from gr_jax.constraints.trie_arrays import END, TrieArrays, check_edges, child_masks, first_rest, make_levels
from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

if TYPE_CHECKING:
    from gr_jax.constraints.trie_fields import TrieFields


class _Old(NamedTuple):
    """The old trie on the host."""

    tokens: Integer[np.ndarray, " edges"]
    has_children: Bool[np.ndarray, " nodes"]
    rank: Int[np.ndarray, " nodes_plus_1"]  # nodes with children before each
    parents: Int[np.ndarray, " parents"]  # those nodes
    offsets: Int[np.ndarray, " parents_plus_1"]
    leaf_rows: Int[np.ndarray, " num_docids"]
    leaf_of_row: Int[np.ndarray, " num_docids"]
    rests: Integer[np.ndarray, "num_docids rest_len"]
    level_starts: Int[np.ndarray, " levels_plus_1"]  # each level's first node

    @classmethod
    def of(cls, trie: TrieFields) -> _Old:
        tokens, leaf_rows = np.asarray(trie.edge_tokens), np.asarray(trie.leaf_rows)
        words = np.asarray(trie.parents.words)
        has = np.unpackbits(words.view(np.uint8), bitorder="little", count=len(tokens) + 1).view(bool)
        rank = np.zeros(len(has) + 1, np.int32)
        np.cumsum(has, out=rank[1:])
        leaf_of_row = np.empty(len(leaf_rows), np.int32)
        leaf_of_row[leaf_rows] = np.flatnonzero(~has)
        starts = np.cumsum([0, *[level.nodes for level in trie.levels]])
        return cls(
            tokens,
            has,
            rank,
            np.flatnonzero(has),
            np.asarray(trie.edge_offsets),
            leaf_rows,
            leaf_of_row,
            np.asarray(trie.rests),
            starts,
        )

    def outermost_row(self, node: Int[np.ndarray, " n"], *, last: bool) -> Int[np.ndarray, " n"]:
        while (above := self.has_children[node]).any():
            rank = self.rank[node[above]]
            node = node.copy()
            node[above] = self.offsets[rank + 1] if last else self.offsets[rank] + 1
        return self.leaf_rows[node - self.rank[node]]

    def depth(self, node: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        return np.searchsorted(self.level_starts, node, side="right") - 1

    def rows(self, row: Int[np.ndarray, " n"], width: int) -> Integer[np.ndarray, "n width"]:
        """Whole docids, padded to a width: what their leaves do not read is on the way to the root."""
        max_len, columns = len(self.level_starts) - 2, self.rests.shape[1]
        found = np.zeros((len(row), width), np.int32)
        found[:, max_len - columns : max_len] = self.rests[row]
        node = self.leaf_of_row[row]
        depth = self.depth(node)
        while (below := np.flatnonzero(node > 0)).size:
            edge = node[below] - 1
            depth[below] -= 1
            found[below, depth[below]] = self.tokens[edge]
            node[below] = self.parents[np.searchsorted(self.offsets, edge, side="right") - 1]
        return found

    def column(self, depth: int) -> Integer[np.ndarray, " num_docids"]:
        """The docids' tokens at a depth above all leaves from which something is read."""
        node = np.arange(self.level_starts[depth + 1], self.level_starts[depth + 2])
        first = self.outermost_row(node, last=False)
        count = self.outermost_row(node, last=True) + 1 - first
        column = np.zeros(len(self.leaf_rows), self.rests.dtype)  # docids that ended above are not below any of them
        place = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
        column[place] = np.repeat(self.tokens[node - 1], count)
        return column


class _Way(NamedTuple):
    """How far new rows go in the old trie."""

    node: Int[np.ndarray, " n"]  # the last that is there
    depth: Int[np.ndarray, " n"]  # of it
    edge: Int[np.ndarray, " n"]  # old edges before the next node, which is not
    place: Int[np.ndarray, " n"]  # old rows before each


def grow(trie: TrieFields, more: Docids) -> tuple[TrieArrays, np.ndarray | None, np.ndarray]:
    """The arrays, offsets and documents of the trie of all docids.

    Raises:
      InputError: a docid that is there already; without EOS, one that is a prefix of another.
    """
    old = _Old.of(trie)
    max_len = max(trie.max_len, more.tokens.shape[1])
    new = np.pad(more.tokens, ((0, 0), (0, max_len - more.tokens.shape[1])))
    way = _follow(old, new)
    n, m = len(old.leaf_rows), len(new)
    beside = np.unique(np.concatenate([way.place - 1, way.place]))
    beside = beside[(beside >= 0) & (beside < n)]

    # The rows that can begin new nodes, sorted; the old ones among them with their leaves.
    is_new = np.append(np.ones(m, bool), np.zeros(len(beside), bool))
    order = np.lexsort([~is_new, np.append(way.place, beside)])
    local = np.concatenate([new, old.rows(beside, max_len)])[order]
    is_new = is_new[order]
    leaf = old.leaf_of_row[beside]
    existing = np.append(way.depth, old.depth(leaf))[order]
    edge = np.append(way.edge, old.offsets[old.rank[leaf]])[order]
    shift = np.zeros(n + 1, np.int32)  # new rows before each old one
    np.cumsum(np.bincount(way.place, minlength=n + 1), out=shift)
    row = np.append(way.place + np.arange(m), beside + shift[beside])[order]

    shared = np.zeros(len(local) + 1, np.int64)  # with the one before
    shared[1:-1] = rows.compare_neighbours(local)[0]
    _check(local, shared, trie.eos_id)
    company = np.maximum(shared[:-1], shared[1:])
    company[~is_new] = np.maximum(company[~is_new], existing[~is_new] - 1)

    # New nodes: the row, the depth, and how many old edges are before.
    found = []
    for depth in range(1, max_len + 1):
        below = depth > existing + 1
        node = np.minimum(edge[below] + 1, len(old.rank) - 1)  # the old node that the one above was put before
        edge[below] = old.offsets[old.rank[node]]
        here = np.flatnonzero((depth > existing) & (depth > shared[:-1]) & (depth <= company + 1))
        found.append(np.stack([here, np.full(len(here), depth), edge[here]]))
    which, depths, before = np.concatenate(found, axis=1)
    check_edges(len(old.tokens) + len(which))
    goes_on = depths <= company[which]
    has_children = old.has_children.copy()
    turned = company[~is_new] >= existing[~is_new]
    has_children[leaf[turned]] = True

    # Children of every node, old ones by their parents' numbers and new ones by their place among the new.
    counts = np.zeros(len(old.has_children), np.int32)
    counts[old.has_children] = np.diff(old.offsets)
    by_old = depths == existing[which] + 1
    above = np.append(way.node, leaf)[order]
    np.add.at(counts, above[which[by_old]], 1)
    key = depths * (len(local) + 1) + which
    parent = np.searchsorted(key, (key - len(local) - 1)[~by_old], side="right") - 1
    new_counts = np.bincount(parent, minlength=len(which)).astype(np.int32)

    tokens = np.insert(old.tokens, before, local[which, depths - 1].astype(old.tokens.dtype))
    has_children = np.append(True, np.insert(has_children[1:], before, goes_on))
    counts = np.append(counts[0], np.insert(counts[1:], before, new_counts))
    leaf_row = np.full(len(old.has_children), -1, np.int32)
    leaf_row[~old.has_children] = old.leaf_rows + shift[old.leaf_rows]
    leaf_row = np.append(np.int32(-1), np.insert(leaf_row[1:], before, row[which].astype(np.int32)))
    nodes = np.bincount(depths, minlength=max_len + 1)
    nodes[: trie.max_len + 1] += np.diff(old.level_starts)
    offsets = np.append(0, np.cumsum(counts[has_children], dtype=np.int64)).astype(np.int32)
    leaf_rows = leaf_row[~has_children]

    # Rows.
    starts = np.cumsum([0, *nodes])
    company_of_row = np.empty(n + m, np.int32)
    company_of_row[leaf_rows] = np.repeat(np.arange(len(nodes)), nodes)[~has_children] - 1
    lengths = np.insert(_lengths(old), way.place, more.lengths)
    first = first_rest(company_of_row, lengths, max_len)
    rests = np.insert(_from_column(old, first, max_len), way.place, new[:, first:].astype(old.rests.dtype), axis=0)

    counts_of_levels, windows, masks = [], [], []
    for depth in range(max_len + 1):
        # The edges of a level are those to the nodes of the next.
        token = tokens[starts[depth + 1] - 1 : starts[depth + 2] - 1] if depth < max_len else tokens[:0]
        ranks = np.count_nonzero(has_children[: starts[depth]]), np.count_nonzero(has_children[: starts[depth + 1]])
        firsts = offsets[ranks[0] : ranks[1]] - (starts[depth + 1] - 1)
        counts_of_levels.append(np.diff(firsts, append=len(token)) - (token[firsts] == END))
        column = rests[:, depth - first] if first <= depth < max_len else np.zeros(n + m, tokens.dtype)
        window, mask = child_masks(token, firsts, column, company_of_row < depth, trie.vocab_size)
        windows.append(window)
        masks.append(mask)
    levels = make_levels(counts_of_levels, nodes.tolist(), windows, company_of_row, lengths)
    arrays = TrieArrays(tokens, has_children, offsets, tuple(masks), leaf_rows, rests, levels)
    return arrays, *_documents(trie, more, way.place)


def _check(local: Int[np.ndarray, "n max_len"], shared: Int[np.ndarray, " n_plus_1"], eos_id: int | None) -> None:
    max_len = local.shape[1]
    same = shared[1:-1] == max_len
    if same.any():
        tokens = local[int(np.argmax(same))]
        raise InputError(
            "a docid that is to be added is there already", "Add each docid once.", value=tokens[tokens != 0].tolist()
        )
    rows.check_prefixes(local, rows.lengths_of(local), eos_id)


def _lengths(old: _Old) -> Int[np.ndarray, " num_docids"]:
    """Tokens of each docid: its rest where it has one; else its leaf is at its end, or beyond an end's edge."""
    max_len, columns = len(old.level_starts) - 2, old.rests.shape[1]
    leaf = old.leaf_of_row
    at_leaf = old.depth(leaf) - (old.tokens[leaf - 1] == END)
    rest = np.zeros(len(leaf), np.int32)
    for column in old.rests.T:
        rest += column != 0
    return np.where(rest > 0, max_len - columns + rest, at_leaf).astype(np.int32)


def _from_column(old: _Old, first: int, max_len: int) -> Integer[np.ndarray, "num_docids rest_len"]:
    """The old docids without their first tokens, padded to another length."""
    old_len, columns = len(old.level_starts) - 2, old.rests.shape[1]
    old_first = old_len - columns
    more = [old.column(depth)[:, None] for depth in range(first, old_first)]
    kept = old.rests[:, max(first - old_first, 0) :]
    padding = np.zeros((len(kept), max_len - max(old_len, first)), kept.dtype)
    return np.concatenate([*more, kept, padding], axis=1)


def _documents(
    trie: TrieFields, more: Docids, place: Int[np.ndarray, " m"]
) -> tuple[np.ndarray | None, Int[np.ndarray, " entries"]]:
    """Offsets, where docids stand for several documents, and documents: the new ones are numbered after the old."""
    old, new = np.asarray(trie.documents_of_rows), (more.documents + trie.num_documents).astype(np.int32)
    new_counts = np.diff(more.offsets)
    if trie.offsets is None and (new_counts == 1).all():
        return None, np.insert(old, place, new)
    offsets = np.arange(len(old) + 1) if trie.offsets is None else np.asarray(trie.offsets, np.int64)
    counts = np.insert(np.diff(offsets), place, new_counts)
    documents = np.insert(old, np.repeat(offsets[place], new_counts), new)
    return np.append(0, np.cumsum(counts)).astype(np.int32), documents


def _is_larger(one: Int[np.ndarray, "n max_len"], other: Int[np.ndarray, "n max_len"]) -> Bool[np.ndarray, " n"]:
    """Whether rows are sorted after others."""
    differ = one != other
    at = np.argmax(differ, axis=1)[:, None]
    return np.take_along_axis(one, at, 1)[:, 0] > np.take_along_axis(other, at, 1)[:, 0]


def _follow(old: _Old, new: Int[np.ndarray, "m max_len"]) -> _Way:
    m, max_len = new.shape
    node, depth, edge, place = (np.zeros(m, np.int64) for _ in range(4))
    live = np.arange(m)
    for position in range(max_len + 1):
        goes_on = old.has_children[node[live]]
        done, live = live[~goes_on], live[goes_on]
        depth[done], edge[done] = position, old.offsets[old.rank[node[done]]]
        leaf_row = old.leaf_rows[node[done] - old.rank[node[done]]]
        place[done] = leaf_row + _is_larger(new[done], old.rows(leaf_row, max_len))
        token = new[live, position] if position < max_len else np.zeros(len(live), np.int32)
        first, end = old.offsets[old.rank[node[live]]], old.offsets[old.rank[node[live]] + 1]
        low, high = first.copy(), end.copy()
        while (search := low < high).any():
            middle = low + (high - low) // 2
            smaller = search & (old.tokens[np.minimum(middle, len(old.tokens) - 1)] < token)
            low, high = np.where(smaller, middle + 1, low), np.where(search & ~smaller, middle, high)
        there = (low < end) & (old.tokens[np.minimum(low, len(old.tokens) - 1)] == token)
        gone, at = live[~there], low[~there]
        depth[gone], edge[gone] = position, at
        is_last = at == end[~there]
        place[gone[is_last]] = old.outermost_row(at[is_last], last=True) + 1  # edge e leads to node e + 1
        place[gone[~is_last]] = old.outermost_row(at[~is_last] + 1, last=False)
        live = live[there]
        node[live] = low[there] + 1
    return _Way(node, depth, edge, place)

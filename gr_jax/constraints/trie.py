"""The trie of a set of docids, as arrays."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from gr_jax.constraints import trie_arrays, trie_children, trie_files, trie_growth
from gr_jax.constraints.base import Candidates, Scores, check_filter
from gr_jax.constraints.bits import BitSet
from gr_jax.constraints.trie_arrays import END, Level, TrieArrays
from gr_jax.constraints.trie_children import Edges
from gr_jax.constraints.trie_fields import TrieFields
from gr_jax.constraints.trie_fields import TrieState as TrieState
from gr_jax.constraints.trie_filter import make_filter
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

# What a column of a flat list costs, in columns of a row for each beam.
FLAT_COLUMN = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trie(TrieFields):
    """Allows exactly the docids of a set. Give it to jitted functions as an argument: closed over, its arrays would be
    compiled in as constants.

    Nodes are numbered breadth-first, so edge e leads to node e + 1 and no column for it is needed. A node that stands
    for a single docid is a leaf; what follows is read from the docid's row. Every docid has one leaf: that of a docid
    which is a prefix of another hangs on an edge of token 0, the first among its siblings.

    Attributes: those of `TrieFields`.
    """

    open_ended = False

    @classmethod
    def from_docids(cls, docids: Docids) -> Trie:
        """Builds the trie; the docids are checked again, since a wrong row would be a wrong answer later.

        Raises:
          InputError: unsorted or equal docids, an empty one, a token out of the vocabulary, a docid that is a prefix
            of another without an EOS.
        """
        docids.check()
        if len(docids.documents) >= 2**31 - 1:
            raise InputError("more than 2³¹ documents do not fit one trie", "Split them over several tries.")
        one_each = len(docids.documents) == len(docids)
        return cls.of_arrays(
            trie_arrays.build(docids),
            offsets=None if one_each else docids.offsets.astype(np.int32),
            documents=docids.documents.astype(np.int32, copy=False),
            eos_id=docids.eos_id,
            vocab_size=docids.vocab_size,
            num_documents=docids.num_documents,
        )

    @classmethod
    def of_arrays(cls, arrays: TrieArrays, *, offsets: np.ndarray | None, documents: np.ndarray, **static: Any) -> Trie:
        """From arrays on the host, which are checked already."""
        return cls(
            edge_tokens=jnp.asarray(arrays.edge_tokens),
            parents=BitSet.of_numpy(arrays.has_children),
            edge_offsets=jnp.asarray(arrays.edge_offsets),
            masks=jax.tree.map(jnp.asarray, arrays.masks),
            leaf_rows=jnp.asarray(arrays.leaf_rows),
            rests=jnp.asarray(arrays.rests),
            offsets=None if offsets is None else jnp.asarray(offsets),
            documents_of_rows=jnp.asarray(documents),
            filter=None,
            levels=arrays.levels,
            **static,
        )

    def add(self, more: Docids) -> Trie:
        """The trie of these and further docids, equal to the one that is built of all of them, in a fraction of the
        time: old arrays are copied with the new entries between. What was compiled for the old one is compiled again.

        Args:
          more: of further documents: document i of them becomes document num_documents + i.

        Raises:
          InputError: another vocabulary or EOS; a docid that is there already; without EOS, one that is a prefix of
            another; a trie with a filter, which knows nothing of further documents.
        """
        more.check()
        if (more.vocab_size, more.eos_id) != (self.vocab_size, self.eos_id):
            raise InputError(
                "docids of another vocabulary or EOS cannot be added",
                f"Give docids with vocab_size={self.vocab_size} and eos_id={self.eos_id}.",
                value=(more.vocab_size, more.eos_id),
            )
        if self.filter is not None:
            raise InputError("a restricted trie cannot grow", "Add to the unrestricted one and restrict the result.")
        arrays, offsets, documents = trie_growth.grow(self, more)
        return Trie.of_arrays(
            arrays,
            offsets=offsets,
            documents=documents,
            eos_id=self.eos_id,
            vocab_size=self.vocab_size,
            num_documents=self.num_documents + more.num_documents,
        )

    def save(self, folder: str | os.PathLike, *, corpus: str = "", made_from: str = "") -> None:
        """Writes a folder of plain arrays (see `gr_jax.storage`). A filter belongs to queries and is not written."""
        trie_files.save(self, folder, corpus=corpus, made_from=made_from)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, mmap: bool = False, vocab_size: int | None = None) -> Trie:
        """Reads what `save` wrote, checksums and contents verified.

        Args:
          folder: the folder.
          mmap: map the arrays instead of reading them; on CPU they then stay in the file's pages.
          vocab_size: of the model, where it is to be compared.

        Raises:
          InputError: the folder is not there, truncated, altered, of another kind; its contents are no trie, or one
            over another vocabulary.
        """
        return cls(**trie_files.load(folder, mmap=mmap, vocab_size=vocab_size))

    @property
    def max_steps(self) -> int:
        """Decoding steps of the longest docid, its EOS included."""
        return self.max_len + (self.eos_id is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, a filter's included."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    def initial_state(self, batch: int, view: Any = None) -> TrieState:
        zeros = jnp.zeros((batch, 1), jnp.int32)
        return TrieState(node=zeros, depth=zeros, ended=jnp.zeros((batch, 1), bool))

    def candidates(
        self, state: TrieState, scores: Scores, k: int, steps: range | None = None, *, distinct: bool = False
    ) -> Candidates:
        """All children of every state; where docids can be complete with the next token, the columns of such tokens
        come last (see `Candidates.ending`).

        States [batch, beam] of k > 1 beams give one flat list for each query (see `Candidates.parent`) where that is
        much shorter than the row of the widest node for every beam: the states of beams are distinct, so together they
        have no more children than the nodes with the most. Where they are not and have more, the k best of each are
        given. With k = 1, and for states of other shapes, every state has its own columns.

        Args:
          state, scores, k, steps: see `Constraint.candidates`.
          distinct: no two states of a query are equal, for certain: the list then is no longer than it must be.
        """
        if steps is None:
            steps = range(len(self.levels))
        levels = self.levels[steps.start : steps.stop : steps.step]
        level = Level.join(levels)
        edges = self._edges(state, level)
        eos = self.eos_id if level.ends else None
        n = _flat_length(level, state.node.shape, k, distinct)
        if level.window is not None:
            children = trie_children.windowed(self, edges, level, steps.start)
            inside = sum(level.window) <= self.vocab_size
            log_prob, eos_log_prob = trie_children.score(children, edges, scores, eos, level.window if inside else None)
        elif n is None:
            children = trie_children.padded(self, edges, level)
            log_prob, eos_log_prob = trie_children.score(children, edges, scores, eos)
        elif distinct:
            children, _ = trie_children.flat(self, edges, level, n)
            log_prob, eos_log_prob = trie_children.score(children, edges, scores, eos)
        else:
            children, log_prob, eos_log_prob = trie_children.flat_or_best(self, edges, level, scores, eos, k, n)
        depth = _of_parents(edges.depth, children.parent) + 1
        found = Candidates(
            token=children.token,
            log_prob=log_prob,
            next_state=TrieState(
                children.node, jnp.broadcast_to(depth, children.node.shape), jnp.zeros(children.node.shape, bool)
            ),
            valid=children.valid,
            parent=children.parent,
        )
        if eos_log_prob is not None:
            return self._with_ends(found, edges, eos_log_prob)
        return self._split_ends(found, level) if self.eos_id is None and level.next_ends else found

    def _with_ends(self, found: Candidates, edges: Edges, log_prob: Array) -> Candidates:
        """Adds EOS: one column for each state."""
        flat = found.parent is not None

        def add(column: Array, state_value: Array) -> Array:
            new = jnp.broadcast_to(state_value, edges.node.shape).astype(column.dtype)
            return jnp.concatenate([column, new if flat else new[..., None]], axis=-1)

        node, depth, ended = found.next_state
        beams = jnp.arange(edges.node.shape[-1])
        return Candidates(
            token=add(found.token, jnp.int32(self.eos_id or 0)),
            log_prob=add(found.log_prob, log_prob[..., 0]),
            next_state=TrieState(add(node, edges.end_node), add(depth, edges.depth), add(ended, jnp.asarray(True))),
            valid=add(found.valid, edges.may_end),
            ending=beams.size if flat else 1,
            parent=add(found.parent, beams) if found.parent is not None else None,
        )

    def _split_ends(self, found: Candidates, level: Level) -> Candidates:
        """Without EOS: children that are complete docids come last. Where some are and some are not, each column stands
        twice, once for either."""
        width = found.token.shape[-1]
        node, depth, _ = found.next_state
        if not level.next_goes_on:
            ended = TrieState(node, depth, jnp.ones(node.shape, bool))
            return dataclasses.replace(found, next_state=ended, ending=width)
        complete = found.valid & self._is_whole(node, depth)
        going_on = found.valid & ~complete
        twice = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=-1), found)
        return dataclasses.replace(
            twice,
            next_state=TrieState(
                jnp.concatenate([jnp.where(going_on, node, -1), jnp.where(complete, node, -1)], axis=-1),
                twice.next_state.depth,
                jnp.broadcast_to(jnp.arange(2 * width) >= width, twice.token.shape),
            ),
            valid=jnp.concatenate([going_on, complete], axis=-1),
            ending=width,
        )

    def _edges(self, state: TrieState, level: Level) -> Edges:
        """What leaves states of a level."""
        node = jnp.maximum(state.node, 0)
        live = (state.node >= 0) & ~state.ended
        is_parent, rank = self.parents.has_and_rank(node)
        first = self.edge_offsets[rank]
        end = jnp.where(is_parent & live, self.edge_offsets[rank + is_parent], first)
        end_node, may_end = node, jnp.zeros(node.shape, bool)
        rest = jnp.zeros(node.shape, jnp.int32)
        if level.tails or level.ends:
            rest = self._rest(jnp.where(is_parent, 0, node - rank), state.depth)
            may_end = live & ~is_parent & (rest == END)
            rest = jnp.where(live & ~is_parent, rest, END)
            if self.filter is not None:
                may_end &= self.filter.nodes.has(node)
        if self.eos_id is not None and level.ends:
            has_end = (first < end) & (self._edge_token(first) == END)
            end_node = jnp.where(has_end, first + 1, node)
            if self.filter is not None:
                may_end |= has_end & self.filter.nodes.has(end_node)
            else:
                may_end |= has_end
            first += has_end
        node, end_node = jnp.where(live, node, -1), jnp.where(may_end, end_node, -1)
        return Edges(node, rank, state.depth, first, end, rest, may_end, end_node)

    def _rest(self, leaf: Int[Array, ...], depth: Int[Array, ...]) -> Int[Array, ...]:
        """The token after so many of the docid of a leaf; 0 after its last."""
        columns = self.rests.shape[1]
        column = depth - (self.max_len - columns)
        if not columns:
            return jnp.zeros_like(column)
        token = self.rests[self.leaf_rows[leaf], jnp.clip(column, 0, columns - 1)].astype(jnp.int32)
        return jnp.where(column < columns, token, END)

    def _is_whole(self, node: Int[Array, ...], depth: Int[Array, ...]) -> Bool[Array, ...]:
        """Without EOS: whether a docid has exactly so many tokens. None is a prefix of another, so that it has a leaf
        to itself there."""
        is_parent, rank = self.parents.has_and_rank(jnp.maximum(node, 0))
        leaf = jnp.where(is_parent, 0, jnp.maximum(node, 0) - rank)
        return (node >= 0) & ~is_parent & (self._rest(leaf, depth) == END)

    def advance(self, state: TrieState, token: Int[Array, ...]) -> TrieState:
        level = Level.join(self.levels)
        edges = self._edges(state, level)
        low, high = edges.first, edges.end
        for _ in range(level.width.bit_length()):  # binary search: tokens ascend
            middle = low + (high - low) // 2
            before = (low < high) & (self._edge_token(middle) < token)
            low, high = jnp.where(before, middle + 1, low), jnp.where(before, high, jnp.minimum(middle, high))
        by_edge = (low < edges.end) & (self._edge_token(low) == token)
        by_rest = (edges.rest != END) & (edges.rest == token)
        node = jnp.where(by_edge, low + 1, jnp.where(by_rest, edges.node, -1))
        if self.filter is not None:
            node = jnp.where(self.filter.nodes.has(jnp.maximum(node, 0)), node, -1)
        depth = state.depth + 1
        if self.eos_id is None:
            return TrieState(node, depth, self._is_whole(node, depth))
        ends = edges.may_end & (token == self.eos_id)
        return TrieState(jnp.where(ends, edges.end_node, node), jnp.where(ends, state.depth, depth), ends)

    def _edge_token(self, edge: Int[Array, ...]) -> Int[Array, ...]:
        return self.edge_tokens[jnp.clip(edge, 0, self.edge_tokens.shape[0] - 1)].astype(jnp.int32)

    def allowed(self, state: TrieState) -> Bool[Array, "... vocab"]:
        level = Level.join(self.levels)
        edges = self._edges(state, level)
        token, _, valid, _ = trie_children.padded(self, edges, level)
        states = state.node.size
        rows = jnp.arange(states)
        mask = jnp.zeros((states, self.vocab_size), bool)
        mask = mask.at[rows[:, None], token.reshape(states, -1)].max(valid.reshape(states, -1))
        if self.eos_id is not None:
            mask = mask.at[:, self.eos_id].set(edges.may_end.reshape(-1))
        return mask.reshape(*state.node.shape, self.vocab_size)

    def accepts(self, state: TrieState) -> Bool[Array, ...]:
        ended = (state.node >= 0) & state.ended
        return ended if self.eos_id is None else ended | self._edges(state, Level.join(self.levels)).may_end

    def key(self, state: TrieState) -> Int[Array, "... 3"]:
        return jnp.stack([state.node, state.depth, state.ended.astype(jnp.int32)], axis=-1)

    def documents(self, state: TrieState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """Documents in the order of their docids; at a complete docid its own, else all below."""
        node = jnp.maximum(state.node, 0)
        first = self.outermost_row(node, last=False)
        end = self.outermost_row(node, last=True) + 1
        if self.offsets is not None:
            first, end = self.offsets[first], self.offsets[end]
        place = jnp.arange(limit, dtype=jnp.int32)
        if self.filter is None:
            count = end - first
            entry = first[..., None] + place  # --> [..., limit]
        else:
            before = self.filter.entries.rank(first)
            count = self.filter.entries.rank(end) - before
            wanted = before[..., None] + place
            entry = self.filter.entries.select(wanted, self.documents_of_rows.shape[0])
        count = jnp.where(state.node >= 0, count, 0)
        entry = jnp.clip(entry, 0, self.documents_of_rows.shape[0] - 1)
        return jnp.where(place < count[..., None], self.documents_of_rows[entry], -1), count

    def outermost_row(self, node: Int[Array, ...], *, last: bool) -> Int[Array, ...]:
        """The first or the last row of the docids below nodes: that of the leaf to which first or last children lead.
        Nodes are numbered from 0, the root, to the number of edges."""

        def is_above(node):
            return jnp.any(self.parents.has(node))

        def descend(node):
            is_parent, rank = self.parents.has_and_rank(node)
            child = self.edge_offsets[rank + 1] if last else self.edge_offsets[rank] + 1  # edge e leads to node e + 1
            return jnp.where(is_parent, child, node)

        leaf = lax.while_loop(is_above, descend, node)
        return self.leaf_rows[leaf - self.parents.rank(leaf)]

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Trie:
        """See `Constraint.restrict`. States of the restricted trie must lead with the same batch.

        Raises:
          InputError: another number of columns than documents, or of rows than a filter before.
        """
        before = None if self.filter is None else self.filter.nodes.words.shape[0]
        allowed = check_filter(allowed, self.num_documents, before)
        return dataclasses.replace(self, filter=make_filter(self, allowed))


def _flat_length(level: Level, shape: tuple[int, ...], k: int, distinct: bool) -> int | None:
    """How long the flat list of a query must be, or None where it does not pay: its columns cost more each."""
    if k < 2 or len(shape) != 2 or shape[1] < 2 or not level.width:
        return None
    beams, width = shape[1], level.width
    n = level.most_children(beams)
    if not distinct:
        n = max(n, beams * min(k, width))
    return n if FLAT_COLUMN * n <= beams * width else None


def _of_parents(x: Int[Array, "batch beam"], parent: Int[Array, "batch n"] | None) -> Array:
    """A value of each state for each of its candidates."""
    return x[..., None] if parent is None else jnp.take_along_axis(x, parent, axis=1)

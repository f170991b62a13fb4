"""The trie of a set of docids, as arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from gr_jax.constraints import trie_arrays
from gr_jax.constraints.base import Candidates, Scores, normalize_over
from gr_jax.constraints.trie_arrays import Level
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError


class TrieState(NamedTuple):
    """Where a prefix stands.

    Attributes:
      node: int32[...]; −1 after a token that was not allowed.
      depth: int32[...], tokens consumed, without EOS.
      ended: bool[...], the docid is complete and nothing may follow.
    """

    node: Int[Array, ...]
    depth: Int[Array, ...]
    ended: Bool[Array, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Filter:
    """Which parts of a trie lead to an allowed document, for each query.

    Attributes:
      nodes: bool[batch, nodes], something allowed is below.
      rows: bool[batch, num_docids], the docid stands for something allowed.
      ranks: int32[batch, entries + 1], how many allowed there are among the first so many entries of `documents`.
    """

    nodes: Bool[Array, "batch nodes"]
    rows: Bool[Array, "batch num_docids"]
    ranks: Int[Array, "batch entries_plus_1"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trie:
    """Allows exactly the docids of a set. Give it to jitted functions as an argument: closed over, its arrays would be
    compiled in as constants.

    Nodes are numbered breadth-first, so edge e leads to node e + 1 and no column for it is needed. A node that stands
    for a single docid has no edges; what follows is read from the docid's row.

    Attributes:
      edge_tokens: uint16 or uint32[edges], ascending among the edges of a node.
      edge_offsets: int32[nodes + 1]; edges edge_offsets[i] … edge_offsets[i + 1] leave node i. The root is node 0.
      first_row, end_row: int32[nodes]; the rows of the docids under a node. A docid that ends at the node is the first.
      rows: uint16 or uint32[num_docids, max_len], the docids, sorted.
      lengths: [num_docids], of the smallest unsigned type.
      offsets: int32[num_docids + 1] and documents_of_rows: int32[entries], as `offsets` and `documents` of `Docids`.
      filter: what `restrict` allows; None: everything.
      levels: static facts of the states after 0, 1, … tokens.
      eos_id, vocab_size, num_documents: as in `Docids`.
    """

    edge_tokens: Int[Array, " edges"]
    edge_offsets: Int[Array, " nodes_plus_1"]
    first_row: Int[Array, " nodes"]
    end_row: Int[Array, " nodes"]
    rows: Int[Array, "num_docids max_len"]
    lengths: Int[Array, " num_docids"]
    offsets: Int[Array, " num_docids_plus_1"]
    documents_of_rows: Int[Array, " entries"]
    filter: Filter | None
    levels: tuple[Level, ...] = dataclasses.field(metadata={"static": True})
    eos_id: int | None = dataclasses.field(metadata={"static": True})
    vocab_size: int = dataclasses.field(metadata={"static": True})
    num_documents: int = dataclasses.field(metadata={"static": True})
    open_ended = False

    @classmethod
    def from_docids(cls, docids: Docids) -> Trie:
        """Builds the trie; the docids are checked again, since a wrong row would be a wrong answer later.

        Raises:
          InputError: unsorted or equal docids, an empty one, a token out of the vocabulary, a docid that is a prefix
            of another without an EOS.
        """
        docids.check()
        arrays = trie_arrays.build(docids)
        if len(docids.documents) >= 2**31 - 1:
            raise InputError("more than 2³¹ documents do not fit one trie", "Split them over several tries.")
        return cls(
            edge_tokens=jnp.asarray(arrays.edge_tokens),
            edge_offsets=jnp.asarray(arrays.edge_offsets),
            first_row=jnp.asarray(arrays.first_row),
            end_row=jnp.asarray(arrays.end_row),
            rows=jnp.asarray(docids.tokens.astype(trie_arrays.token_type(docids.vocab_size))),
            lengths=jnp.asarray(docids.lengths.astype(np.min_scalar_type(docids.tokens.shape[1]))),
            offsets=jnp.asarray(docids.offsets.astype(np.int32)),
            documents_of_rows=jnp.asarray(docids.documents.astype(np.int32)),
            filter=None,
            levels=arrays.levels,
            eos_id=docids.eos_id,
            vocab_size=docids.vocab_size,
            num_documents=docids.num_documents,
        )

    @property
    def max_steps(self) -> int:
        """Decoding steps of the longest docid, its EOS included."""
        return self.rows.shape[1] + (self.eos_id is not None)

    def initial_state(self, batch: int, view: Any = None) -> TrieState:
        zeros = jnp.zeros((batch, 1), jnp.int32)
        return TrieState(node=zeros, depth=zeros, ended=jnp.zeros((batch, 1), bool))

    def candidates(self, state: TrieState, scores: Scores, k: int, steps: range | None = None) -> Candidates:
        """All children of every state, padded to the most that a state at these steps can have; where docids can be
        complete with the next token, the columns of such tokens come last (see `Candidates.ending`)."""
        if steps is None:
            steps = range(len(self.levels))
        level = Level.join(self.levels[steps.start : steps.stop : steps.step])
        token, next_node, valid, completes = self._children(state, level)  # --> [..., width]
        if self.eos_id is not None:
            if level.ends:
                token = jnp.concatenate([token, jnp.full_like(token, self.eos_id, shape=(*state.node.shape, 1))], -1)
                next_node = jnp.concatenate([next_node, state.node[..., None]], axis=-1)
                valid = jnp.concatenate([valid, self._may_end(state)[..., None]], axis=-1)
            ending = int(level.ends)
        else:
            ending = token.shape[-1] if level.next_ends else 0
        log_prob = scores.at(token)
        if scores.normalize == "constraint":
            log_prob = normalize_over(log_prob, valid)
        if self.eos_id is None and level.next_ends and level.next_goes_on:
            # Some children are complete docids and some are not: each column stands twice, once for either.
            going_on, complete = valid & ~completes, valid & completes
            token, next_node, log_prob = (jnp.concatenate([x, x], axis=-1) for x in (token, next_node, log_prob))
            valid = jnp.concatenate([going_on, complete], axis=-1)
        width = token.shape[-1]
        is_ending = jnp.broadcast_to(jnp.arange(width) >= width - ending, token.shape)
        writes_eos = is_ending & (self.eos_id is not None)
        depth = state.depth[..., None] + jnp.where(writes_eos, 0, 1)
        return Candidates(token, log_prob, TrieState(next_node, depth, is_ending), valid, ending=ending)

    def _children(self, state: TrieState, level: Level):
        """Tokens, nodes and validity of all children [..., width], and whether each completes a docid (without EOS)."""
        width = max(level.width, int(level.tails))
        node = jnp.maximum(state.node, 0)
        live = (state.node >= 0) & ~state.ended
        first, end = self.edge_offsets[node], self.edge_offsets[node + 1]
        column = jnp.arange(width, dtype=jnp.int32)
        shape = (*node.shape, width)
        if level.width:
            edge = first[..., None] + column  # --> [..., width]
            valid = (edge < end[..., None]) & live[..., None]
            edge = jnp.minimum(edge, self.edge_tokens.shape[0] - 1)
            token = self.edge_tokens[edge].astype(jnp.int32)
            next_node = edge + 1
        else:
            valid, token = jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32)
            next_node = jnp.broadcast_to(node[..., None], shape)
        row = self.first_row[node]
        if level.tails:
            tail = (first == end) & live & (state.depth < self.lengths[row])
            rest = self.rows[row, jnp.minimum(state.depth, self.rows.shape[1] - 1)].astype(jnp.int32)
            at_tail = (column == 0) & tail[..., None]  # --> [..., width]
            token = jnp.where(at_tail, rest[..., None], token)
            next_node = jnp.where(at_tail, node[..., None], next_node)
            valid |= at_tail
        if self.filter is not None:
            valid &= _of_query(self.filter.nodes, next_node)
        completes = None
        if self.eos_id is None and level.next_ends and level.next_goes_on:
            # Without EOS no docid is a prefix of another: a node at which one ends stands for it alone.
            completes = self.lengths[self.first_row[next_node]] == state.depth[..., None] + 1
        return token, next_node, valid, completes

    def _may_end(self, state: TrieState) -> Bool[Array, ...]:
        """Whether a docid has exactly the tokens so far, and is allowed; EOS not yet written."""
        row = self.first_row[jnp.maximum(state.node, 0)]
        exact = (state.node >= 0) & ~state.ended & (self.lengths[row] == state.depth)
        return exact if self.filter is None else exact & _of_query(self.filter.rows, row)

    def advance(self, state: TrieState, token: Int[Array, ...]) -> TrieState:
        node = jnp.maximum(state.node, 0)
        live = (state.node >= 0) & ~state.ended
        first, end = self.edge_offsets[node], self.edge_offsets[node + 1]
        low, high = first, end
        for _ in range(max(level.width for level in self.levels).bit_length()):  # binary search: tokens ascend
            middle = (low + high) // 2
            before = (low < high) & (self._edge_token(middle) < token)
            low, high = jnp.where(before, middle + 1, low), jnp.where(before, high, jnp.minimum(middle, high))
        by_edge = live & (low < end) & (self._edge_token(low) == token)
        row = self.first_row[node]
        rest = self.rows[row, jnp.minimum(state.depth, self.rows.shape[1] - 1)].astype(jnp.int32)
        by_tail = live & (first == end) & (state.depth < self.lengths[row]) & (rest == token)
        next_node = jnp.where(by_edge, low + 1, jnp.where(by_tail, node, -1))
        if self.filter is not None:
            allowed = _of_query(self.filter.nodes, jnp.maximum(next_node, 0))
            next_node = jnp.where(allowed, next_node, -1)
        depth = state.depth + 1
        if self.eos_id is None:
            ended = (next_node >= 0) & (self.lengths[self.first_row[jnp.maximum(next_node, 0)]] == depth)
            return TrieState(next_node, depth, ended)
        ends = self._may_end(state) & (token == self.eos_id)
        return TrieState(jnp.where(ends, node, next_node), jnp.where(ends, state.depth, depth), ends)

    def _edge_token(self, edge: Int[Array, ...]) -> Int[Array, ...]:
        return self.edge_tokens[jnp.clip(edge, 0, self.edge_tokens.shape[0] - 1)].astype(jnp.int32)

    def allowed(self, state: TrieState) -> Bool[Array, "... vocab"]:
        token, _, valid, _ = self._children(state, Level.join(self.levels))
        if self.eos_id is not None:
            token = jnp.concatenate([token, jnp.full_like(token, self.eos_id, shape=(*state.node.shape, 1))], axis=-1)
            valid = jnp.concatenate([valid, self._may_end(state)[..., None]], axis=-1)
        states = state.node.size
        flat_token, flat_valid = token.reshape(states, -1), valid.reshape(states, -1)
        mask = jnp.zeros((states, self.vocab_size), bool).at[jnp.arange(states)[:, None], flat_token].max(flat_valid)
        return mask.reshape(*state.node.shape, self.vocab_size)

    def accepts(self, state: TrieState) -> Bool[Array, ...]:
        return (state.node >= 0) & (state.ended | self._may_end(state))

    def key(self, state: TrieState) -> Int[Array, "... 3"]:
        return jnp.stack([state.node, state.depth, state.ended.astype(jnp.int32)], axis=-1)

    def documents(self, state: TrieState, limit: int) -> tuple[Int[Array, "... limit"], Int[Array, ...]]:
        """Documents in the order of their docids; at a complete docid its own, else all below."""
        node = jnp.maximum(state.node, 0)
        row = self.first_row[node]
        end_row = jnp.where(state.ended, row + 1, self.end_row[node])
        first = self.offsets[row]
        place = jnp.arange(limit, dtype=jnp.int32)
        if self.filter is None:
            count = self.offsets[end_row] - first
            entry = first[..., None] + place  # --> [..., limit]
        else:
            # The j-th allowed entry from `first` on is where the rank first exceeds that of `first` by j + 1.
            before = _of_query(self.filter.ranks, first)
            count = _of_query(self.filter.ranks, self.offsets[end_row]) - before
            wanted = before[..., None] + place + 1
            batch = wanted.shape[0]
            find = jax.vmap(lambda ranks, rank: jnp.searchsorted(ranks, rank, side="left"))
            entry = find(self.filter.ranks, wanted.reshape(batch, -1)).reshape(wanted.shape) - 1
        count = jnp.where(state.node >= 0, count, 0)
        entry = jnp.clip(entry, 0, self.documents_of_rows.shape[0] - 1)
        return jnp.where(place < count[..., None], self.documents_of_rows[entry], -1), count

    def restrict(self, allowed: Bool[Array, "batch docs"]) -> Trie:
        """See `Constraint.restrict`. States of the restricted trie must lead with the same batch.

        Raises:
          InputError: another number of columns than documents.
        """
        if allowed.ndim != 2 or allowed.shape[1] != self.num_documents:
            raise InputError(
                f"a filter of shape {allowed.shape} for {self.num_documents} documents",
                f"Give booleans [batch, {self.num_documents}].",
            )
        return dataclasses.replace(self, filter=_filter(self, jnp.asarray(allowed, bool)))


@jax.jit
def _filter(trie: Trie, allowed: Bool[Array, "batch docs"]) -> Filter:
    ranks = _ranks(allowed[:, trie.documents_of_rows])  # --> [batch, entries + 1]
    rows = ranks[:, trie.offsets[1:]] > ranks[:, trie.offsets[:-1]]  # --> [batch, num_docids]
    row_ranks = _ranks(rows)
    nodes = row_ranks[:, trie.end_row] > row_ranks[:, trie.first_row]  # --> [batch, nodes]
    return Filter(nodes, rows, ranks)


def _ranks(flags: Bool[Array, "batch n"]) -> Int[Array, "batch n_plus_1"]:
    return jnp.pad(lax.cumsum(flags.astype(jnp.int32), axis=1), ((0, 0), (1, 0)))


def _of_query(table: Array, index: Int[Array, "batch ..."]) -> Array:
    """table[b, index[b, …]] for each query b."""
    batch = jnp.arange(table.shape[0]).reshape(-1, *([1] * (index.ndim - 1)))
    return table[batch, index]

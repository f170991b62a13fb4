"""What a trie consists of, and where a prefix stands in it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Int

from gr_jax.constraints.bits import BitSet
from gr_jax.constraints.trie_arrays import ChildMasks, Level


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
    """What is allowed, for each query.

    Attributes:
      nodes: the nodes with something allowed below; words [batch, …].
      entries: the allowed ones among the entries of the trie's documents; words [batch, …].
    """

    nodes: BitSet
    entries: BitSet


@dataclasses.dataclass(frozen=True)
class TrieFields:
    """The arrays and static facts of a `Trie`.

    Attributes:
      edge_tokens: uint16 or uint32[edges], ascending among the edges of a node.
      parents: the nodes that have children; the others are leaves. The root is node 0.
      edge_offsets: int32[parents + 1]; edges edge_offsets[i] … edge_offsets[i + 1] leave the i-th of them.
      masks: for each depth the children of its nodes once more, as bits, where there are so many that this is faster.
      leaf_rows: int32[num_docids]; the rows of the docids that leaves stand for, leaves in the order of nodes.
      rests: uint16 or uint32[num_docids, max_len − c]; the docids, sorted, without their first c tokens, which no leaf
        reads.
      offsets: int32[num_docids + 1], as in `Docids`; None where each docid stands for one document.
      documents_of_rows: int32[entries], as `documents` of `Docids`.
      filter: what `restrict` allows; None: everything.
      levels: static facts of the states after 0, 1, … tokens.
      eos_id, vocab_size, num_documents: as in `Docids`.
    """

    edge_tokens: Int[Array, " edges"]
    parents: BitSet
    edge_offsets: Int[Array, " parents_plus_1"]
    masks: tuple[ChildMasks | None, ...]
    leaf_rows: Int[Array, " num_docids"]
    rests: Int[Array, "num_docids rest_len"]
    offsets: Int[Array, " num_docids_plus_1"] | None
    documents_of_rows: Int[Array, " entries"]
    filter: Filter | None
    levels: tuple[Level, ...] = dataclasses.field(metadata={"static": True})
    eos_id: int | None = dataclasses.field(metadata={"static": True})
    vocab_size: int = dataclasses.field(metadata={"static": True})
    num_documents: int = dataclasses.field(metadata={"static": True})

    @property
    def max_len(self) -> int:
        """Tokens of the longest docid."""
        return len(self.levels) - 1

"""Filters: which parts of a trie lead to an allowed document, for each query."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from gr_jax.constraints.bits import BitSet
from gr_jax.constraints.trie_fields import Filter, TrieFields


@jax.jit
def make_filter(trie: TrieFields, allowed: Bool[Array, "batch docs"]) -> Filter:
    """From the deepest level up: a node is allowed where one of its children is."""
    of_entries = allowed[:, trie.documents_of_rows]  # --> [batch, entries]
    if trie.filter is not None:
        of_entries &= trie.filter.entries.has(jnp.arange(of_entries.shape[1])[None])
    entries = BitSet.of(of_entries)
    if trie.offsets is None:
        rows = of_entries
    else:
        ranks = entries.rank(jnp.broadcast_to(trie.offsets, (allowed.shape[0], len(trie.offsets))))
        rows = ranks[:, 1:] > ranks[:, :-1]
    leaves = rows[:, trie.leaf_rows]
    leaf_end, parent_end = leaves.shape[1], trie.edge_offsets.shape[0] - 1
    edge_end = trie.edge_tokens.shape[0]
    below: Bool[Array, "batch nodes_of_level"] = jnp.zeros((allowed.shape[0], 0), bool)
    levels = []
    for level in reversed(trie.levels):
        leaf_count = level.nodes - level.parents
        own = leaves[:, leaf_end - leaf_count : leaf_end]
        if level.parents:
            edge_end -= below.shape[1]
            offsets = trie.edge_offsets[parent_end - level.parents : parent_end + 1] - edge_end
            children = BitSet.of(below)
            ranks = children.rank(jnp.broadcast_to(offsets, (allowed.shape[0], len(offsets))))
            has_some = ranks[:, 1:] > ranks[:, :-1]  # --> [batch, parents of the level]
            first_node = edge_end - level.nodes + 1  # the edges of a level follow those to its nodes
            is_parent, place = trie.parents.has_and_rank(first_node + jnp.arange(level.nodes))
            place -= parent_end - level.parents
            if leaf_count:
                leaf = jnp.clip(jnp.arange(level.nodes) - place, 0, leaf_count - 1)
                below = jnp.where(is_parent, has_some[:, jnp.clip(place, 0, level.parents - 1)], own[:, leaf])
            else:
                below = has_some
        else:
            below = own
        levels.append(below)
        leaf_end -= leaf_count
        parent_end -= level.parents
    return Filter(BitSet.of(jnp.concatenate(levels[::-1], axis=1)), entries)

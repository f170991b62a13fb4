"""What follows each prefix of docids, and which documents are under it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax.docids.docids import Docids


class Children(NamedTuple):
    """The nodes of the tree that docids are paths of, its root left out, each with the node above it.

    Attributes:
      prefixes: of the nodes that have children, padded with 0 behind; the root is empty.
      parent: of each node, its row of `prefixes`.
      token: of each node, the last of its path.
      vectors: of each node, the mean of the embeddings of the documents under it.
      ends: whether a docid ends there.
    """

    prefixes: Int[np.ndarray, "inner max_len"]
    parent: Int[np.ndarray, " nodes"]
    token: Int[np.ndarray, " nodes"]
    vectors: Float[np.ndarray, "nodes d"]
    ends: Bool[np.ndarray, " nodes"]


def children(docids: Docids, embeddings: Float[np.ndarray, "n d"]) -> Children:
    """Every prefix with each token that follows it.

    Args:
      docids: of the documents that `embeddings` has rows for.
      embeddings: a row for each document.
    """
    entries = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))
    vectors = np.asarray(embeddings)[docids.documents]
    parts, inner = [], 0
    for position in range(docids.tokens.shape[1]):
        longer = docids.lengths > position
        rows = np.flatnonzero(longer)
        nodes, node_of = np.unique(docids.tokens[rows, : position + 1], axis=0, return_inverse=True)
        above, parent = np.unique(nodes[:, :position], axis=0, return_inverse=True)
        node_of_row = np.full(len(docids), -1)
        node_of_row[rows] = node_of.reshape(-1)
        under = node_of_row[entries]
        sums = np.zeros((len(nodes), vectors.shape[1]))
        np.add.at(sums, under[under >= 0], vectors[under >= 0])
        counts = np.bincount(under[under >= 0], minlength=len(nodes))
        ends = np.zeros(len(nodes), bool)
        ends[node_of_row[docids.lengths == position + 1]] = True
        prefixes = np.zeros((len(above), docids.tokens.shape[1]), np.int32)
        prefixes[:, :position] = above
        means = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        parts.append(Children(prefixes, parent.reshape(-1) + inner, nodes[:, position], means, ends))
        inner += len(above)
    return Children(*(np.concatenate(part) for part in zip(*parts, strict=True)))

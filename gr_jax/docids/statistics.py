"""What docids look like: lengths, branching, collisions, entropy and balance."""

from __future__ import annotations

import numpy as np

from gr_jax.docids import rows
from gr_jax.docids.docids import Docids


def statistics(docids: Docids) -> dict:
    """Describes docids in JSON.

    Returns:
      docids, documents, documents_without: counts; length: min, mean, max (without EOS); collisions: docids that stand
      for several documents, and how many documents those are, most_documents: of one docid; levels: for each
      position: docids that reach it, nodes (distinct prefixes up to it), tokens (distinct), branching mean and max of
      the nodes above, entropy in bits of its token over documents, and balance: entropy of the node over documents by
      that of equally full nodes (1 = perfectly balanced).
    """
    shared, _ = rows.compare_neighbours(docids.tokens)
    per_docid = np.diff(docids.offsets)
    levels = []
    for position in range(docids.tokens.shape[1]):
        reach = docids.lengths > position
        new_node = np.append(True, shared <= position) & reach
        new_parent = np.append(True, shared < position) if position else np.eye(1, len(docids), dtype=bool)[0]
        parent = np.cumsum(new_parent) - 1
        children = np.bincount(parent[new_node])
        children = children[children > 0]
        node = (np.cumsum(new_node) - 1)[reach]
        of_node = np.bincount(node, weights=per_docid[reach])
        of_token = np.bincount(docids.tokens[reach, position], weights=per_docid[reach])
        nodes = len(of_node)
        levels.append(
            {
                "docids": int(reach.sum()),
                "nodes": nodes,
                "tokens": int(np.count_nonzero(of_token)),
                "branching_mean": float(children.mean()),
                "branching_max": int(children.max()),
                "entropy_bits": _entropy(of_token),
                "balance": _entropy(of_node) / float(np.log2(nodes)) if nodes > 1 else 1.0,
            }
        )
    several = per_docid > 1
    return {
        "scheme": docids.scheme,
        "docids": len(docids),
        "documents": docids.num_documents,
        "documents_without": int(docids.num_documents - len(np.unique(docids.documents))),
        "length": {
            "min": int(docids.lengths.min()),
            "mean": float(docids.lengths.mean()),
            "max": int(docids.lengths.max()),
        },
        "collisions": {
            "docids": int(several.sum()),
            "documents": int(per_docid[several].sum()),
            "most_documents": int(per_docid.max()),
        },
        "levels": levels,
    }


def _entropy(weights: np.ndarray) -> float:
    p = weights[weights > 0] / weights.sum()
    return float(-(p * np.log2(p)).sum()) + 0.0

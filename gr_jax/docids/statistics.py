"""What docids look like: lengths, branching, collisions, entropy and balance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gr_jax.docids import rows
from gr_jax.docids.docids import Docids


def statistics(docids: Docids) -> dict:
    """Describes docids in JSON.

    Returns:
      docids, documents, documents_without: counts; docids_a_document and documents_a_docid: means over those that have
      any; length: min, mean, max (without EOS), and counts: docids of length 1, 2, …; collisions: docids that stand for
      several documents, and how many documents those are, most_documents: of one docid; levels: for each position:
      docids that reach it, nodes (distinct prefixes up to it), tokens (distinct), branching mean and max of the nodes
      above, entropy in bits of its token over documents, block_bits: what it would be if every token of the level's
      block (of the vocabulary, where there are no levels) were as frequent; balance: entropy of the node over documents
      by that of equally full nodes (1 = perfectly balanced), and largest: documents of the fullest node by their mean.
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
                "block_bits": float(np.log2(docids.levels[position][1] if docids.levels else docids.vocab_size)),
                "balance": _entropy(of_node) / float(np.log2(nodes)) if nodes > 1 else 1.0,
                "largest": float(of_node.max() / of_node.mean()),
            }
        )
    several = per_docid > 1
    named = len(np.unique(docids.documents))
    return {
        "scheme": docids.scheme,
        "docids": len(docids),
        "documents": docids.num_documents,
        "documents_without": docids.num_documents - named,
        "docids_a_document": len(docids.documents) / named,
        "documents_a_docid": len(docids.documents) / len(docids),
        "length": {
            "min": int(docids.lengths.min()),
            "mean": float(docids.lengths.mean()),
            "max": int(docids.lengths.max()),
            "counts": np.bincount(docids.lengths)[1:].tolist(),
        },
        "collisions": {
            "docids": int(several.sum()),
            "documents": int(per_docid[several].sum()),
            "most_documents": int(per_docid.max()),
        },
        "levels": levels,
    }


def describe(statistics: Mapping[str, Any]) -> str:
    """What `statistics` found, as lines for people."""
    length, collisions = statistics["length"], statistics["collisions"]
    lines = [
        f"{statistics['docids']:,} docids ({statistics['scheme']}) of {statistics['documents']:,} documents"
        + (f", {statistics['documents_without']:,} without" if statistics["documents_without"] else ""),
        f"{statistics['docids_a_document']:.4g} docids a document, {statistics['documents_a_docid']:.4g} documents a "
        f"docid, {collisions['most_documents']:,} at most; {collisions['documents']:,} documents share theirs",
        f"length {length['min']} to {length['max']}, {length['mean']:.3g} in the mean: "
        + ", ".join(f"{count:,} × {place}" for place, count in enumerate(length["counts"], 1) if count),
    ]
    table = [_COLUMNS] + [
        (
            f"{place}",
            f"{level['docids']:,}",
            f"{level['nodes']:,}",
            f"{level['tokens']:,}",
            f"{level['branching_mean']:.4g}",
            f"{level['branching_max']:,}",
            f"{level['entropy_bits']:.2f} of {level['block_bits']:.2f}",
            f"{level['balance']:.3f}",
            f"{level['largest']:.3g}×",
        )
        for place, level in enumerate(statistics["levels"], 1)
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(lines)


_COLUMNS = ("token", "docids", "nodes", "tokens", "branching", "most", "bits", "balance", "fullest node")


def _entropy(weights: np.ndarray) -> float:
    p = weights[weights > 0] / weights.sum()
    return float(-(p * np.log2(p)).sum()) + 0.0

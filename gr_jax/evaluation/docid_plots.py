"""A picture of the tree that docids make: which prefixes hold how many documents, and what is still open after them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from gr_jax.docids import Docids, rows
from gr_jax.errors import InputError
from gr_jax.evaluation import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Nodes narrower than this share of the documents are drawn together, column by column.
NARROW = 1 / 1200
# Wide enough for a label.
_LABELLED = 0.045
# Wide enough for a white edge.
_EDGED = 0.004


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The prefixes of one length, in order.

    Attributes:
      start, end: where each lies among the documents, sorted by docid.
      bits: entropy of its documents over what follows it; 0 where only one thing does.
      token: its last token.
    """

    start: Float[np.ndarray, " nodes"]
    end: Float[np.ndarray, " nodes"]
    bits: Float[np.ndarray, " nodes"]
    token: np.ndarray


def nodes_of_level(docids: Docids, level: int) -> Nodes:
    """The prefixes of level + 1 tokens. What follows one are the tokens after it, and its end where it is a docid."""
    shared, _ = rows.compare_neighbours(docids.tokens)
    first = np.flatnonzero(np.append(True, shared <= level))
    last = np.append(first[1:], len(docids))
    deeper = np.flatnonzero(np.append(True, shared <= level + 1))
    weight = np.diff(docids.offsets[np.append(deeper, len(docids))]).astype(np.float64)
    parent = np.searchsorted(first, deeper, side="right") - 1
    total = np.bincount(parent, weight)
    bits = np.maximum(np.log2(total) - np.bincount(parent, weight * np.log2(weight)) / total, 0)
    kept = docids.lengths[first] > level
    start, end = docids.offsets[first], docids.offsets[last]
    return Nodes(start[kept], end[kept], bits[kept], docids.tokens[first, level][kept])


def docid_tree(docids: Docids, *, levels: int = 6) -> Figure:
    """The first levels of the tree, a row each; a prefix is as wide as the documents under it.

    Colour says how much the next token still decides: the entropy of a prefix's documents over what may follow, pale
    where only one thing does. Prefixes too narrow to be seen are drawn together.

    Args:
      docids: of any scheme.
      levels: rows at most.

    Raises:
      InputError: levels < 1, or matplotlib is not installed.
    """
    if levels < 1:
        raise InputError("there is no level to draw", "Give levels ≥ 1.", value=levels)
    shades = drawing.import_matplotlib().colormaps["YlGnBu"]
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    # Its palest tenth could not be told from paper.
    colours = LinearSegmentedColormap.from_list("bits", shades(np.linspace(0.1, 1, 256)))
    depth = min(levels, docids.tokens.shape[1])
    documents = int(docids.offsets[-1])
    with drawing.style():
        figure = drawing.new_figure(9.0, 1.5 + 0.62 * depth)
        axes = figure.subplots()
        drawn = [nodes_of_level(docids, level) for level in range(depth)]
        scale = Normalize(0, max(1.0, *(float(nodes.bits.max()) for nodes in drawn)))
        for level, nodes in enumerate(drawn):
            start, end, bits, cover = _join_narrow(nodes, documents)
            boxes = np.stack([start, end, end, start], axis=1) / documents  # --> [boxes, corners]
            heights = np.broadcast_to(np.array([0.04, 0.04, 0.96, 0.96]) + level, boxes.shape)
            face = colours(scale(bits))
            face[:, 3] = cover
            edges = np.where(end - start > _EDGED * documents, "white", "none")
            axes.add_collection(
                PolyCollection(
                    list(np.stack([boxes, heights], axis=2)), facecolors=face, edgecolors=list(edges), linewidths=0.4
                )
            )
            first_token = int(docids.meta.get("first_token", 0)) if docids.levels is None else docids.levels[level][0]
            for at in np.flatnonzero(nodes.end - nodes.start >= _LABELLED * documents):
                size = nodes.end[at] - nodes.start[at]
                axes.text(
                    (nodes.start[at] + nodes.end[at]) / 2 / documents,
                    level + 0.5,
                    f"{nodes.token[at] - first_token}\n{size:,}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if scale(nodes.bits[at]) > 0.55 else drawing.INK,
                )
        axes.set_xlim(0, 1)
        axes.set_ylim(depth, 0)
        axes.set_yticks(np.arange(depth) + 0.5, [f"token {level + 1}" for level in range(depth)])
        axes.set_xticks([])
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        deeper = "" if depth == docids.tokens.shape[1] else f", first {depth} of {docids.tokens.shape[1]} tokens"
        axes.set_title(f"{len(docids):,} docids ({docids.scheme}) of {docids.num_documents:,} documents{deeper}")
        axes.set_xlabel("share of the documents, sorted by docid")
        bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, fraction=0.03, pad=0.01)
        bar.set_label("bits of the next token")
        bar.outline.set_visible(False)
        return figure


def _join_narrow(nodes: Nodes, documents: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Boxes to draw: start, end, mean bits, and how much of them nodes cover. Narrow neighbours in one column of the
    picture become one box."""
    width = nodes.end - nodes.start
    narrow = width < NARROW * documents
    column = nodes.start // max(1, int(2 * NARROW * documents))
    new = np.ones(len(width), bool)
    new[1:] = ~narrow[1:] | ~narrow[:-1] | (column[1:] != column[:-1])
    first = np.flatnonzero(new)
    covered = np.add.reduceat(width, first)
    start, end = nodes.start[first], nodes.end[np.append(first[1:], len(width)) - 1]
    return start, end, np.add.reduceat(width * nodes.bits, first) / covered, covered / (end - start)

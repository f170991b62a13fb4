"""Docids that are paths through a hierarchy of clusters (DSI, Tay et al. 2022, section 3.2; NCI, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from gr_jax import clustering
from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError

TOKENS = ("position", "node")
LEAVES = ("number", "share")


def hierarchical_kmeans(
    embeddings: Float[np.ndarray, "n d"],
    *,
    branching: int | Sequence[int] = 30,
    leaf_capacity: int = 30,
    leaf: str = "number",
    clusters: int | None = None,
    most_docids: int = 1,
    margin: float = 0.1,
    seed: int = 0,
    tokens: str = "position",
    first_token: int = 2,
    metric: str = "euclidean",
    iterations: int = 30,
    progress: bool = False,
) -> Docids:
    """Docids are the clusters that a document is in, from the coarsest to its leaf, then its place in the leaf.

    Clusters of more than `leaf_capacity` documents are split into `branching`, so docids differ in length; none is a
    prefix of another, so there is no EOS.

    Args:
      embeddings: a row for each document.
      branching: clusters of every split; or of the splits of each level, the last for all deeper ones. See
        `cluster_hierarchically` for when it is raised.
      leaf_capacity: most documents of a leaf.
      leaf: "number": the last token is the place of the document in its leaf. "share": docids end at the leaf, and one
        stands for all its documents (coarse clusters, as GDR, Yuan et al. 2024, writes them).
      clusters: a budget of leaves, spent on the largest clusters first; a leaf may then hold more than `leaf_capacity`.
      most_docids: of a document. Beyond its own leaf it is also in the leaves whose mean is nearly as near.
      margin: nearly: at most 1 + margin times as far as the mean of its own leaf.
      seed: of the k-means seedings.
      tokens: "position": child c at level i is the token first_token + i · size + c, where size is the most that a
        position needs, at least `leaf_capacity` where leaves are numbered (the position-aware tokens of NCI). "node":
        every cluster and every place in a leaf has a token of its own, level after level.
      first_token: tokens below it are left to padding, EOS, ….
      metric: "euclidean" or "cosine".
      iterations: most Lloyd steps of a split.
      progress: show a bar.

    Raises:
      InputError: see `cluster_hierarchically`; an unknown choice; numbers that are too small; "share" where one leaf
        holds all documents.
    """
    if tokens not in TOKENS:
        raise InputError("unknown kind of docid tokens", f"Use one of {', '.join(TOKENS)}.", value=tokens)
    if leaf not in LEAVES:
        raise InputError("unknown end of docids", f"Use one of {', '.join(LEAVES)}.", value=leaf)
    if first_token < 1:
        raise InputError("0 is padding, not a docid token", "Give first_token ≥ 1.", value=first_token)
    if most_docids < 1:
        raise InputError("every document has a docid", "Give most_docids ≥ 1.", value=most_docids)
    tree = clustering.cluster_hierarchically(
        embeddings,
        branching=branching,
        leaf_capacity=leaf_capacity,
        seed=seed,
        metric=metric,
        iterations=iterations,
        max_leaves=clusters,
        progress=progress,
    )
    leaf_of, first = tree.leaves()
    owner = np.arange(len(leaf_of))
    if most_docids > 1:
        documents, nearby = clustering.nearby_clusters(
            embeddings, leaf_of, most=most_docids - 1, margin=margin, metric=metric
        )
        owner, leaf_of = np.concatenate([owner, documents]), np.concatenate([leaf_of, nearby])
    codes = tree.paths[first[leaf_of]]  # --> [entries, depth]
    size = max(*((branching,) if isinstance(branching, int) else branching), int(codes.max(initial=-1)) + 1)
    if leaf == "number":
        place = rows.place_among_equal(leaf_of)
        codes = np.concatenate([codes, np.full((len(codes), 1), -1, np.int32)], axis=1)
        codes[np.arange(len(codes)), tree.lengths[first[leaf_of]]] = place
        size = max(size, leaf_capacity, int(place.max()) + 1)
    elif codes.shape[1] == 0:
        raise InputError(
            "one leaf holds all documents, so there is nothing to call it by",
            f"Give leaf_capacity < {len(tree.paths)} and clusters ≥ 2.",
            value=leaf_capacity,
        )
    if tokens == "position":
        levels = [(first_token + level * size, size) for level in range(codes.shape[1])]
        starts = np.asarray([start for start, _ in levels], np.int32)
        matrix = np.where(codes < 0, 0, codes + starts)
    else:
        matrix, levels = rows.node_tokens(codes, first_token)
    return Docids.build(
        matrix,
        vocab_size=sum(levels[-1]),
        levels=levels,
        documents=owner,
        duplicates="refuse" if leaf == "number" else "share",
        scheme="hierarchical_kmeans",
        meta={
            "branching": branching if isinstance(branching, int) else list(branching),
            "leaf_capacity": leaf_capacity,
            "leaf": leaf,
            "clusters": clusters,
            "most_docids": most_docids,
            "margin": margin,
            "seed": seed,
            "tokens": tokens,
            "first_token": first_token,
            "metric": metric,
            "iterations": iterations,
        },
    )

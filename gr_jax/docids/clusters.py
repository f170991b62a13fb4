"""Docids that are clusters: of documents that are clustered already, and what search inside clusters needs of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from gr_jax import clustering
from gr_jax.docids import rows
from gr_jax.docids.docids import Docids
from gr_jax.docids.hierarchical_kmeans import TOKENS
from gr_jax.errors import InputError


def name_clusters(
    embeddings: Float[np.ndarray, "n d"],
    cluster: Int[np.ndarray, " n"],
    *,
    branching: int | Sequence[int] = 30,
    most_docids: int = 1,
    margin: float = 0.1,
    seed: int = 0,
    tokens: str = "position",
    first_token: int = 2,
    metric: str = "euclidean",
    scheme: str = "clusters",
) -> Docids:
    """Docids that are clusters: paths in a tree over the clusters' means, all of one length.

    The tree is made from above by balanced k-means, so that it is no deeper than its branching needs.

    Args:
      embeddings: a row for each document.
      cluster: of each document; any numbers.
      branching: children of a node at most; or of the nodes of each level, the last for all deeper ones.
      most_docids, margin: of documents near the border of several clusters, see `hierarchical_kmeans`.
      seed: of the tree.
      tokens, first_token, metric: see `hierarchical_kmeans`.
      scheme: name of the scheme.

    Returns:
      A row for each cluster, which stands for all its documents.

    Raises:
      InputError: see `hierarchical_kmeans`; another number of clusters than embeddings.
    """
    cluster = np.asarray(cluster)
    if cluster.shape != (len(embeddings),):
        raise InputError(
            f"{cluster.shape} clusters for {len(embeddings)} embeddings", "Give each document its cluster."
        )
    if tokens not in TOKENS:
        raise InputError("unknown kind of docid tokens", f"Use one of {', '.join(TOKENS)}.", value=tokens)
    if most_docids < 1:
        raise InputError("every document has a docid", "Give most_docids ≥ 1.", value=most_docids)
    if first_token < 1:
        raise InputError("0 is padding, not a docid token", "Give first_token ≥ 1.", value=first_token)
    points = clustering.check_embeddings(embeddings, metric)
    present, cluster = np.unique(cluster, return_inverse=True)
    means = clustering.cluster_means(points, cluster, len(present))
    codes = _balanced_paths(means, _widths(branching, len(present)), seed, metric)  # [clusters, depth]
    if tokens == "node":
        named, levels = rows.node_tokens(codes, first_token)
    else:
        size = int(codes.max()) + 1
        levels = [(first_token + level * size, size) for level in range(codes.shape[1])]
        named = codes + np.asarray([start for start, _ in levels], np.int32)
    owner = np.arange(len(points))
    if most_docids > 1:
        documents, nearby = clustering.nearby_clusters(
            points, cluster, most=most_docids - 1, margin=margin, metric=metric
        )
        owner, cluster = np.concatenate([owner, documents]), np.concatenate([cluster, nearby])
    return Docids.build(
        named[cluster],
        vocab_size=sum(levels[-1]),
        levels=levels,
        documents=owner,
        duplicates="share",
        scheme=scheme,
        meta={
            "branching": branching if isinstance(branching, int) else list(branching),
            "seed": seed,
            "tokens": tokens,
            "first_token": first_token,
            "metric": metric,
            "most_docids": most_docids,
            "margin": margin,
        },
    )


def _widths(branching: int | Sequence[int], count: int) -> list[int]:
    """Children of the nodes of each level of the flattest tree of so many leaves."""
    given = [branching] if isinstance(branching, int) else list(branching)
    if not given or min(given) < 2:
        raise InputError("a node has at least two children", "Give branching ≥ 2.", value=branching)
    widths: list[int] = []
    while math.prod(widths) < count or not widths:
        widths.append(given[min(len(widths), len(given) - 1)])
    return widths


def _balanced_paths(
    points: Float[np.ndarray, "n d"], widths: Sequence[int], seed: int, metric: str
) -> Int32[np.ndarray, "n depth"]:
    """The children that lead to each point."""
    codes = np.zeros((len(points), len(widths)), np.int32)
    if len(widths) == 1:
        codes[:, 0] = np.arange(len(points))
        return codes
    groups = min(widths[0], len(points))
    codes[:, 0] = clustering.balanced_kmeans(points, groups, seed=seed, metric=metric).assignments
    for group in range(groups):
        inside = np.flatnonzero(codes[:, 0] == group)
        if len(inside):
            codes[inside, 1:] = _balanced_paths(points[inside], widths[1:], seed, metric)
    return codes


def memberships(cids: Docids) -> Int[np.ndarray, "documents most"]:
    """The clusters of each document, −1 where it is in fewer than others, as `dense.ClusteredSearch` takes them."""
    cluster = np.repeat(np.arange(len(cids)), np.diff(cids.offsets))
    order = np.lexsort((cluster, cids.documents))
    documents, cluster = cids.documents[order], cluster[order]
    counts = np.bincount(documents, minlength=cids.num_documents)
    place = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((cids.num_documents, int(counts.max(initial=1))), -1, np.int32)
    table[documents, place] = cluster
    return table


def names_of_clusters(cids: Docids, present: Bool[np.ndarray, " clusters"] | None = None) -> Docids:
    """Docids of the clusters themselves, whatever is in them: row i of `cids` names "document" i.

    Args:
      cids: a docid for each cluster.
      present: which of them; None: all. Their numbers stay.
    """
    kept = np.arange(len(cids)) if present is None else np.flatnonzero(present)
    return dataclasses.replace(
        cids,
        tokens=cids.tokens[kept],
        lengths=cids.lengths[kept],
        offsets=np.arange(len(kept) + 1, dtype=np.int64),
        documents=kept.astype(np.int32),
        num_documents=len(cids),
        texts=None if cids.texts is None else [cids.texts[row] for row in kept.tolist()],
    )

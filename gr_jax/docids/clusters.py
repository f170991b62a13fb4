"""Docids that are clusters: of documents that are clustered already, and what search inside clusters needs of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import clustering
from gr_jax.docids.docids import Docids
from gr_jax.docids.hierarchical_kmeans import hierarchical_kmeans
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
    """Docids that are clusters: paths in a tree over the clusters' means, made by hierarchical k-means.

    Args:
      embeddings: a row for each document.
      cluster: of each document; any numbers.
      branching: of the tree, see `hierarchical_kmeans`; a node of more clusters than that is split.
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
    if most_docids < 1:
        raise InputError("every document has a docid", "Give most_docids ≥ 1.", value=most_docids)
    points = clustering.check_embeddings(embeddings, metric)
    present, cluster = np.unique(cluster, return_inverse=True)
    most = branching if isinstance(branching, int) else max(branching)
    named = hierarchical_kmeans(
        clustering.cluster_means(points, cluster, len(present)),
        branching=branching,
        leaf_capacity=most,
        seed=seed,
        tokens=tokens,
        first_token=first_token,
        metric=metric,
    )
    owner = np.arange(len(points))
    if most_docids > 1:
        documents, nearby = clustering.nearby_clusters(
            points, cluster, most=most_docids - 1, margin=margin, metric=metric
        )
        owner, cluster = np.concatenate([owner, documents]), np.concatenate([cluster, nearby])
    row_of = np.argsort(named.documents)  # each row names one cluster
    return Docids.build(
        named.tokens[row_of[cluster]],
        vocab_size=named.vocab_size,
        levels=named.levels,
        documents=owner,
        duplicates="share",
        scheme=scheme,
        meta={**named.meta, "most_docids": most_docids, "margin": margin},
    )


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
    rows = np.arange(len(cids)) if present is None else np.flatnonzero(present)
    return dataclasses.replace(
        cids,
        tokens=cids.tokens[rows],
        lengths=cids.lengths[rows],
        offsets=np.arange(len(rows) + 1, dtype=np.int64),
        documents=rows.astype(np.int32),
        num_documents=len(cids),
        texts=None if cids.texts is None else [cids.texts[row] for row in rows.tolist()],
    )

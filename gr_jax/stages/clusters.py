"""The stage that clusters documents: what a decoder then writes are clusters (GDR)."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
from jaxtyping import Float

from gr_jax import clustering
from gr_jax import docids as docids_lib
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.vectors import load_owner, load_vectors

ALGORITHMS = ("hierarchical", "kmeans", "spherical", "balanced", "agglomerative")
# Tokens in one level of names: as long as scoring all of them is cheap, that finds the best clusters exactly. What a
# tree of as many costs: `benchmarks.gdr_sensitivity`, "a tree".
WIDEST = 1024
# Vectors nearer than so many rounding errors of a squared length are one point to k-means, which reckons in float32.
_ROUNDING_ERRORS = 64
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Clusters(Settings):
    """Clusters of documents, and their identifiers.

    Attributes:
      algorithm: "hierarchical" k-means, or flat clusters: "kmeans", "spherical" (k-means of directions), "balanced"
        (k-means with clusters of one size), "agglomerative" (of a sample, the rest to the nearest mean). Flat clusters
        are named by paths in a tree over their means.
      budget: how many clusters, whatever the size of the corpus: what the model has to remember. With fewer documents
        than that each is a cluster, together with its copies (which "balanced" may part, as it goes by size first).
      branching: children of a node of the tree, or of the nodes of each level; None: what gives so many leaves. Up to
        1,024 clusters are one level, each with a token of its own; more are a tree, narrow above and wide below, where
        the leaves are better clusters than in a tree of one width.
      most_docids: clusters of a document at most. Beyond its own it is in those whose mean is nearly as near.
      margin: nearly: at most 1 + margin times as far as the mean of its own.
      tokens: "node" (every node of the tree has a token of its own) or "position" (a token per level and child number).
      sample: documents that are clustered by "agglomerative".
      seed: of the clustering.
    """

    algorithm: str = setting("hierarchical", choices=ALGORITHMS)
    budget: int = setting(800, at_least=2)
    branching: int | Sequence[int] | None = setting(None, at_least=2)
    most_docids: int = setting(1, at_least=1)
    margin: float = setting(0.1, at_least=0)
    tokens: str = setting("node", choices=("position", "node"))
    sample: int = setting(8192, at_least=2)
    seed: int = setting(0, at_least=0)

    def check(self) -> None:
        if self.algorithm == "agglomerative" and self.sample < self.budget:
            raise InputError("Clusters.sample is too small", f"Set it to {self.budget} or more.", value=self.sample)
        if self.branching == ():
            raise InputError("Clusters.branching is empty", "Give a width for each level, or None.", value=())

    @property
    def widths(self) -> int | Sequence[int]:
        """The branching that is used."""
        return level_widths(self.budget) if self.branching is None else self.branching


def level_widths(leaves: int) -> list[int]:
    """Widths of the levels of a tree with at least so many leaves: one level where it can be, else narrow above and
    wide below.

    Args:
      leaves: 2 or more.
    """
    levels = 1
    while WIDEST**levels < leaves:
        levels += 1
    above = max(2, math.floor(leaves ** (1 / levels) / math.sqrt(2)))
    return [above] * (levels - 1) + [max(2, math.ceil(leaves / above ** (levels - 1)))]


def number_of_clusters(vectors: Float[np.ndarray, "n d"], budget: int) -> int:
    """How many clusters to make: the budget, or as many as there are vectors that k-means can tell apart; at least 2.

    Copies of a document, exact or nearly so, count once. Were each to have a cluster, k-means would leave some empty,
    and a tree would cut copies apart below all other leaves, with a level of names for that alone.

    Args:
      vectors: a row for each document.
      budget: 2 or more.

    Raises:
      InputError: vectors that cannot be clustered.
    """
    points = clustering.check_embeddings(vectors, "euclidean")
    same = _ROUNDING_ERRORS * float(np.finfo(np.float32).eps) * np.einsum("nd,nd->n", points, points)
    reach = 2 * math.sqrt(float(same.max()))  # squares of how far a vector's copies are away, and twice the longest's
    direction = np.random.default_rng(0).normal(size=points.shape[1])
    along = points @ (direction / np.linalg.norm(direction)).astype(np.float32)  # of copies nearly the same
    different: list[int] = []
    first = 0  # of `different` that may be copies of what comes
    for row in np.argsort(along):
        if len(different) == budget:
            break
        while first < len(different) and along[different[first]] < along[row] - reach:
            first += 1
        near = different[first:]
        offsets = points[near] - points[row]
        if (np.einsum("nd,nd->n", offsets, offsets) > np.maximum(same[near], same[row])).all():
            different.append(row)
    return max(2, len(different))


def make_clusters(vectors: Float[np.ndarray, "n d"], settings: Clusters, *, progress: bool = False) -> Docids:
    """Identifiers of clusters and the documents in them.

    Args:
      vectors: a row for each document.
      settings: how.
      progress: show a bar, where the algorithm has one.

    Raises:
      InputError: vectors that cannot be clustered, or settings that do not fit them.
    """
    shared: dict[str, Any] = {
        "branching": settings.widths,
        "most_docids": settings.most_docids,
        "margin": settings.margin,
        "tokens": settings.tokens,
        "seed": settings.seed,
    }
    if len(vectors) < 2:
        raise InputError("one document makes no clusters", "Give at least two documents.", value=len(vectors))
    budget, seed = number_of_clusters(vectors, settings.budget), settings.seed
    if settings.algorithm == "hierarchical":
        return docids_lib.hierarchical_kmeans(
            vectors, leaf_capacity=1, leaf="share", clusters=budget, progress=progress, **shared
        )
    if settings.algorithm == "balanced":
        found = clustering.balanced_kmeans(vectors, budget, seed=seed)
    elif settings.algorithm == "agglomerative":
        found = clustering.agglomerative(vectors, budget, max_points=settings.sample, seed=seed)
    else:
        metric = "cosine" if settings.algorithm == "spherical" else "euclidean"
        found = clustering.kmeans(vectors, budget, metric=metric, seed=seed)
        shared["metric"] = metric
    return docids_lib.name_clusters(vectors, found.assignments, scheme=f"{settings.algorithm}_clusters", **shared)


def clusters_of(vectors: Stage, settings: Clusters) -> Stage:
    """The stage of the clusters that settings name; what only another algorithm reads changes nothing."""
    return clusters(
        vectors,
        settings=dataclasses.replace(
            settings,
            branching=settings.widths,
            sample=settings.sample if settings.algorithm == "agglomerative" else Clusters.sample,
            margin=settings.margin if settings.most_docids > 1 else Clusters.margin,
        ),
    )


@stage(shared=True)
def clusters(place: Place, vectors: pathlib.Path, *, settings: Clusters) -> None:
    """Clusters of the documents, from their vectors; sizes are in the manifest.

    Raises:
      InputError: documents have several vectors each.
    """
    owner = load_owner(vectors)
    if (owner != np.arange(len(owner))).any():
        raise InputError(
            "clusters are of documents, and some of these have several vectors",
            "Give vectors of whole documents.",
            file=vectors,
        )
    cids = make_clusters(np.asarray(load_vectors(vectors)), settings, progress=True)
    cids.save(place.folder / "cids")
    place.notes.update(sizes(cids))


def load_clusters(folder: pathlib.Path) -> Docids:
    """The clusters' identifiers and documents, of a finished clusters stage."""
    return Docids.load(folder / "cids")


def sizes(cids: Docids) -> dict[str, Any]:
    """How many clusters there are, and how large they are."""
    counts = np.diff(cids.offsets)
    return {
        "clusters": len(cids),
        "documents": cids.num_documents,
        "clusters_per_document": len(cids.documents) / cids.num_documents,
        "depth": [int(cids.lengths.min()), int(cids.lengths.max())],
        "tokens": cids.vocab_size,
        "sizes": {f"{q:g}": float(size) for q, size in zip(QUANTILES, np.quantile(counts, QUANTILES), strict=True)},
    }

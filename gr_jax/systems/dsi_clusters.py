"""DSI on GDR's clusters: a docid is the path to its document's cluster and its place there, a token for each node."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar

import gin
import numpy as np

from gr_jax import docids as docids_lib
from gr_jax.errors import InputError
from gr_jax.stages.clusters import Clusters, number_of_clusters
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import setting
from gr_jax.stages.vectors import load_vectors
from gr_jax.systems.docid_writer import DocidWriter


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DSIClusters(DocidWriter):
    """DSI with the document encoder and the clusters that GDR has, so that both are told apart by what they write
    alone: GDR the cluster, this one the cluster and the place in it.

    Every node of the tree and every place in a leaf has a token of its own, and tokens are normalised by level: the
    last step is a softmax over all documents. `NCI` has the paper's position-aware tokens instead.

    Attributes:
      name: in tables.
      clusters: the tree.
    """

    paper: ClassVar[str] = "Tay et al. 2022, arXiv 2202.06991, on the clusters of Yuan et al. 2024, arXiv 2401.10487"

    name: str = "DSI on clusters"
    clusters: Clusters = setting(Clusters())

    def check(self) -> None:
        super().check()
        if self.clusters.algorithm != "hierarchical" or self.clusters.most_docids != 1:
            raise InputError(
                "docids are paths of one tree, in which each document has one place",
                'Set Clusters.algorithm = "hierarchical" and Clusters.most_docids = 1.',
                value=(self.clusters.algorithm, self.clusters.most_docids),
            )

    @property
    def docid_seed(self) -> int:
        return self.clusters.seed

    def docids(self, corpus: Stage, vectors: Stage) -> Stage:
        return numbered(
            vectors, branching=self.clusters.widths, budget=self.clusters.budget, seed=self.clusters.seed,
            tokens=self.clusters.tokens,
        ).named("docids")  # fmt: skip


@stage(shared=True)
def numbered(place: Place, vectors: pathlib.Path, *, branching: object, budget: int, seed: int, tokens: str) -> None:
    """Docids of documents: the clusters that GDR writes, and the place in the last of them.

    Args:
      branching, budget, seed, tokens: see `Clusters`.
    """
    array = np.asarray(load_vectors(vectors))
    docids = docids_lib.hierarchical_kmeans(
        array,
        branching=branching,  # type: ignore[arg-type]
        leaf_capacity=1,
        clusters=number_of_clusters(array, budget),
        seed=seed,
        tokens=tokens,
        progress=True,
    )
    for name in ("of_vectors", "docids"):
        docids.save(place.folder / name)
    place.notes["statistics"] = docids_lib.statistics(docids)

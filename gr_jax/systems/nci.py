"""NCI (Wang et al. 2022, arXiv 2206.02743): position-aware docids, and a head that the prefix adapts (PAWA)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.errors import InputError
from gr_jax.stages.docids import Identifiers, docids
from gr_jax.stages.graph import Stage
from gr_jax.stages.networks import Network
from gr_jax.stages.settings import setting
from gr_jax.stages.write_docids import Training
from gr_jax.systems.docid_writer import TRAINING, DocidWriter


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class NCI(DocidWriter):
    """NCI: a document's docid is its path in a tree of clusters (§3.1: k = c = 30), and a token is a position among
    siblings: the same token means another cluster under another prefix. What it means there the decoder's head knows,
    whose output table the prefix changes (§3.3, `models.pawa`). R-Drop is its consistency loss (§3.4).

    It deviates from the paper in what it stands on: the document encoder is that of `gdr`, MiniLM fine-tuned as a
    retriever, where the paper has BERT as it is; the encoder of queries starts from it, where the paper's is T5's; the
    decoder and the head have fewer layers; pseudo-queries are made by rules, where the paper generates 15 a document;
    tables start from the centroids of the documents under each prefix; and a layer with a nonlinearity widens what the
    head makes of a prefix, so that each prefix can have a table of its own. A token is told from its siblings alone, so
    that no level may be flat: clusters start as sharp as documents, where `DSIClusters` starts them flat.

    Attributes:
      name: in tables.
      identifiers: the tree.
    """

    paper: ClassVar[str] = "Wang et al. 2022, arXiv 2206.02743"

    name: str = "NCI"
    network: Network = setting(Network(pawa_layers=1, pawa_width=1024, cluster_temperature=0.05))
    identifiers: Identifiers = setting(Identifiers(branching=30, leaf_capacity=30, tokens="position"))
    # Fewer steps than `DSIClusters` has: where every prefix changes the table, a step takes long.
    training: Training | None = setting(
        dataclasses.replace(TRAINING, steps=120, warmup_steps=12, evaluate_every=40, checkpoint_every=40)
    )

    def check(self) -> None:
        super().check()
        if (self.identifiers.scheme, self.identifiers.tokens) != ("hierarchical_kmeans", "position"):
            raise InputError(
                "NCI's docids are paths of a tree, whose tokens are positions among siblings",
                'Set Identifiers.scheme = "hierarchical_kmeans" and Identifiers.tokens = "position". '
                "DSIClusters has a token for each node.",
                value=(self.identifiers.scheme, self.identifiers.tokens),
            )

    @property
    def docid_seed(self) -> int:
        return self.identifiers.seed

    def docids(self, corpus: Stage, vectors: Stage) -> Stage:
        return docids(corpus, vectors, None, scheme=self.identifiers.of_scheme())

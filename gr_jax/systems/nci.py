"""NCI (Wang et al. 2022, arXiv 2206.02743): docids in a tree of clusters, from the document encoder that GDR has."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar

import gin
import numpy as np

from gr_jax import docids as docids_lib
from gr_jax.errors import InputError
from gr_jax.stages import results, write_docids
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.clusters import Clusters, number_of_clusters
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.document_encoder import (
    ENCODER_TRAINING,
    ENCODERS,
    PSEUDO_QUERIES,
    check_document_encoder,
    check_query_encoder,
    document_encoder_of,
    query_vocabulary,
)
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.examples import examples
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.negatives import Mining, mining_of
from gr_jax.stages.networks import Network
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.vectors import encoded, load_vectors
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.stages.write_docids import Decoding, Training
from gr_jax.systems.base import System

TRAINING = Training(
    steps=400,
    batch_size=32,
    warmup_steps=20,
    rates={"query": 0.5, "document": 0.0, "pseudo": 0.5},
    rdrop=0.15,
    checkpoint_every=100,
)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class NCI(System):
    """NCI: a document's docid is the path to its cluster and its place in it, and a network writes all of it.

    The tree and the document encoder are those that GDR has, so that both are told apart by what they write alone: NCI
    the cluster and the place in it, GDR the cluster. `Network.pawa_layers` gives NCI's decoder head, and
    `Training.rdrop` its consistency.

    Attributes:
      name: in tables.
      encoders: the document encoder. Queries are pooled and read alike.
      encoder_training: how it is trained; None leaves it as it is.
      encoder_mining: its negatives.
      trained: folder of a finished run of `dpr`, whose encoder is taken instead.
      start: "document_encoder" or "pretrained": what the encoder of queries starts from.
      pseudo_queries: of every training.
      lexical: BM25.
      clusters: the tree.
      network: the encoder-decoder.
      training: None leaves it as it starts.
      decoding: how the index answers.
    """

    paper: ClassVar[str] = "Wang et al. 2022, arXiv 2206.02743"

    name: str = "NCI"
    encoders: Encoders = setting(ENCODERS)
    encoder_training: ContrastiveTraining | None = setting(ENCODER_TRAINING)
    encoder_mining: Mining = setting(Mining())
    trained: str | None = None
    start: str = setting("document_encoder", choices=("document_encoder", "pretrained"))
    pseudo_queries: PseudoQueries = setting(PSEUDO_QUERIES)
    lexical: Lexical = setting(Lexical())
    clusters: Clusters = setting(Clusters())
    network: Network = setting(Network())
    training: Training | None = setting(TRAINING)
    decoding: Decoding = setting(Decoding())

    def check(self) -> None:
        check_query_encoder(self.encoders, self.start)
        check_document_encoder(self.trained, self.encoder_training, self.encoder_mining)
        if self.clusters.algorithm != "hierarchical" or self.clusters.most_docids != 1:
            raise InputError(
                "NCI's docids are paths of one tree, in which each document has one place",
                'Set Clusters.algorithm = "hierarchical" and Clusters.most_docids = 1.',
                value=(self.clusters.algorithm, self.clusters.most_docids),
            )

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        made = pseudo_queries(corpus, settings=self.pseudo_queries)
        encoder = document_encoder_of(
            corpus, made, words, terms, self.encoders, self.encoder_training, self.encoder_mining, self.trained
        )
        vectors = encoded(corpus, encoder, sentences=0).named("vectors")
        reading = query_vocabulary(corpus, words, self.network, self.start)
        ids = numbered(
            vectors, branching=self.clusters.widths, budget=self.clusters.budget, seed=self.clusters.seed,
            tokens=self.clusters.tokens,
        ).named("docids")  # fmt: skip
        rows = None
        if self.training is not None:
            rows = examples(
                corpus, ids, made, reading,
                sentences=0,
                max_input_length=self.training.max_input_length, document_words=self.training.document_words,
            )  # fmt: skip
        start = encoder if self.start == "document_encoder" else None
        model = write_docids.model_of(
            corpus, vectors, ids, reading, rows, self.network, self.training, self.decoding, start,
            self.encoders.pooling,
        )  # fmt: skip
        index = write_docids.index(corpus, ids, reading, model, decoding=self.decoding)
        both = hybrid(corpus, terms, index, name=self.name)
        return results.generative_results(
            corpus, terms, ids, model, index, both, mining_of(model), vectors, name=self.name,
            provenance=self._provenance(),
        ).named("results")  # fmt: skip

    def _provenance(self) -> dict:
        seeds = [self.clusters.seed]
        seeds += [self.pseudo_queries.seed, self.training.seed] if self.training else []
        if self.trained is None and self.encoder_training is not None:
            seeds += [self.pseudo_queries.seed, self.encoder_mining.seed, self.encoder_training.seed]
        made = self.pseudo_queries.summary() if len(seeds) > 1 else "none: not trained"
        return write_docids.provenance(self.decoding, made, *seeds)


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

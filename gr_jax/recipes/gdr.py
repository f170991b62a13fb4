"""GDR (Yuan et al. 2024, arXiv 2401.10487), from documents to a searchable index."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import gin

from gr_jax.recipes import clusters as clusters_lib
from gr_jax.recipes import (
    document_encoder,
    documents,
    gdr_checks,
    gdr_defaults,
    gdr_index,
    gdr_learning,
    mining,
    pair_training,
)
from gr_jax.recipes.clusters import Clusters
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Lexical, Mining
from gr_jax.recipes.gdr_settings import ClusterSearch, Matching
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import Network, PseudoQueries, Vectors, at_least
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage
from gr_jax.retrievers import Searcher


@dataclasses.dataclass(frozen=True)
class GDRSettings:
    """What `gdr` is told; see there."""

    encoders: Encoders
    encoder_training: ContrastiveTraining
    encoder_mined: Mining
    trained: str
    pseudo_queries: PseudoQueries
    lexical: Lexical
    clusters: Clusters
    network: Network
    matching: Matching
    mined: Mining
    training: ContrastiveTraining
    joint: ContrastiveTraining
    search: ClusterSearch
    most_sentences: int


def gdr_stages(source: Source, name: str, told: GDRSettings) -> list[Stage]:
    """The stages of `gdr`, in order."""
    training, encoders = told.training, told.encoders
    first = training if training.steps else told.joint  # both read its examples, where both train
    document_encoder.check_held_out(told.trained, first)
    gdr_checks.check(
        encoders, None if told.trained else told.encoder_training, told.network, told.matching, told.mined, training,
        told.joint, told.search,
    )  # fmt: skip
    at_least(0, most_sentences=told.most_sentences)
    corpus = documents.corpus_stage(source)
    whole = Vectors(passages="document")
    encoded = document_encoder.encoded_documents(
        corpus,
        encoders,
        told.encoder_training,
        told.encoder_mined,
        told.pseudo_queries,
        told.lexical,
        whole,
        told.trained,
    )
    clusters = clusters_lib.clusters_stage(encoded.vectors, told.clusters)
    taught = first.taught(encoders)
    reading = document_encoder.query_vocabulary(encoded, told.network, told.matching.start)
    pairs = mining.examples_stage(corpus, encoded.pseudo_queries, encoded.vocabulary, taught, first, reading)
    wrong = mining.negatives_stage(
        corpus, encoded.pseudo_queries, encoded.vocabulary, pairs, encoded.bm25,
        clusters if "cluster" in told.mined.shares else None, taught, told.mined, first, encoder=encoded.encoder,
        shared=True,
    )  # fmt: skip
    shared = (told.matching, told.mined)
    model = gdr_learning.model_stage(
        encoded, reading, clusters, pairs, wrong, encoders, told.network, *shared, training, told.search
    )
    last, encoder, vectors, extra = model, encoded.encoder, encoded.vectors, list[Stage]()
    if told.joint.steps:
        last = encoder = gdr_learning.model_stage(
            encoded, reading, clusters, pairs, wrong, encoders, told.network, *shared, told.joint, told.search,
            before=model,
        )  # fmt: skip
        extra = [last]
    if told.joint.steps and not told.most_sentences:
        vectors = dataclasses.replace(document_encoder.vectors_stage(corpus, last, whole), name="joint_vectors")
        extra.append(vectors)
    if told.most_sentences:
        parts = Vectors(passages="sentences", most_sentences=told.most_sentences)
        vectors = dataclasses.replace(document_encoder.vectors_stage(corpus, encoder, parts), name="passage_vectors")
        extra.append(vectors)
    built = gdr_index.index_stage(
        corpus, reading, clusters, last, encoder, vectors, encoders, told.matching, told.search,
        told.most_sentences,
    )  # fmt: skip
    trainings = [(told.mined, training), (told.mined, told.joint)]
    trainings += [] if told.trained else [(told.encoder_mined, told.encoder_training)]
    provenance = pair_training.provenance_of(told.pseudo_queries, trainings)
    provenance["seeds"] = sorted({*provenance["seeds"], told.clusters.seed})
    judged = gdr_index.results_stage(name, corpus, encoded.bm25, clusters, last, built, provenance=provenance)
    learning = [pairs, wrong] if training.steps or told.joint.steps else []
    # The vocabulary of queries early: it fails at once where it cannot be read.
    stages = [corpus, reading, *encoded.stages, clusters, *learning, model, *extra, built, judged]
    return list({stage.key: stage for stage in stages}.values())  # what both trainings read is made once


@gin.configurable(module="gr_jax.recipes")
def gdr(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "GDR",
    encoders: Encoders | None = None,
    encoder_training: ContrastiveTraining | None = None,
    encoder_mined: Mining | None = None,
    trained: str | os.PathLike = "",
    pseudo_queries: PseudoQueries | None = None,
    lexical: Lexical | None = None,
    clusters: Clusters | None = None,
    network: Network | None = None,
    matching: Matching | None = None,
    mined: Mining | None = None,
    training: ContrastiveTraining | None = None,
    joint: ContrastiveTraining | None = None,
    search: ClusterSearch | None = None,
    most_sentences: int = 0,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Trains a document encoder, clusters the documents by it, trains a network to write a query's clusters and to
    match inside them, and builds and measures the index.

    What is not said is as in `gdr_defaults`; what is said takes the place of the whole default, so that fewer steps are
    `dataclasses.replace(gdr_defaults.TRAINING, steps=100)`. In the gin files the document encoder's own training is
    bound in the scope `document_encoder` (`document_encoder/ContrastiveTraining.steps`), the second stage's in the
    scope `joint`; what is not bound there is as without a scope, which is GDR's first stage.

    Args:
      source: a BEIR folder's path, or a `Source`.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      encoders: the document encoder. Queries are pooled and read alike.
      encoder_training, encoder_mined: how it is trained, and its negatives; 0 steps leave it as it is.
      trained: folder of a finished run of `dpr`, whose encoder is taken instead.
      pseudo_queries, lexical: of every training.
      clusters: that are written.
      network: the encoder of queries and the decoder of clusters.
      matching: the loss.
      mined, training: GDR's negatives and training, against document vectors that stay as they are.
      joint: a second training, of the document encoder too; 0 steps, the default, leave it out.
      search: how clusters are written and searched.
      most_sentences: of a document that have vectors of their own in its clusters; 0: one vector a document.
      shared_dir: where stages that runs share are kept; by default `shared` beside `model_dir`.
      until: the last stage to make; None makes all.
      say: receives a line per stage.

    Returns:
      A searcher over the index; None where `until` ends before it.

    Raises:
      InputError: bad documents or settings, named with what would be right.
    """
    told = GDRSettings(
        encoders=encoders or gdr_defaults.ENCODERS,
        encoder_training=encoder_training or gdr_defaults.ENCODER_TRAINING,
        encoder_mined=encoder_mined or Mining(),
        trained=os.fspath(trained),
        pseudo_queries=pseudo_queries or gdr_defaults.PSEUDO_QUERIES,
        lexical=lexical or Lexical(),
        clusters=clusters or Clusters(),
        network=network or Network(),
        matching=matching or Matching(),
        mined=mined or gdr_defaults.MINED,
        training=training or gdr_defaults.TRAINING,
        joint=joint or gdr_defaults.JOINT,
        search=search or ClusterSearch(),
        most_sentences=most_sentences,
    )
    return run_stages(
        source, lambda found: gdr_stages(found, name, told), model_dir, shared_dir=shared_dir, until=until, say=say
    )

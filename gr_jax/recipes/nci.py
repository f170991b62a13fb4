"""NCI (Wang et al. 2022, arXiv 2206.02743): docids in a tree of clusters, from the document encoder that GDR has."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import gin
import numpy as np

from gr_jax import docids as docids_lib
from gr_jax.errors import InputError
from gr_jax.recipes import (
    document_encoder,
    documents,
    examples,
    gdr_checks,
    gdr_defaults,
    learning,
    pair_training,
    results,
)
from gr_jax.recipes.clusters import Clusters, number_of_clusters
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Lexical, Mining
from gr_jax.recipes.document_encoder import query_vocabulary
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import Decoding, Network, PseudoQueries, Training, Vectors, one_of
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Searcher


def numbered_stage(vectors: Stage, clusters: Clusters) -> Stage:
    """Docids of documents: the clusters that GDR writes, and the place in the last of them.

    Raises:
      InputError: clusters that are not hierarchical, or documents in several.
    """
    if clusters.algorithm != "hierarchical" or clusters.most_docids != 1:
        raise InputError(
            "NCI's docids are paths of one tree, in which each document has one place",
            'Set Clusters.algorithm = "hierarchical" and Clusters.most_docids = 1.',
            value=(clusters.algorithm, clusters.most_docids),
        )

    def make(place: Workplace) -> None:
        array = np.asarray(documents.load_vectors(place.inputs["vectors"]))
        docids = docids_lib.hierarchical_kmeans(
            array,
            branching=clusters.widths,
            leaf_capacity=1,
            clusters=number_of_clusters(array, clusters.budget),
            seed=clusters.seed,
            tokens=clusters.tokens,
            progress=True,
        )
        for name in ("of_vectors", "docids"):
            docids.save(place.folder / name)
        place.meta.update({"statistics": docids_lib.statistics(docids)})

    return Stage("docids", clusters.as_config(), (vectors,), make, shared=True)


def nci_stages(
    source: Source,
    *,
    name: str,
    encoders: Encoders,
    encoder_training: ContrastiveTraining,
    encoder_mined: Mining,
    trained: str,
    start: str,
    pseudo_queries: PseudoQueries,
    lexical: Lexical,
    clusters: Clusters,
    network: Network,
    training: Training,
    decoding: Decoding,
) -> list[Stage]:
    """The stages of `nci`, in order."""
    one_of("nci.start", start, "document_encoder", "pretrained")
    gdr_checks.check_query_encoder(encoders, start)
    corpus = documents.corpus_stage(source)
    whole = Vectors(passages="document")
    encoded = document_encoder.encoded_documents(
        corpus, encoders, encoder_training, encoder_mined, pseudo_queries, lexical, whole, trained
    )
    reading = query_vocabulary(encoded, network, start)
    docids = numbered_stage(encoded.vectors, clusters)
    rows = examples.examples_stage(corpus, encoded.vectors, docids, encoded.pseudo_queries, reading, whole, training)
    tower = encoded.encoder if start == "document_encoder" else None
    model = learning.model_stage(
        corpus, encoded.vectors, docids, reading, rows, network, training, decoding, tower, encoders.pooling
    )
    built = learning.index_stage(corpus, docids, reading, model, decoding)
    of_encoder = pair_training.provenance_of(pseudo_queries, [] if trained else [(encoder_mined, encoder_training)])
    provenance: dict[str, Any] = {
        "pseudo_queries": pseudo_queries.summary(),
        "normalizer": decoding.normalize,
        "seeds": sorted({clusters.seed, pseudo_queries.seed, training.seed, *of_encoder["seeds"]}),
    }
    # Only where it is another BM25: runs from before there was a choice keep their results.
    terms = None if lexical.as_by_default else encoded.bm25
    judged = results.results_stage(name, corpus, docids, model, built, terms, provenance=provenance)
    stages = [corpus, reading, *encoded.stages, docids, rows, model, built, judged]
    return list({stage.key: stage for stage in stages}.values())


@gin.configurable(module="gr_jax.recipes")
def nci(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "NCI",
    encoders: Encoders | None = None,
    encoder_training: ContrastiveTraining | None = None,
    encoder_mined: Mining | None = None,
    trained: str | os.PathLike = "",
    start: str = "document_encoder",
    pseudo_queries: PseudoQueries | None = None,
    lexical: Lexical | None = None,
    clusters: Clusters | None = None,
    network: Network | None = None,
    training: Training | None = None,
    decoding: Decoding | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Docids are GDR's clusters and a place in them; a network is trained to write all of it, and measured.

    Args:
      source: a BEIR folder's path, or a `Source`.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      encoders, encoder_training, encoder_mined, trained, pseudo_queries, lexical, clusters: as of `gdr`.
      start: "document_encoder" or "pretrained": what the encoder of queries starts from.
      network, training, decoding: as of `dsi`. `Network.pawa_layers` gives NCI's decoder head, `Training.rdrop` its
        consistency.
      shared_dir: where stages that runs share are kept; by default `shared` beside `model_dir`.
      until: the last stage to make; None makes all.
      say: receives a line per stage.

    Returns:
      A searcher over the index; None where `until` ends before it.

    Raises:
      InputError: bad documents or settings, named with what would be right.
    """
    return run_stages(
        source,
        lambda found: nci_stages(
            found,
            name=name,
            encoders=encoders or gdr_defaults.ENCODERS,
            encoder_training=encoder_training or gdr_defaults.ENCODER_TRAINING,
            encoder_mined=encoder_mined or Mining(),
            trained=os.fspath(trained),
            start=start,
            pseudo_queries=pseudo_queries or gdr_defaults.PSEUDO_QUERIES,
            lexical=lexical or Lexical(),
            clusters=clusters or Clusters(),
            network=network or Network(),
            training=training or gdr_defaults.NCI_TRAINING,
            decoding=decoding or Decoding(),
        ),
        model_dir,
        shared_dir=shared_dir,
        until=until,
        say=say,
    )

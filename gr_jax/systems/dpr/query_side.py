"""A second training of a bi-encoder, of its side of queries alone, against the vectors of its documents.

The vectors are there anyway, for the index, and stay as they are. A step reads queries only, so that batches can be
large and a query has many negatives: it costs a fraction of one that encodes documents.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np

from gr_jax import dense
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import contrastive, encoders, negatives
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pairs import load_pairs
from gr_jax.stages.training import fit
from gr_jax.stages.vectors import load_vectors
from gr_jax.training.task import Task
from gr_jax.training.vector_batches import VectorBatches


@stage(trains=True)
def query_model(
    place: Place,
    corpus: pathlib.Path,
    pairs: pathlib.Path,
    found_negatives: pathlib.Path,
    encoder: pathlib.Path,
    vectors: pathlib.Path,
    *,
    scratch: bool,
    mining: Mining,
    training: ContrastiveTraining,
) -> None:
    """Goes on with the side of queries. Interrupted, it goes on from its latest checkpoint with the same result.

    Args:
      encoder, vectors: what was trained, and its vectors of whole documents.
      scratch: the encoder started from scratch, and all of it moves alike.
      mining, training: settings.
    """
    dataset = load_dataset(corpus)
    network = _separate(negatives.load_encoder(encoder))
    of_documents = np.asarray(load_vectors(vectors))
    queries, texts = load_pairs(pairs)
    known = negatives.load_negatives(found_negatives, mining)
    table = negatives.first_table(known, mining, queries, len(texts))
    batches = contrastive.make_query_batches(queries, texts, table, training, network.lengths["query"])
    judged = contrastive.judged_queries(pairs, dataset, training)
    # The other side's parameters are not in it, so nothing can move them.
    alone = dataclasses.replace(network.config, shared=True, document_encoder=None, document_pooling=None)
    task = Task(
        model=contrastive.bi_encoder_model(alone, training),
        batches=VectorBatches(batches, of_documents),
        initial_params={"query": network.params["query"]},
        multipliers=encoders.learning_rate_multipliers(network.config, None if scratch else network.params["query"]),
        evaluate=contrastive.evaluation(_Fixed(network, of_documents), dataset, judged, training),
    )
    found = fit(place, task, training).params
    network.with_parameters({**network.params, "query": found["query"]}).save(place.folder / "encoder")


def _separate(encoder: DenseEncoder) -> DenseEncoder:
    """The same encoder with a tower for each side."""
    config = encoder.config
    params = {side: encoder.params[config.scope(side)] for side in ("query", "document")}
    return DenseEncoder(
        dataclasses.replace(config, shared=False),
        params,
        encoder.vocabulary,
        query_length=encoder.lengths["query"],
        document_length=encoder.lengths["document"],
        query_prefix=encoder.prefixes["query"],
        document_prefix=encoder.prefixes["document"],
        transform=encoder.transform,
    )


class _Fixed:
    """Dense retrieval with any parameters of the side of queries: the documents' vectors stay."""

    def __init__(self, encoder: DenseEncoder, vectors: np.ndarray):
        self._encoder, self._searcher = encoder, dense.make_searcher("exact", vectors)

    def with_parameters(self, params: Any) -> DenseRetriever:
        """A retriever around these parameters."""
        both = {"query": params["query"], "document": self._encoder.params["document"]}
        return DenseRetriever(self._encoder.with_parameters(both), self._searcher)

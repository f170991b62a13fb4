"""A bi-encoder whose documents are read once: the states that a pretrained encoder pools of them stay as they are, and
what is trained is the side of queries and a projection of both.

A step costs a projection of its documents instead of reading them, so that a query can have a hundred negatives, or
all.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from gr_jax import dense, models, storage
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import bi_encoder, contrastive, encoders, negatives
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pairs import load_pairs
from gr_jax.stages.training import fit
from gr_jax.stages.vectors import encoded, load_owner, load_vectors
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.training.task import Task
from gr_jax.training.vector_batches import VectorBatches

_AT_ONCE = 1024  # documents that are projected at once


def reading(corpus: Stage, vocabulary: Stage, settings: Encoders) -> tuple[Stage, Stage]:
    """The stages of the encoder before it is trained, and of what it pools of documents: float32 [documents, e]."""
    alone = dataclasses.replace(settings, projection=None, similarity="dot", temperature=1.0, shared=True)
    reader = bi_encoder.untrained(corpus, vocabulary, settings=alone).named("frozen_encoder")
    return reader, encoded(corpus, reader, sentences=0)


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    pairs: pathlib.Path,
    found_negatives: pathlib.Path,
    reader: pathlib.Path,
    states: pathlib.Path,
    *,
    settings: Encoders,
    mining: Mining,
    training: ContrastiveTraining,
) -> None:
    """Trains the side of queries and the projection. Interrupted, it goes on from its latest checkpoint with the same
    result. The encoder that it saves has a side of documents of its own, which reads them as before.

    Args:
      reader, states: see `reading`.
    """
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    config, pretrained = encoders.make_encoders(settings, words.size)
    params = encoders.initial_parameters(config, pretrained, training.seed)
    read = negatives.load_encoder(reader).params["query"]
    of_documents = np.asarray(load_vectors(states))
    queries, texts = load_pairs(pairs)
    table = negatives.first_table(negatives.load_negatives(found_negatives, mining), mining, queries, len(texts))
    batches = contrastive.make_query_batches(queries, texts, table, training, settings.query_length)
    judged = contrastive.judged_queries(pairs, dataset, training)
    frozen = {} if config.shared else {"document/(token_embedder|encoder|pooler)": 0.0}
    separate = encoders.text_encoder(
        settings, dataclasses.replace(config, shared=False), _separated(config, read, params), words,
        dataset.transform,
    )  # fmt: skip
    task = Task(
        model=contrastive.bi_encoder_model(config, training),
        batches=VectorBatches(batches, of_documents, "document_states"),
        initial_params=params,
        multipliers=encoders.learning_rate_multipliers(config, pretrained) | frozen,
        evaluate=contrastive.evaluation(_Projecting(separate, config, read, of_documents), dataset, judged, training),
    )
    found = fit(place, task, training).params
    separate.with_parameters(_separated(config, read, found)).save(place.folder / "encoder")


@stage(shared=True)
def projected(place: Place, encoder: pathlib.Path, states: pathlib.Path) -> None:
    """Vectors of documents by the projection of an encoder that `model` trained, laid out as those of `vectors`."""
    network = negatives.load_encoder(encoder)
    array = project(network.config, network.params, np.asarray(load_vectors(states)))
    np.save(place.folder / "vectors.npy", array)
    np.save(place.folder / "owner.npy", load_owner(states))
    read = storage.read_folder(states, verify=False).meta.get("read")
    place.notes.update({"vectors": len(array), "dimension": array.shape[1], **({"read": read} if read else {})})


def project(
    config: models.BiEncoderConfig, params: Mapping[str, Any], states: Float[np.ndarray, "n e"]
) -> Float[np.ndarray, "n d"]:
    """Vectors of documents, float32, of what was pooled of them.

    Args:
      config, params: of the bi-encoder.
      states: of the documents.
    """
    module = models.BiEncoder(config)
    apply = jax.jit(lambda params, rows: module.apply({"params": params}, rows, method="project_document"))
    width = config.tower("document").dimension
    found = np.empty((len(states), width), np.float32)
    for start in range(0, len(states), _AT_ONCE):
        rows = np.zeros((_AT_ONCE, states.shape[1]), np.float32)
        some = states[start : start + _AT_ONCE]
        rows[: len(some)] = some
        found[start : start + len(some)] = np.asarray(apply(params, rows))[: len(some)]
    return found


def _separated(config: models.BiEncoderConfig, read: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Both sides apart: that of queries as it is trained, that of documents as they were read, with the projection.

    Args:
      config, params: of the bi-encoder that is trained.
      read: the tower that read the documents.
    """
    return {
        "query": params["query"],
        "document": {**read, "projection": params[config.scope("document")]["projection"]},
    }


class _Projecting:
    """Dense retrieval with any parameters: the documents' states are projected anew."""

    def __init__(
        self, separate: DenseEncoder, config: models.BiEncoderConfig, read: Mapping[str, Any], states: np.ndarray
    ):
        self._separate, self._config, self._read, self._states = separate, config, read, states

    def with_parameters(self, params: Any) -> DenseRetriever:
        """A retriever around these parameters, over all documents."""
        encoder = self._separate.with_parameters(_separated(self._config, self._read, params))
        vectors = project(encoder.config, encoder.params, self._states)
        return DenseRetriever(encoder, dense.make_searcher("exact", vectors))

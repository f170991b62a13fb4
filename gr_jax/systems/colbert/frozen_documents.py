"""Late interaction whose documents are read once: the states of their tokens stay as they are, and what is trained is
the side of queries and the projection of both. See `gr_jax.stages.frozen_documents`, which is this for one vector a
text."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gr_jax import storage
from gr_jax.dense import token_vectors as vectors_lib
from gr_jax.dense.token_vectors import TokenRows, TokenVectors
from gr_jax.stages import contrastive, negatives
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pairs import load_pairs
from gr_jax.stages.training import fit
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.colbert import index
from gr_jax.systems.colbert import training as learning
from gr_jax.systems.colbert.interaction import TokenNetwork, initial_encoder
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionModel
from gr_jax.systems.colbert.retriever import LateInteractionRetriever
from gr_jax.systems.colbert.tiles import StateBatches
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from gr_jax.training.task import Task

PRECISION = "float16"  # of states
_AT_ONCE = 1 << 14  # tokens that are projected at once
_TOWER = ("token_embedder", "encoder")


def reading(corpus: Stage, vocabulary: Stage, encoders: Encoders, network: TokenNetwork) -> tuple[Stage, Stage]:
    """The stages of the network before it is trained, without a projection, and of what it reads of documents: the
    states of their tokens, `PRECISION` [tokens, e]. Networks that differ in what only training and queries read share
    them."""
    plain = TokenNetwork()
    alone = dataclasses.replace(
        network, projection="none", dimension=plain.dimension, augmentation=plain.augmentation,
        whole_text_weight=plain.whole_text_weight, token_weights=plain.token_weights, temperature=plain.temperature,
    )  # fmt: skip
    reader = learning.untrained(corpus, vocabulary, encoders=encoders, network=alone).named("frozen_encoder")
    return reader, index.token_vectors(corpus, reader, precision=PRECISION).named("document_states").for_all()


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
    encoders: Encoders,
    network: TokenNetwork,
    mining: Mining,
    training: ContrastiveTraining,
) -> None:
    """Trains the side of queries and the projection. Interrupted, it goes on from its latest checkpoint with the same
    result. The encoder that it saves has a side of documents of its own, which reads them as before.

    Args:
      reader, states: see `reading`.
    """
    dataset = load_dataset(corpus)
    encoder, pretrained = initial_encoder(encoders, network, dataset, load_vocabulary(vocabulary), training.seed)
    read = TokenEncoder.load(reader / "encoder").params
    of_documents = TokenRows.read(states / "vectors")
    queries, texts = load_pairs(pairs)
    table = negatives.first_table(negatives.load_negatives(found_negatives, mining), mining, queries, len(texts))
    rows = contrastive.query_row_lengths(encoders.query_length)  # MaxSim counts them
    packs = encoder.module.config.packs
    batches = contrastive.make_query_batches(queries, texts, table, training, rows, packed=packs)
    judged = contrastive.judged_queries(pairs, dataset, training)
    separate = _separate(encoder, read)
    task = Task(
        model=LateInteractionModel(encoder.module, contrastive.loss_of(training), chunks=training.chunks),
        batches=StateBatches(batches, of_documents),
        initial_params=encoder.params,
        multipliers=contrastive.learning_rate_multipliers(encoder.params, pretrained, learning.faster(network)),
        evaluate=contrastive.evaluation(_Projecting(separate, read, of_documents), dataset, judged, training),
    )
    found = fit(place, task, training).params
    separate.with_parameters(_separated(read, found)).save(place.folder / "encoder")


@stage()
def projected(place: Place, encoder: pathlib.Path, states: pathlib.Path, *, precision: str) -> None:
    """Token vectors of documents by the projection of an encoder that `model` trained, laid out as those of
    `index.token_vectors`.

    Args:
      precision: see `Interaction`.
    """
    network, of_documents = TokenEncoder.load(encoder / "encoder"), TokenRows.read(states / "vectors")
    vectors = TokenVectors(project(network, of_documents, precision))
    vectors.save(place.folder / "vectors", corpus=storage.read_folder(states / "vectors", verify=False).corpus)
    read = storage.read_folder(states, verify=False).meta["read"]
    place.notes.update({"documents": vectors.num_documents, "vectors": vectors.num_vectors, "read": read})


def project(encoder: TokenEncoder, states: TokenRows, precision: str) -> TokenRows:
    """Vectors of documents, in memory, of the states of their tokens.

    Args:
      encoder: has the projection.
      states: of the documents' tokens.
      precision: of the vectors.
    """
    stored, scales = zip(*(vectors_lib.quantize(part, precision) for part in _projected(encoder, states)), strict=True)
    together = None if scales[0] is None else np.concatenate(scales)
    return TokenRows(np.concatenate(stored), states.offsets, states.tokens, together)


def _projected(encoder: TokenEncoder, states: TokenRows) -> Iterator[np.ndarray]:
    """Vectors [n, d], float32, some after the others."""
    for start in range(0, len(states.vectors), _AT_ONCE):
        some = np.asarray(states.vectors[start : start + _AT_ONCE], np.float32)
        rows = np.pad(some, ((0, _AT_ONCE - len(some)), (0, 0)))
        yield np.asarray(_project(encoder.module, encoder.params, rows))[: len(some)]


@functools.partial(jax.jit, static_argnums=0)
def _project(module: LateInteraction, params: Any, rows: jax.Array) -> jax.Array:
    found: Any = module.apply({"params": params}, rows, method="project")
    return found


def _separate(encoder: TokenEncoder, read: Mapping[str, Any]) -> TokenEncoder:
    """The encoder with a side of documents of its own.

    Args:
      encoder: that is trained.
      read: parameters of the network that read the documents.
    """
    config = dataclasses.replace(encoder.module.config, shared=False)
    return TokenEncoder(
        LateInteraction(config),
        _separated(read, encoder.params),
        encoder.vocabulary,
        query_length=encoder.lengths["query"],
        document_length=encoder.lengths["document"],
        transform=encoder.transform,
    )


def _separated(read: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Both sides apart: that of queries as it is trained, that of documents as they were read."""
    return {**params, **{f"document_{name}": read[name] for name in _TOWER}}


class _Projecting:
    """Late interaction with any parameters: the documents' states are projected anew."""

    def __init__(self, separate: TokenEncoder, read: Mapping[str, Any], states: TokenRows):
        self._separate, self._read, self._states = separate, read, states

    def with_parameters(self, params: Any) -> LateInteractionRetriever:
        """A retriever around these parameters, over all documents."""
        encoder = self._separate.with_parameters(_separated(self._read, params))
        return LateInteractionRetriever(encoder, TokenVectors(project(encoder, self._states, PRECISION)))

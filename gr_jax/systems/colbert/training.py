"""The stages of a late-interaction network: trained by contrast, or as it is."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax.corpus import Corpus
from gr_jax.stages import contrastive, pair_training
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import DEFAULT_MULTIPLIERS, Encoders
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.training import fit, keep_curves
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.colbert.interaction import TokenNetwork, initial_encoder
from gr_jax.systems.colbert.network import LateInteractionModel
from gr_jax.systems.colbert.retriever import LateInteractionRetriever
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from gr_jax.training.task import Task

# How much faster than the encoder the new parameters learn.
FASTER = {"projection": 10.0, "token_weight": 20.0, "whole_text_weight": 1000.0}


def faster(network: TokenNetwork) -> Mapping[str, float]:
    """The same of a network: two layers that start at random learn as fast as those of bi-encoders."""
    return FASTER | ({"projection": DEFAULT_MULTIPLIERS["projection"]} if network.projection == "layers" else {})


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    pairs: pathlib.Path,
    found_negatives: pathlib.Path,
    *,
    encoders: Encoders,
    network: TokenNetwork,
    mining: Mining,
    training: ContrastiveTraining,
) -> None:
    """Trains the network. Interrupted, it goes on from its latest checkpoint with the same result."""
    dataset = load_dataset(corpus)
    encoder, pretrained = initial_encoder(encoders, network, dataset, load_vocabulary(vocabulary), training.seed)
    read = training.of(encoders)
    judged = contrastive.judged_queries(pairs, dataset, training)
    searched = contrastive.searched(dataset, judged, training)
    short = encoder.with_lengths(read.query_length, read.document_length)
    task = Task(
        model=LateInteractionModel(encoder.module, contrastive.loss_of(training), chunks=training.chunks),
        batches=pair_training.make_batches(pairs, found_negatives, mining, training, read),
        initial_params=encoder.params,
        multipliers=contrastive.learning_rate_multipliers(encoder.params, pretrained, faster(network)),
        evaluate=contrastive.evaluation(Reencoded(short, searched), dataset, judged, training, searched),
    )
    encoder.with_parameters(fit(place, task, training).params).save(place.folder / "encoder")


@stage()
def untrained(
    place: Place, corpus: pathlib.Path, vocabulary: pathlib.Path, *, encoders: Encoders, network: TokenNetwork
) -> None:
    """The network as it is before any training."""
    encoder, _ = initial_encoder(encoders, network, load_dataset(corpus), load_vocabulary(vocabulary), seed=0)
    encoder.save(place.folder / "encoder")
    keep_curves(place)


class Reencoded:
    """Late interaction with any parameters: the documents are encoded anew."""

    def __init__(self, encoder: TokenEncoder, corpus: Corpus):
        self._encoder, self._corpus = encoder, corpus

    def with_parameters(self, params: Any) -> LateInteractionRetriever:
        """A retriever around these parameters, over all documents."""
        encoder = self._encoder.with_parameters(params)
        return LateInteractionRetriever(encoder, encoder.encode_documents(self._corpus.contents))

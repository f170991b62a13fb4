"""The stages of a network that writes docids: its training, and the index around it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.stages import networks, training
from gr_jax.stages.docids import load_codewords, load_docids, load_docids_of_vectors
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.networks import Network
from gr_jax.stages.settings import Settings, check_shares, setting
from gr_jax.stages.vectors import load_vectors
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.training.batches import make_batches
from gr_jax.training.example_sources import source_names
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore

# Most beams of the retrievals on dev. With fewer than the first level is wide, they would judge the order of clusters
# more than that of documents, and keep other parameters than the full search wants.
DEV_BEAMS = 64


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Training(training.Optimization):
    """How a network that writes docids is trained; and all that `Optimization` has.

    Attributes:
      batch_size: rows of packed examples an update; a row holds several short examples.
      row_length, row_targets: tokens of a row that are read and written.
      max_input_length: tokens of a query, document or pseudo-query; at most `row_length`.
      document_words: words of a document that an indexing example reads.
      rates: share of each kind of example: "query", "document", "pseudo".
      normalize: the softmax of the loss: over the whole "vocabulary" or the "level" of the docid.
      label_smoothing: share of the target given to the other tokens.
      rdrop: weight of the symmetric KL between two passes with dropout (NCI's, .15 there); None makes one pass.
      microbatches: parts that a batch is computed in, one after the other.
    """

    batch_size: int = 16
    learning_rate: float = 1e-3
    warmup_steps: int = 30
    row_length: int = setting(64, at_least=3)
    row_targets: int = setting(32, at_least=1)
    max_input_length: int = setting(48, at_least=3)
    document_words: int = setting(64, at_least=1)
    rates: Mapping[str, float] = setting({"query": 0.6, "document": 0.03, "pseudo": 0.37})
    normalize: str = setting("level", choices=("vocabulary", "level"))
    label_smoothing: float = setting(0.0, at_least=0, below=1)
    rdrop: float | None = setting(None, above=0, neutral=None)
    microbatches: int = setting(1, at_least=1)

    def check(self) -> None:
        super().check()
        check_shares("Training.rates", self.rates, source_names(), "kinds of examples")
        training.check_keep_best("Training.keep_best", self.keep_best, ("dev",))
        if self.max_input_length > self.row_length:
            raise InputError(
                f"Training.max_input_length is above the {self.row_length} tokens of a row",
                f"Set Training.row_length to {self.max_input_length} or more, or max_input_length lower.",
                value=self.max_input_length,
            )
        if self.batch_size % self.microbatches:
            raise InputError(
                f"Training.batch_size of {self.batch_size} rows is not split evenly by Training.microbatches",
                "Set microbatches to a divisor of batch_size.",
                value=self.microbatches,
            )


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Decoding(Settings):
    """How the index answers.

    Attributes:
      beams: hypotheses kept; at least the widest level of the docids makes the search exhaustive.
      normalize: scores are log-probabilities over the "vocabulary", the "level" or the "constraint" (the tokens that
        may follow).
      max_query_length: tokens read of a query.
    """

    beams: int = setting(100, at_least=1)
    normalize: str = setting("level", choices=("vocabulary", "level", "constraint"))
    max_query_length: int = setting(64, at_least=3)

    @property
    def dev_beams(self) -> int:
        """Beams of the retrievals on dev."""
        return min(self.beams, DEV_BEAMS)


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    vectors: pathlib.Path,
    docids: pathlib.Path,
    vocabulary: pathlib.Path,
    examples: pathlib.Path,
    start: pathlib.Path | None,
    *,
    network: Network,
    settings: Training,
    dev_beams: int,
    dev_normalize: str,
    query_pooling: str = "mean",
) -> None:
    """Trains the network. Interrupted, it goes on from its latest checkpoint with the same result.

    Args:
      vectors: of documents or passages; docids' embeddings start from them where `network` says so.
      start: a stage with a `DenseEncoder` in `encoder`, from whose side of queries the network's starts; None: from
        the encoder that `network` names.
      dev_beams, dev_normalize: of the retrievals on dev.
      query_pooling: how the documents' vectors are pooled, "mean" or "cls"; see `networks.make_network`.
    """
    ids, words = load_docids(docids), load_vocabulary(vocabulary)
    tower = None if start is None else networks.query_tower(DenseEncoder.load(start / "encoder"), network.dropout)
    module, pretrained = networks.make_network(network, words.size, ids, tower, query_pooling=query_pooling)
    document_vectors = np.asarray(load_vectors(vectors))
    named = load_docids_of_vectors(docids)
    codebooks = load_codewords(docids)
    params = networks.initial_parameters(
        module, network, pretrained, named, document_vectors, settings.seed, codebooks=codebooks
    )
    dataset = load_dataset(corpus)
    evaluate = None
    if settings.dev_queries and len(dataset.qrels.get("dev", ())):
        retriever = GenerativeRetriever.over_docids(
            module, params, words, ids,
            transform=dataset.transform, beams=dev_beams, normalize=dev_normalize,
            max_query_length=settings.max_input_length,  # as training reads them; not what the index is told later
        )  # fmt: skip
        evaluate = training.DevEvaluation(retriever, dataset, settings.dev_queries)
    task = Task(
        model=models.EncoderDecoderModel(
            module=module,
            label_smoothing=settings.label_smoothing,
            rdrop=settings.rdrop or 0.0,
            normalize=settings.normalize,
            levels=ids.levels,
            eos_id=ids.eos_id,
        ),
        batches=make_batches(
            TokenStore.load(examples / "tokens"),
            batch_size=settings.batch_size,
            lengths={"inputs": settings.row_length, "targets": settings.row_targets},
            rates=settings.rates,
            seed=settings.seed,
        ),
        initial_params=params,
        multipliers=networks.learning_rate_multipliers(module, network, pretrained, codewords=codebooks is not None),
        evaluate=evaluate,
    )
    network_folder.save_network(place.folder, module, training.fit(place, task, settings).params)


@stage()
def untrained(
    place: Place,
    vectors: pathlib.Path,
    docids: pathlib.Path,
    vocabulary: pathlib.Path,
    start: pathlib.Path | None,
    *,
    network: Network,
    query_pooling: str = "mean",
) -> None:
    """The network as it is before any training; see `model`."""
    ids, words = load_docids(docids), load_vocabulary(vocabulary)
    tower = None if start is None else networks.query_tower(DenseEncoder.load(start / "encoder"), network.dropout)
    module, pretrained = networks.make_network(network, words.size, ids, tower, query_pooling=query_pooling)
    named = load_docids_of_vectors(docids)
    document_vectors = np.asarray(load_vectors(vectors))
    params = networks.initial_parameters(
        module, network, pretrained, named, document_vectors, seed=0, codebooks=load_codewords(docids)
    )
    network_folder.save_network(place.folder, module, params)
    training.keep_curves(place)


def model_of(
    corpus: Stage,
    vectors: Stage,
    docids: Stage,
    vocabulary: Stage,
    examples: Stage | None,
    network: Network,
    settings: Training | None,
    decoding: Decoding,
    start: Stage | None = None,
    query_pooling: str = "mean",
) -> Stage:
    """The stage of the network, trained; or as it starts, where `settings` is None."""
    if settings is None:
        made = untrained(vectors, docids, vocabulary, start, network=network, query_pooling=query_pooling)
        return made.named(model.name)
    return model(
        corpus, vectors, docids, vocabulary, examples, start,
        network=network, settings=settings, dev_beams=decoding.dev_beams, dev_normalize=decoding.normalize,
        query_pooling=query_pooling,
    )  # fmt: skip


@stage()
def index(
    place: Place,
    corpus: pathlib.Path,
    docids: pathlib.Path,
    vocabulary: pathlib.Path,
    model: pathlib.Path,
    *,
    decoding: Decoding,
) -> None:
    """All that answering needs, in one folder."""
    dataset = load_dataset(corpus)
    module, params = network_folder.load_network(model)
    retriever = GenerativeRetriever.over_docids(
        module,
        params,
        load_vocabulary(vocabulary),
        load_docids(docids),
        transform=dataset.transform,
        beams=decoding.beams,
        normalize=decoding.normalize,
        max_query_length=decoding.max_query_length,
    )
    indexes.fill(place.folder, retriever, dataset.corpus)
    place.notes.update({"documents": len(dataset.corpus), "bytes": training.folder_bytes(place.folder)})


def provenance(decoding: Decoding, pseudo_queries: str, *seeds: int) -> dict[str, Any]:
    """What reports say of a system that writes docids."""
    return {"pseudo_queries": pseudo_queries, "normalizer": decoding.normalize, "seeds": sorted(set(seeds))}

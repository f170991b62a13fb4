"""The generator of queries: its settings, the stage that trains it, and its folder."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.copy_network import CopyNetwork
from gr_jax.models.copying import CopyNetworkModel
from gr_jax.stages import copy_networks
from gr_jax.stages.asked import any_answered
from gr_jax.stages.copy_networks import CopyTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.settings import setting
from gr_jax.stages.training import fit
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.doct5query import generation
from gr_jax.text import Vocabulary
from gr_jax.training.source_batches import SourceTargets, TargetBatches
from gr_jax.training.task import Task

# Tokens of a row of dev, which has few queries of a document.
_DEV_TARGETS = 48
_DEV_LOSS = "dev/loss"


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class QueryGenerating(CopyTraining):
    """The generator of queries and its training; and all that `CopyTraining` has.

    Attributes:
      batch_size: documents of an update.
      multipliers: for an encoder that is trained alone.
      evaluate_every: steps between measurements of −log p of dev queries; None measures at the end only.
      dev_queries: None, for `dev_documents` says how much of dev is measured on.
      keep_best: "dev/loss", whose lowest value chooses the parameters; None keeps the last.
      encoder: a pretrained one is not trained further, unless `frozen` is False.
      document_tokens, query_tokens: read and written of each.
      made: pseudo-queries of a document that training adds to its own: they teach to copy, and how questions look.
      others: documents without training queries that are read too, for each with some.
      dev_documents: so many of the documents that dev queries ask for are measured on.
    """

    steps: int = 500
    weight_decay: float = 0.01
    dev_queries: int | None = None
    keep_best: str | None = setting(_DEV_LOSS, choices=(None, _DEV_LOSS))
    checkpoint_every: int | None = 100
    document_tokens: int = setting(160, at_least=1)
    made: Mapping[str, int] = setting({"cloze": 4}, at_least=0)
    others: float = setting(0.25, at_least=0)
    dev_documents: int = setting(256, at_least=1)

    def check(self) -> None:
        super().check()
        if self.row_targets < self.query_tokens:
            raise InputError(
                "a query does not fit QueryGenerating.row_targets",
                f"Set it to QueryGenerating.query_tokens = {self.query_tokens} or more.",
                value=self.row_targets,
            )
        if self.dev_queries is not None:
            raise InputError(
                "a generator is measured on documents with all of their dev queries",
                "Leave QueryGenerating.dev_queries out, and set QueryGenerating.dev_documents.",
                value=self.dev_queries,
            )


def check_questions(system: str, dataset: Dataset) -> None:
    """Raises InputError where a generator of a system of this name has nothing to learn from."""
    if not len(dataset.qrels.get("train", ())):
        raise InputError(
            f"{system} learns to write queries from training questions, and there are none",
            "Add queries.jsonl and qrels/train.tsv, or use a system that needs none.",
        )
    if not any_answered(dataset):
        raise InputError(
            f"{system} learns to write queries from what answers training questions, and no grade is above 0",
            "Give documents that answer a grade of 1 or more in qrels/train.tsv.",
        )


@stage(trains=True)
def generator(place: Place, corpus: pathlib.Path, vocabulary: pathlib.Path, *, settings: QueryGenerating) -> None:
    """Trains the generator on the train split. Interrupted, it goes on from its latest checkpoint with the same
    result."""
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    data = _queries_of(dataset, words, settings, "train")
    asked = (query for queries in data.kinds[generation.ASKED] for query in queries)
    own = copy_networks.frequent_words(asked, settings.words, words.eos_id)
    module, params, frozen = copy_networks.make_network(settings, words.size, own)
    model = CopyNetworkModel(module, tuple(own))

    def batches(part: SourceTargets, name: str, **changes: Any) -> TargetBatches:
        if frozen:  # what never changes is computed once
            states = copy_networks.encode_sources(
                module, params, part.sources, place.work / f"states_{name}", progress=True
            )
            part = dataclasses.replace(part, encoded=states)
        return TargetBatches(part, batch_size=settings.batch_size, eos_id=words.eos_id, **changes)

    dev = None
    if len(dataset.qrels.get("dev", ())):
        part = _sample(_queries_of(dataset, words, settings, "dev"), settings.dev_documents)
        # Whoever measures does so on all of dev.
        dev = batches(part, "dev", targets=max(_DEV_TARGETS, settings.query_tokens), epochs=1, process=(0, 1))

    def evaluate(params: Mapping[str, Any], step: int) -> dict[str, float]:
        del step
        return {_DEV_LOSS: generation.mean_loss(model, params, dev)}

    task = Task(
        model=model,
        batches=batches(data, "train", targets=settings.row_targets, seed=settings.seed),
        initial_params=params,
        multipliers={"token_embedder": 0.0, "encoder": 0.0} if frozen else {},
        evaluate=None if dev is None else evaluate,
        mode="min",
    )
    save_generator(place.folder, module, fit(place, task, settings).params, own)
    for name in ("train", "dev"):
        shutil.rmtree(place.work / f"states_{name}", ignore_errors=True)


def save_generator(folder: Any, module: CopyNetwork, params: Mapping[str, Any], words: list[int]) -> None:
    """Writes a generator into a folder that somebody else finishes."""
    config = {
        "encoder": network_folder.encoder_to_json(module.encoder_config),
        "decoder": network_folder.encoder_to_json(module.decoder_config),
        "words": [int(word) for word in words],
    }
    network_folder.write(folder, config, params)


def load_generator(folder: Any) -> tuple[CopyNetwork, dict, tuple[int, ...]]:
    """Reads what `save_generator` wrote: network, parameters, words.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    words: list[int] = []

    def make(config: Mapping[str, Any]) -> CopyNetwork:
        words.extend(config["words"])
        encoder, decoder = (network_folder.encoder_from_json(config[name]) for name in ("encoder", "decoder"))
        return CopyNetwork(encoder, decoder, len(words))

    module, params = network_folder.read(folder, make)
    return module, params, tuple(words)


def _queries_of(dataset: Dataset, vocabulary: Vocabulary, settings: QueryGenerating, split: str) -> SourceTargets:
    learning = split == "train"
    return generation.document_queries(
        dataset,
        vocabulary,
        split=split,
        made=settings.made if learning else {},
        document_tokens=settings.document_tokens,
        query_tokens=settings.query_tokens,
        seed=settings.seed,
        others=settings.others if learning else 0.0,
    )


def _sample(data: SourceTargets, most: int) -> SourceTargets:
    """So many of the documents, always the same."""
    return data.subset(np.sort(np.random.default_rng(0).permutation(len(data.sources))[:most]))

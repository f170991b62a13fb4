"""The generator of queries: its settings, the stage that trains it, and its folder."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from gr_jax import models
from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.stages import pretrained as pretrained_lib
from gr_jax.stages import vocabulary as vocabularies
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.settings import check_heads, setting
from gr_jax.stages.training import Optimization, fit
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.doct5query import generation
from gr_jax.systems.doct5query.batches import DocumentQueries, QueryBatches
from gr_jax.systems.doct5query.network import QueryGenerator, QueryGeneratorModel
from gr_jax.text import Vocabulary
from gr_jax.training.task import Task

# Tokens of a row of dev, which has few queries of a document.
_DEV_TARGETS = 48
_DEV_LOSS = "dev/loss"


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class QueryGenerating(Optimization):
    """The generator of queries and its training; and all that `Optimization` has.

    Attributes:
      batch_size: documents of an update.
      multipliers: for an encoder from scratch alone.
      evaluate_every: steps between measurements of −log p of dev queries; None measures at the end only.
      dev_queries: None, for `dev_documents` says how much of dev is measured on.
      keep_best: "dev/loss", whose lowest value chooses the parameters; None keeps the last.
      encoder: "minilm" (pretrained, not trained further), "t5" (from scratch, of the sizes below), or a Hugging Face
        folder of T5 or BERT.
      vocabulary, vocabulary_size: see `Network`.
      width, encoder_layers, decoder_layers, heads, mlp_width, dropout: see `Network`.
      words: tokens that can be written without being copied: those of which training queries are most often made.
      document_tokens, query_tokens: read and written of each.
      made: pseudo-queries of a document that training adds to its own: they teach to copy, and how questions look.
      others: documents without training queries that are read too, for each with some.
      row_targets: tokens of the queries of one document in an update.
      dev_documents: so many of the documents that dev queries ask for are measured on.
    """

    steps: int = 500
    weight_decay: float = 0.01
    dev_queries: int | None = None
    keep_best: str | None = setting(_DEV_LOSS, choices=(None, _DEV_LOSS))
    checkpoint_every: int | None = 100
    encoder: str = setting("minilm", identity=pretrained_lib.identity)
    vocabulary: str = setting("pretrained", choices=vocabularies.KINDS)
    vocabulary_size: int = setting(8000, at_least=1)
    width: int = setting(384, at_least=1)
    encoder_layers: int = setting(2, at_least=1)
    decoder_layers: int = setting(2, at_least=1)
    heads: int = setting(6, at_least=1)
    mlp_width: int = setting(1024, at_least=1)
    dropout: float = setting(0.1, at_least=0, below=1)
    words: int = setting(2048, at_least=2)
    document_tokens: int = setting(160, at_least=1)
    query_tokens: int = setting(24, at_least=2)
    made: Mapping[str, int] = setting({"cloze": 4}, at_least=0)
    others: float = setting(0.25, at_least=0)
    row_targets: int = 96
    dev_documents: int = setting(256, at_least=1)

    def check(self) -> None:
        check_heads("QueryGenerating", self.width, self.heads)
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
        if self.multipliers is not None and self.encoder != "t5":
            raise InputError(
                "a pretrained encoder of a generator stays as it is, which is all that multipliers say there",
                "Leave QueryGenerating.multipliers out.",
                value=dict(self.multipliers),
            )


@stage(trains=True)
def generator(place: Place, corpus: pathlib.Path, vocabulary: pathlib.Path, *, settings: QueryGenerating) -> None:
    """Trains the generator on the train split. Interrupted, it goes on from its latest checkpoint with the same
    result."""
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    data = _queries_of(dataset, words, settings, "train")
    own = generation.frequent_words(data, words.eos_id, settings.words)
    module, params, frozen = _make_network(settings, words.size, own)
    model = QueryGeneratorModel(module, tuple(own))

    def batches(part: DocumentQueries, name: str, **changes: Any) -> QueryBatches:
        if frozen:  # what never changes is computed once
            states = generation.encode_documents(
                module, params, part.documents, place.work / f"states_{name}", progress=True
            )
            part = dataclasses.replace(part, encoded=states)
        return QueryBatches(part, batch_size=settings.batch_size, eos_id=words.eos_id, **changes)

    dev = None
    if len(dataset.qrels.get("dev", ())):
        part = _sample(_queries_of(dataset, words, settings, "dev"), settings.dev_documents)
        dev = batches(part, "dev", targets=max(_DEV_TARGETS, settings.query_tokens), epochs=1)

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


def save_generator(folder: Any, module: QueryGenerator, params: Mapping[str, Any], words: list[int]) -> None:
    """Writes a generator into a folder that somebody else finishes."""
    config = {
        "encoder": network_folder.encoder_to_json(module.encoder_config),
        "decoder": network_folder.encoder_to_json(module.decoder_config),
        "words": [int(word) for word in words],
    }
    network_folder.write(folder, config, params)


def load_generator(folder: Any) -> tuple[QueryGenerator, dict, tuple[int, ...]]:
    """Reads what `save_generator` wrote: network, parameters, words.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    words: list[int] = []

    def make(config: Mapping[str, Any]) -> QueryGenerator:
        words.extend(config["words"])
        encoder, decoder = (network_folder.encoder_from_json(config[name]) for name in ("encoder", "decoder"))
        return QueryGenerator(encoder, decoder, len(words))

    module, params = network_folder.read(folder, make)
    return module, params, tuple(words)


def _queries_of(dataset: Dataset, vocabulary: Vocabulary, settings: QueryGenerating, split: str) -> DocumentQueries:
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


def _sample(data: DocumentQueries, most: int) -> DocumentQueries:
    """So many of the documents, always the same."""
    chosen = np.sort(np.random.default_rng(0).permutation(len(data.documents))[:most])
    asked, made = ([queries[place] for place in chosen] for queries in (data.asked, data.made))
    return DocumentQueries(data.documents[chosen], asked, made)


def _make_network(
    settings: QueryGenerating, vocabulary_size: int, words: list[int]
) -> tuple[QueryGenerator, dict, bool]:
    """The network, its first parameters, and whether its encoder is pretrained and stays as it is."""
    decoder = models.T5Config(
        vocab_size=vocabulary_size,
        emb_dim=settings.width,
        num_heads=settings.heads,
        head_dim=settings.width // settings.heads,
        num_encoder_layers=settings.encoder_layers,
        num_decoder_layers=settings.decoder_layers,
        mlp_dim=settings.mlp_width,
        mlp_activations=("gelu", "linear"),
        dropout_rate=settings.dropout,
    )
    if settings.encoder == "t5":
        return *generation.make_generator(decoder, None, words, decoder, settings.seed), False
    from gr_jax.interop import huggingface

    folder = pretrained_lib.pretrained_folder(settings.encoder)
    load = huggingface.load_t5 if huggingface.model_type(folder) == "t5" else huggingface.load_bert
    encoder, pretrained = load(folder, dropout_rate=settings.dropout)
    return *generation.make_generator(encoder, pretrained, words, decoder, settings.seed), True

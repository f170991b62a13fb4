"""The generator of queries: its settings, the stage that trains it, and its folder."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from gr_jax import models
from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.models import network_folder
from gr_jax.models.query_generator import QueryGenerator, QueryGeneratorModel
from gr_jax.recipes import bindings, documents, examples, pair_training, query_generation
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.settings import Settings, at_least, check_heads, one_of
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.training.loop import train
from gr_jax.training.optimizers import Schedule, adamw
from gr_jax.training.query_batches import DocumentQueries, QueryBatches
from gr_jax.training.task import Task, TrainSettings

# Tokens of a row of dev, which has few queries of a document.
_DEV_TARGETS = 48


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class QueryGenerating(Settings):
    """The generator of queries and its training.

    Attributes:
      encoder: "minilm" (pretrained, not trained further), "t5" (from scratch, of the sizes below), or a Hugging Face
        folder of T5 or BERT.
      vocabulary, vocabulary_size: see `Network`.
      width, encoder_layers, decoder_layers, heads, mlp_width, dropout: see `Network`.
      words: tokens that can be written without being copied: those of which training queries are most often made.
      document_tokens, query_tokens: read and written of each.
      made: pseudo-queries of a document that training adds to its own: they teach to copy, and how questions look.
      others: documents without training queries that are read too, for each with some.
      steps: updates.
      batch_size: documents of an update.
      row_targets: tokens of the queries of one document in an update.
      learning_rate, warmup_steps, weight_decay, clip: of AdamW; the rate falls linearly.
      evaluate_every: steps between measurements of −log p of dev queries, of which the best parameters are kept.
      dev_documents: so many of the documents that dev queries ask for are measured on.
      checkpoint_every: steps between checkpoints.
      seed: of initialisation, shuffling and dropout.
    """

    encoder: str = "minilm"
    vocabulary: str = "pretrained"
    vocabulary_size: int = 8000
    width: int = 384
    encoder_layers: int = 2
    decoder_layers: int = 2
    heads: int = 6
    mlp_width: int = 1024
    dropout: float = 0.1
    words: int = 2048
    document_tokens: int = 160
    query_tokens: int = 24
    made: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"cloze": 4})
    others: float = 0.25
    steps: int = 500
    batch_size: int = 32
    row_targets: int = 96
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    weight_decay: float = 0.01
    clip: float = 1.0
    evaluate_every: int = 100
    dev_documents: int = 256
    checkpoint_every: int = 100
    seed: int = 0

    def __post_init__(self):
        one_of("QueryGenerating.vocabulary", self.vocabulary, "pretrained", "sentencepiece", "byte")
        at_least(1, width=self.width, heads=self.heads, decoder_layers=self.decoder_layers, mlp_width=self.mlp_width)
        check_heads("QueryGenerating", self.width, self.heads)
        at_least(1, encoder_layers=self.encoder_layers, document_tokens=self.document_tokens)
        at_least(0, evaluate_every=self.evaluate_every, checkpoint_every=self.checkpoint_every)
        at_least(2, words=self.words, query_tokens=self.query_tokens)
        at_least(1, batch_size=self.batch_size, dev_documents=self.dev_documents)
        at_least(0, steps=self.steps, warmup_steps=self.warmup_steps)
        if self.row_targets < self.query_tokens:
            raise InputError(
                "a query does not fit QueryGenerating.row_targets",
                f"Set it to QueryGenerating.query_tokens = {self.query_tokens} or more.",
                value=self.row_targets,
            )


def generator_stage(corpus: Stage, vocabulary: Stage, settings: QueryGenerating) -> Stage:
    """Trains the generator on the train split. Interrupted, it goes on from its latest checkpoint."""

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        data = _queries_of(dataset, words, settings, "train")
        own = query_generation.frequent_words(data, words.eos_id, settings.words)
        module, params, frozen = _make_network(settings, words.size, own)
        if settings.steps:
            params = _train(place, dataset, words, data, QueryGeneratorModel(module, tuple(own)), params, frozen)
        save_generator(place.folder, module, params, own)
        pair_training.finish(place, before, started)

    def _train(
        place: Workplace,
        dataset: Dataset,
        words: Any,
        data: DocumentQueries,
        model: QueryGeneratorModel,
        params: dict,
        frozen: bool,
    ) -> Any:
        def batches(part: DocumentQueries, name: str, **changes: Any) -> QueryBatches:
            if frozen:  # what never changes is computed once
                states = query_generation.encode_documents(
                    model.module, params, part.documents, place.work / f"states_{name}", progress=True
                )
                part = dataclasses.replace(part, encoded=states)
            return QueryBatches(part, batch_size=settings.batch_size, eos_id=words.eos_id, **changes)

        dev = None
        if len(dataset.qrels.get("dev", ())):
            part = _sample(_queries_of(dataset, words, settings, "dev"), settings.dev_documents)
            dev = batches(part, "dev", targets=max(_DEV_TARGETS, settings.query_tokens), epochs=1)

        def evaluate(params: Mapping[str, Any], step: int) -> dict[str, float]:
            return {"dev/loss": query_generation.mean_loss(model, params, dev)}

        schedule = Schedule(
            settings.learning_rate, min(settings.warmup_steps, settings.steps // 2), "linear", settings.steps
        )
        task = Task(
            model,
            batches(data, "train", targets=settings.row_targets, seed=settings.seed),
            initial_params=params,
            multipliers={"token_embedder": 0.0, "encoder": 0.0} if frozen else {},
            evaluate=None if dev is None else evaluate,
            keep_best="dev/loss" if dev is not None else "",
            mode="min",
        )
        training = TrainSettings(
            steps=settings.steps,
            optimizer=adamw(schedule, weight_decay=settings.weight_decay, clip=settings.clip),
            seed=settings.seed,
            eval_every=settings.evaluate_every,
            checkpoint_every=settings.checkpoint_every,
        )
        result = train(task, training, model_dir=place.work, progress=True)
        dev_losses = [record for record in result.history if record["step"] == result.step]
        place.meta.update({"step": result.step, "last_step": result.last_step, "dev": dev_losses})
        for name in ("train", "dev"):
            shutil.rmtree(place.work / f"states_{name}", ignore_errors=True)
        return result.params

    config = settings.as_config() | documents.encoder_config(settings.encoder) | bindings.of_training()
    return Stage("generator", config, (corpus, vocabulary), make)


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


def _queries_of(dataset: Dataset, vocabulary: Any, settings: QueryGenerating, split: str) -> DocumentQueries:
    learning = split == "train"
    return query_generation.document_queries(
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
        return *query_generation.make_generator(decoder, None, words, decoder, settings.seed), False
    from gr_jax.interop import huggingface

    folder = documents.pretrained_folder(settings.encoder)
    load = huggingface.load_t5 if huggingface.model_type(folder) == "t5" else huggingface.load_bert
    encoder, pretrained = load(folder, dropout_rate=settings.dropout)
    return *query_generation.make_generator(encoder, pretrained, words, decoder, settings.seed), True

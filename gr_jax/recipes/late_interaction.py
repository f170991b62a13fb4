"""Late interaction from documents to a searchable index: ColBERT (Khattab & Zaharia 2020)."""

from __future__ import annotations

import os
import shutil
import string
import time
from collections.abc import Callable, Sequence
from typing import Any

import gin
import jax
import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import models
from gr_jax.dense.token_vectors import TokenVectors
from gr_jax.errors import InputError
from gr_jax.models.late_interaction import (
    LateInteraction,
    LateInteractionConfig,
    LateInteractionModel,
    principal_projection,
)
from gr_jax.recipes import bindings, dense_index, documents, encoders, examples, mining, pair_training
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Lexical, Mining
from gr_jax.recipes.interaction_settings import Interaction
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import PseudoQueries
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Searcher, index
from gr_jax.retrievers.late_interaction import LateInteractionRetriever
from gr_jax.retrievers.token_encoder import TokenEncoder
from gr_jax.text import Vocabulary

# [MASK] and two tokens that no text has, in BERT's uncased vocabulary.
_BERT_UNCASED, _BERT_TOKENS = 30522, (103, 1, 2)
# Documents whose states decide the principal axes, and how many are read at a time.
_SAMPLED, _AT_ONCE = 256, 16
# How much faster than the encoder the new parameters learn.
_FASTER = {"projection": 10.0, "token_weight": 20.0, "whole_text_weight": 1000.0}


def colbert_stages(
    source: Source,
    *,
    name: str = "ColBERT",
    settings: Encoders,
    interaction: Interaction,
    pseudo_queries: PseudoQueries,
    mined: Mining,
    training: ContrastiveTraining,
    lexical: Lexical,
) -> list[Stage]:
    """The stages of `colbert`, in order."""
    pair_training.check_settings("late interaction", settings, mined)
    corpus = documents.corpus_stage(source)
    vocabulary = examples.vocabulary_stage(corpus, settings)
    bm25 = mining.bm25_stage(corpus, lexical)
    learning: list[Stage] = []  # what only training reads
    if training.steps:
        made = documents.pseudo_queries_stage(corpus, pseudo_queries)
        taught = training.taught(settings)
        pairs = mining.examples_stage(corpus, made, vocabulary, taught, training)
        wrong = mining.negatives_stage(corpus, made, vocabulary, pairs, bm25, None, taught, mined, training)
        learning = [made, pairs, wrong]
    model = model_stage(corpus, vocabulary, learning, settings, interaction, mined, training)
    encoded = vectors_stage(corpus, model, interaction)
    built = index_stage(corpus, model, encoded, bm25, interaction)
    provenance = pair_training.provenance(pseudo_queries, mined, training)
    judged = dense_index.results_stage(name, corpus, bm25, built, {name: model}, None, provenance=provenance)
    return [corpus, vocabulary, bm25, *learning, model, encoded, built, judged]


def make_network(
    settings: Encoders, interaction: Interaction, vocabulary: Vocabulary
) -> tuple[LateInteraction, dict | None]:
    """The network, and the encoder's pretrained parameters (None where it starts from scratch)."""
    config, pretrained = encoders.make_encoders(settings, vocabulary.size + len(_BERT_TOKENS))
    stack = config.encoder
    mask, query_marker, document_marker = _special_tokens(vocabulary, stack.vocab_size, interaction)
    skipped = set()
    if interaction.skip_punctuation:
        ids = [vocabulary.encode(symbol) for symbol in string.punctuation]
        skipped = {found[-1] for found in ids if found and found[-1] != vocabulary.unk_id}
    return LateInteraction(
        LateInteractionConfig(
            stack,
            dimension=interaction.dimension,
            query_length=interaction.augmentation,
            mask_token=mask,
            query_marker=query_marker if interaction.markers else None,
            document_marker=document_marker if interaction.markers else None,
            prefix_length=len(vocabulary.prefix),
            skipped_tokens=tuple(sorted(skipped)),
            whole_text=interaction.whole_text,
            whole_text_weight=interaction.whole_text_weight,
            token_weights=interaction.token_weights,
            temperature=interaction.temperature,
        )
    ), pretrained


def _special_tokens(vocabulary: Vocabulary, rows: int, interaction: Interaction) -> tuple[int, ...]:
    """[MASK], and the markers of queries and documents."""
    if vocabulary.size == _BERT_UNCASED:
        return _BERT_TOKENS
    if rows >= vocabulary.size + len(_BERT_TOKENS):  # rows of the token table that no text uses; T5 has 28
        return tuple(range(vocabulary.size, vocabulary.size + len(_BERT_TOKENS)))
    if interaction.markers or interaction.augmentation:
        raise InputError(
            "this encoder's vocabulary has no tokens to spare for markers and [MASK]",
            "Set Interaction.markers = False and Interaction.augmentation = 0.",
        )
    return 0, 0, 0


def with_principal_axes(encoder: TokenEncoder, texts: Sequence[str]) -> dict[str, Any]:
    """The encoder's parameters, its projection turned to the principal axes of the states of these documents' tokens.

    Raises:
      InputError: there are not so many axes.
    """
    config, params = encoder.module.config, dict(encoder.params)
    if config.dimension > config.encoder.emb_dim:
        raise InputError(
            f"an encoder of {config.encoder.emb_dim} numbers has not so many principal axes",
            'Lower Interaction.dimension, or set Interaction.projection = "random".',
            value=config.dimension,
        )
    read = {name: params[name] for name in ("token_embedder", "encoder")}
    apply = jax.jit(models.TextEncoder(config.encoder).apply)
    rows, states = encoder.tokenize(texts, "document"), []
    for start in range(0, len(rows), _AT_ONCE):
        batch = np.zeros((_AT_ONCE, max(map(len, rows))), np.int32)
        for place, row in enumerate(rows[start : start + _AT_ONCE]):
            batch[place, : len(row)] = row
        found: Any = apply({"params": read}, batch)
        states.append(np.asarray(found, np.float32)[batch != 0])
    return params | {"projection": {"kernel": principal_projection(np.concatenate(states), config.dimension)}}


def model_stage(
    corpus: Stage,
    vocabulary: Stage,
    learning: Sequence[Stage],
    settings: Encoders,
    interaction: Interaction,
    mined: Mining,
    training: ContrastiveTraining,
) -> Stage:
    """Trains the network. Interrupted, it goes on from its latest checkpoint with the same result."""

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        module, pretrained = make_network(settings, interaction, words)
        tokens = np.ones((1, 8), np.int32)
        params = jax.jit(module.init)(jax.random.key(training.seed), tokens, tokens)["params"]
        encoder = TokenEncoder(
            module,
            pair_training.with_pretrained(params, pretrained),
            words,
            query_length=settings.query_length,
            document_length=settings.document_length,
            transform=dataset.transform,
        )
        if interaction.projection == "principal":
            sampled = np.random.default_rng(training.seed).permutation(len(dataset.corpus))[:_SAMPLED]
            texts = [dataset.corpus.contents[number] for number in np.sort(sampled).tolist()]
            encoder = encoder.with_parameters(with_principal_axes(encoder, texts))
        if training.steps:
            judged = pair_training.judged_queries(place, dataset, training)
            evaluate = None
            if judged is not None:
                searched = pair_training.searched(dataset, judged, training)
                taught = training.taught(settings)
                short = encoder.with_lengths(taught.query_length, taught.document_length)
                reencoded = Reencoded(short, searched)
                evaluate = pair_training.evaluation(reencoded, dataset, judged, training, searched)
            result = pair_training.fit(
                place,
                LateInteractionModel(module, chunks=training.chunks, **pair_training.teachers_losses(training)),
                encoder.params,
                encoders=training.taught(settings),
                mined=mined,
                training=training,
                multipliers=pair_training.learning_rate_multipliers(encoder.params, pretrained, _FASTER),
                evaluate=evaluate,
            )
            encoder = encoder.with_parameters(result.params)
        encoder.save(place.folder / "encoder")
        pair_training.finish(place, before, started)

    built = {name: value for name, value in interaction.as_config().items() if name not in _OF_INDEX}
    config: dict[str, Any] = {
        "encoders": settings.as_config() | documents.encoder_config(settings.encoder),
        "interaction": built,
        "training": training.as_config() | pair_training.default_multipliers(training, _FASTER),
        "mining": {"shares": dict(mined.shares)},
    }
    config |= bindings.of_training(LateInteractionConfig, LateInteractionModel)
    return Stage("model", config, (corpus, vocabulary, *learning), make)


# Settings that training does not see.
_OF_INDEX = ("precision", "first", "depth")


class Reencoded:
    """Late interaction with any parameters: the documents are encoded anew."""

    def __init__(self, encoder: TokenEncoder, corpus: corpus_lib.Corpus):
        self._encoder, self._corpus = encoder, corpus

    def with_parameters(self, params: Any) -> LateInteractionRetriever:
        """A retriever around these parameters, over all documents."""
        encoder = self._encoder.with_parameters(params)
        return LateInteractionRetriever(encoder, encoder.encode_documents(self._corpus.contents))


def vectors_stage(corpus: Stage, model: Stage, interaction: Interaction) -> Stage:
    """The token vectors of every document, memory-mapped; interrupted, it goes on behind the last finished shard."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        encoder = TokenEncoder.load(place.inputs["model"] / "encoder")
        vectors = encoder.encode_documents(
            dataset.corpus.contents,
            place.folder / "vectors",
            precision=interaction.precision,
            corpus=dataset.corpus.fingerprint,
            work=place.work,
            progress=True,
        )
        place.meta.update({"documents": vectors.num_documents, "vectors": vectors.num_vectors})
        shutil.rmtree(place.work, ignore_errors=True)

    return Stage("token_vectors", {"precision": interaction.precision}, (corpus, model), make)


def index_stage(corpus: Stage, model: Stage, encoded: Stage, bm25: Stage, interaction: Interaction) -> Stage:
    """All that answering needs, in one folder."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        retriever = LateInteractionRetriever(
            TokenEncoder.load(place.inputs["model"] / "encoder"),
            TokenVectors.load(place.inputs["token_vectors"] / "vectors"),
            first=mining.load_bm25(place.inputs["bm25"], dataset) if interaction.first else None,
            depth=interaction.depth,
        )
        index.fill(place.folder, retriever, dataset.corpus)
        size = sum(file.stat().st_size for file in place.folder.rglob("*") if file.is_file())
        place.meta.update({"documents": len(dataset.corpus), "bytes": size})

    config = {"first": interaction.first, "depth": interaction.depth}
    inputs = (corpus, model, encoded, *([bm25] if interaction.first else []))
    return Stage("index", config, inputs, make)


@gin.configurable(module="gr_jax.recipes")
def colbert(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "ColBERT",
    encoders: Encoders | None = None,
    interaction: Interaction | None = None,
    pseudo_queries: PseudoQueries | None = None,
    mined: Mining | None = None,
    training: ContrastiveTraining | None = None,
    lexical: Lexical | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Trains a network that gives every token a vector, encodes the documents, builds and measures the index.

    Args:
      source: a BEIR folder's path, or a `Source`.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      encoders, interaction, pseudo_queries, mined, training, lexical: settings; None takes the defaults (under gin:
        what gin binds).
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
        lambda found: colbert_stages(
            found,
            name=name,
            settings=encoders or Encoders(),
            interaction=interaction or Interaction(),
            pseudo_queries=pseudo_queries or PseudoQueries(),
            mined=mined or Mining(),
            training=training or ContrastiveTraining(),
            lexical=lexical or Lexical(),
        ),
        model_dir,
        shared_dir=shared_dir,
        until=until,
        say=say,
    )

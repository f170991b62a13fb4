"""BM25 → cross-encoder (Nogueira & Cho 2019), from documents to a searchable index."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import gin
import jax
import numpy as np

from gr_jax import retrievers
from gr_jax.corpus import Corpus
from gr_jax.errors import InputError
from gr_jax.models.cross_encoder import CrossEncoder, CrossEncoderConfig, CrossEncoderModel
from gr_jax.recipes import bindings, dense_index, documents, encoders, examples, mining, pair_training
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Lexical, Mining
from gr_jax.recipes.interaction_settings import Crossing
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import PseudoQueries
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Searcher, index
from gr_jax.retrievers.cross_encoder import CrossEncoderScorer
from gr_jax.retrievers.rerank import RerankRetriever, pair_text
from gr_jax.text import Vocabulary, get_transform
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.token_store import TokenStore, write_token_store

# How much faster than the encoder the new parameters learn.
_FASTER = {"score": 10.0, "pooler": 10.0, "similarity_scale": 200.0, "max_sim_scale": 200.0}


def bm25_cross_encoder_stages(
    source: Source,
    *,
    name: str = "BM25 → cross-encoder",
    settings: Encoders,
    crossing: Crossing,
    pseudo_queries: PseudoQueries,
    mined: Mining,
    training: ContrastiveTraining,
    lexical: Lexical,
) -> list[Stage]:
    """The stages of `bm25_cross_encoder`, in order."""
    pair_training.check_settings("a cross-encoder", settings, mined)
    if training.chunks > 1:
        raise InputError(
            "a cross-encoder's pairs do not share a loss that would be computed in chunks",
            "Set ContrastiveTraining.chunks = 1, and a smaller batch_size where memory ends.",
            value=training.chunks,
        )
    if training.steps and not training.negatives:
        raise InputError(
            "a cross-encoder learns from a query's own negatives alone",
            "Set ContrastiveTraining.negatives to 1 or more.",
            value=training.negatives,
        )
    corpus = documents.corpus_stage(source)
    vocabulary = examples.vocabulary_stage(corpus, settings)
    bm25 = mining.bm25_stage(corpus, lexical)
    learning: list[Stage] = []  # what only training reads
    if training.steps:
        made = documents.pseudo_queries_stage(corpus, pseudo_queries)
        taught = training.taught(settings)
        pairs = mining.examples_stage(corpus, made, vocabulary, taught, training)
        texts = texts_stage(corpus, vocabulary, taught)
        wrong = mining.negatives_stage(corpus, made, vocabulary, pairs, bm25, None, taught, mined, training)
        learning = [made, pairs, texts, bm25, wrong]
    model = model_stage(corpus, vocabulary, learning, settings, crossing, mined, training)
    built = index_stage(corpus, bm25, model, crossing)
    provenance = pair_training.provenance(pseudo_queries, mined, training)
    judged = dense_index.results_stage(name, corpus, bm25, built, {name: model}, None, provenance=provenance)
    return [corpus, vocabulary, *([] if learning else [bm25]), *learning, model, built, judged]


def texts_stage(corpus: Stage, vocabulary: Stage, settings: Encoders) -> Stage:
    """Tokens of all documents as a pair has them: "title: text"."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        rewrite = get_transform(dataset.transform)
        rows = (Pair(rewrite(pair_text(one)), [number], "document") for number, one in enumerate(dataset.corpus))
        write_token_store(place.folder / "documents", rows, PairFeatures(words, settings.document_length))

    return Stage("pair_texts", {"length": settings.document_length}, (corpus, vocabulary), make, shared=True)


def make_network(settings: Encoders, crossing: Crossing, vocabulary: Vocabulary) -> tuple[CrossEncoder, dict | None]:
    """The network, and the encoder's pretrained parameters (None where it starts from scratch)."""
    config, pretrained = encoders.make_encoders(settings, vocabulary.size)
    network = CrossEncoderConfig(
        config.encoder,
        pooling=crossing.pooling,
        similarity=crossing.similarity,
        similarity_scale=crossing.similarity_scale,
        max_sim_scale=crossing.max_sim_scale,
        query_length=settings.query_length,
        prefix_length=len(vocabulary.prefix),
        dropout_rate=settings.dropout,
    )
    return CrossEncoder(network), pretrained


def make_scorer(module: CrossEncoder, params: Any, vocabulary: Vocabulary, settings: Encoders) -> CrossEncoderScorer:
    """The scorer of texts around a network, with the lengths of training."""
    return CrossEncoderScorer(
        module,
        params,
        vocabulary,
        query_length=settings.query_length,
        max_length=settings.query_length + settings.document_length - len(vocabulary.prefix),
    )


def model_stage(
    corpus: Stage,
    vocabulary: Stage,
    learning: Sequence[Stage],
    settings: Encoders,
    crossing: Crossing,
    mined: Mining,
    training: ContrastiveTraining,
) -> Stage:
    """Trains the cross-encoder; what is measured on dev is the ranking of BM25's first documents."""

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        module, pretrained = make_network(settings, crossing, words)
        row = np.ones((1, 8), np.int32)
        initial = jax.jit(module.init)(jax.random.key(training.seed), row, row)["params"]
        params = pair_training.with_pretrained(initial, pretrained)
        scorer = make_scorer(module, params, words, settings)
        if training.steps:
            judged = pair_training.judged_queries(place, dataset, training)
            evaluate = None
            if judged is not None:
                first = mining.load_bm25(place.inputs["bm25"], dataset)
                reranked = Reranked(first, scorer, dataset.corpus, crossing.depth, dataset.transform)
                evaluate = pair_training.evaluation(reranked, dataset, judged, training)
            taught = training.taught(settings)
            result = pair_training.fit(
                place,
                CrossEncoderModel(
                    module,
                    softmax=crossing.softmax,
                    pointwise=crossing.pointwise,
                    **pair_training.teachers_losses(training),
                ),
                params,
                encoders=taught,
                mined=mined,
                training=training,
                multipliers=pair_training.learning_rate_multipliers(params, pretrained, _FASTER),
                evaluate=evaluate,
                documents=TokenStore.load(place.inputs["pair_texts"] / "documents"),
            )
            scorer = scorer.with_parameters(result.params)
        scorer.save(place.folder / "scorer")
        pair_training.finish(place, before, started)

    config: dict[str, Any] = {
        "encoders": settings.as_config() | documents.encoder_config(settings.encoder),
        "crossing": crossing.as_config(),
        "training": training.as_config() | pair_training.default_multipliers(training, _FASTER),
        "mining": {"shares": dict(mined.shares)},
    }
    config |= bindings.of_training(CrossEncoderConfig, CrossEncoderModel)
    return Stage("model", config, (corpus, vocabulary, *learning), make)


class Reranked:
    """Reranking with any parameters."""

    def __init__(
        self, first: retrievers.Retriever, scorer: CrossEncoderScorer, corpus: Corpus, depth: int, transform: str
    ):
        self._first, self._scorer, self._corpus = first, scorer, corpus
        self._depth, self._transform = depth, transform

    def with_parameters(self, params: Any) -> RerankRetriever:
        """A retriever around these parameters."""
        scorer = self._scorer.with_parameters(params)
        return RerankRetriever(self._first, scorer, self._corpus, depth=self._depth, transform=self._transform)


def index_stage(corpus: Stage, bm25: Stage, model: Stage, crossing: Crossing) -> Stage:
    """Both stages and the documents, in one folder."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        retriever = RerankRetriever(
            mining.load_bm25(place.inputs["bm25"], dataset),
            CrossEncoderScorer.load(place.inputs["model"] / "scorer"),
            dataset.corpus,
            depth=crossing.depth,
            transform=dataset.transform,
        )
        index.fill(place.folder, retriever, dataset.corpus)
        size = sum(file.stat().st_size for file in place.folder.rglob("*") if file.is_file())
        place.meta.update({"documents": len(dataset.corpus), "bytes": size})

    return Stage("index", {"depth": crossing.depth}, (corpus, bm25, model), make)


@gin.configurable(module="gr_jax.recipes")
def bm25_cross_encoder(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "BM25 → cross-encoder",
    encoders: Encoders | None = None,
    crossing: Crossing | None = None,
    pseudo_queries: PseudoQueries | None = None,
    mined: Mining | None = None,
    training: ContrastiveTraining | None = None,
    lexical: Lexical | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Trains a network that reads query and document together, and puts it behind BM25.

    Args:
      source: a BEIR folder's path, or a `Source`.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      encoders, crossing, pseudo_queries, mined, training, lexical: settings; None takes the defaults (under gin: what
        gin binds).
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
        lambda found: bm25_cross_encoder_stages(
            found,
            name=name,
            settings=encoders or Encoders(),
            crossing=crossing or Crossing(),
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

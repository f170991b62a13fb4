"""The stage that trains a bi-encoder, with negatives from files or mined again while it trains."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gr_jax import corpus as corpus_lib
from gr_jax import dense, models
from gr_jax.recipes import bindings, documents, encoders, examples, mining, pair_training
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Mining
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.training import negatives as tables
from gr_jax.training.contrastive_batches import ContrastiveBatches, NegativeSource
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.token_store import TokenStore

# Batches whose queries are all shorter are padded to this only; each length is compiled.
_QUERY_LENGTHS = (32,)


def model_stage(
    corpus: Stage,
    vocabulary: Stage,
    learning: Sequence[Stage],
    settings: Encoders,
    mined: Mining,
    training: ContrastiveTraining,
) -> Stage:
    """Trains the encoders. Interrupted, it goes on from its latest checkpoint with the same result.

    Args:
      corpus, vocabulary: their stages.
      learning: pseudo-queries, pairs and negatives; none where nothing is trained.
      settings, mined, training: settings.
    """

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        config, pretrained = encoders.make_encoders(settings, words.size)
        params = encoders.initial_parameters(config, pretrained, training.seed)
        encoder = encoders.text_encoder(settings, config, params, words, dataset.transform)
        if training.steps:
            multipliers = training.multipliers
            if multipliers is None:
                multipliers = encoders.learning_rate_multipliers(config, pretrained)
            taught = encoders.text_encoder(training.taught(settings), config, params, words, dataset.transform)
            encoder = encoder.with_parameters(_train(place, taught, dataset, multipliers))
        encoder.save(place.folder / "encoder")
        pair_training.finish(place, before, started)

    def _train(
        place: Workplace, encoder: DenseEncoder, dataset: corpus_lib.Dataset, multipliers: Mapping[str, float]
    ) -> Any:
        queries, texts = mining.load_pairs(place.inputs["pairs"])
        known = mining.load_negatives(place.inputs["negatives"], mined)
        first = mining.first_table(known, mined, queries, len(texts))
        refresher = None
        if mined.refresh_every:
            planned = make_batches(queries, texts, first, training, encoder.lengths)
            mine = _miner(place, encoder, known, planned)
            refresher = RefreshedNegatives(first, mine, every=mined.refresh_every)
        judged = pair_training.judged_queries(place, dataset, training)
        evaluate = None
        if judged is not None:
            searched = pair_training.searched(dataset, judged, training)
            evaluate = pair_training.evaluation(Reencoded(encoder, searched), dataset, judged, training, searched)
        source: NegativeSource = first if refresher is None else refresher
        batches = make_batches(queries, texts, source, training, encoder.lengths)
        model = pair_training.bi_encoder_model(encoder.config, training)
        found = pair_training.run(place, model, encoder.params, batches, training, multipliers, evaluate, refresher)
        return found.params

    def _miner(
        place: Workplace, encoder: DenseEncoder, known: Mapping[str, tables.Negatives], planned: ContrastiveBatches
    ):
        """Mines of the queries that are trained on until the next table: which they are is known before."""

        def mine(params: Mapping[str, Any], due: int) -> tables.Negatives:
            dataset, asked = mining.load_asked(place, training)
            current, rows = encoder.with_parameters(params), planned.rows_of(due, due + mined.refresh_every)
            found = mining.mine_with(current, dataset, asked.texts, planned.queries.targets, mined, rows)
            table = mining.mixed({"ance": found, **known}, mined)
            assert table is not None
            return table

        return mine

    config: dict[str, Any] = {"encoders": settings.as_config() | documents.encoder_config(settings.encoder)}
    config["training"] = training.as_config() if training.steps else {"steps": 0, "seed": training.seed}
    if training.steps:
        if training.multipliers is None:  # another default is another training
            config["training"]["multipliers"] = encoders.DEFAULT_MULTIPLIERS
        config["mining"] = {"shares": dict(mined.shares), "refresh_every": mined.refresh_every}
    config |= bindings.of_training(models.BiEncoderConfig, models.BiEncoderModel)
    return Stage("model", config, (corpus, vocabulary, *learning), make)


def make_batches(
    queries: TokenStore,
    texts: TokenStore,
    negatives: NegativeSource,
    training: ContrastiveTraining,
    lengths: Mapping[str, int],
) -> ContrastiveBatches:
    """What is trained on.

    Args:
      queries, texts: training queries and documents as tokens.
      negatives: of every training query.
      training: settings.
      lengths: tokens read of a "query" and of a "document".
    """
    buckets = [*(length for length in _QUERY_LENGTHS if length < lengths["query"]), lengths["query"]]
    return pair_training.make_batches(queries, texts, negatives, training, buckets, lengths["document"])


class Reencoded:
    """Dense retrieval with any parameters: the documents are encoded anew."""

    def __init__(self, encoder: DenseEncoder, corpus: corpus_lib.Corpus):
        self._encoder, self._corpus = encoder, corpus

    def with_parameters(self, params: Any) -> DenseRetriever:
        """A retriever around these parameters, over all documents."""
        encoder = self._encoder.with_parameters(params)
        return DenseRetriever(encoder, dense.make_searcher("exact", encoder.encode(self._corpus.contents, "document")))

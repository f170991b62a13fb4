"""The stages of a bi-encoder: trained by contrast, with negatives from files or mined again while it trains; or as it
is."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax import corpus as corpus_lib
from gr_jax import dense
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import contrastive, encoders, negatives
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pairs import load_asked, load_pairs
from gr_jax.stages.training import fit, keep_curves
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.training import negatives as tables
from gr_jax.training.contrastive_batches import ContrastiveBatches, NegativeSource
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore


@stage(trains=True)
def bi_encoder(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    pseudo_queries: pathlib.Path,
    pairs: pathlib.Path,
    negatives: pathlib.Path,
    *,
    settings: Encoders,
    mining: Mining,
    training: ContrastiveTraining,
) -> None:
    """Trains the encoders. Interrupted, it goes on from its latest checkpoint with the same result."""
    dataset = load_dataset(corpus)
    words = load_vocabulary(vocabulary)
    config, pretrained = encoders.make_encoders(settings, words.size)
    params = encoders.initial_parameters(config, pretrained, training.seed)
    while_trained = encoders.text_encoder(training.of(settings), config, params, words, dataset.transform)
    task = _task(
        place, while_trained, dataset, corpus, pseudo_queries, pairs, negatives, mining, training,
        encoders.learning_rate_multipliers(config, pretrained),
    )  # fmt: skip
    found = fit(place, task, training).params
    encoder = encoders.text_encoder(settings, config, params, words, dataset.transform).with_parameters(found)
    encoder.save(place.folder / "encoder")


def _task(
    place: Place,
    encoder: DenseEncoder,
    dataset: corpus_lib.Dataset,
    corpus: pathlib.Path,
    pseudo_queries: pathlib.Path,
    pairs: pathlib.Path,
    found_negatives: pathlib.Path,
    mining: Mining,
    settings: ContrastiveTraining,
    multipliers: Mapping[str, float],
) -> Task:
    queries, texts = load_pairs(pairs)
    known = negatives.load_negatives(found_negatives, mining)
    first = negatives.first_table(known, mining, queries, len(texts))
    refresher = None
    if mining.refresh_every:
        planned = make_batches(queries, texts, first, settings, encoder.lengths)

        def mine(params: Mapping[str, Any], due: int) -> tables.Negatives:
            """Of the queries that are trained on until the next table: which they are is known before."""
            _, asked = load_asked(corpus, pseudo_queries, settings.kept_back)
            assert mining.refresh_every is not None
            current, rows = encoder.with_parameters(params), planned.rows_of(due, due + mining.refresh_every)
            mined = negatives.mine_with(
                current, dataset, asked.texts, planned.queries.targets, mining.kept, mining.skip, rows
            )
            table = negatives.mixed({"ance": mined, **known}, mining)
            assert table is not None
            return table

        refresher = RefreshedNegatives(first, mine, every=mining.refresh_every)
    judged = contrastive.judged_queries(pairs, dataset, settings)
    searched = contrastive.searched(dataset, judged, settings)
    source: NegativeSource = first if refresher is None else refresher
    return Task(
        model=contrastive.bi_encoder_model(encoder.config, settings),
        batches=make_batches(queries, texts, source, settings, encoder.lengths),
        initial_params=encoder.params,
        multipliers=multipliers,
        evaluate=contrastive.evaluation(Reencoded(encoder, searched), dataset, judged, settings, searched),
        hooks=[] if refresher is None else [refresher.hook],
    )


@stage()
def untrained(place: Place, corpus: pathlib.Path, vocabulary: pathlib.Path, *, settings: Encoders) -> None:
    """The encoders as they are before any training."""
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    config, pretrained = encoders.make_encoders(settings, words.size)
    params = encoders.initial_parameters(config, pretrained, seed=0)
    encoders.text_encoder(settings, config, params, words, dataset.transform).save(place.folder / "encoder")
    keep_curves(place)


def make_batches(
    queries: TokenStore,
    texts: TokenStore,
    source: NegativeSource,
    settings: ContrastiveTraining,
    lengths: Mapping[str, int],
) -> ContrastiveBatches:
    """What is trained on.

    Args:
      queries, texts: training queries and documents as tokens.
      source: of negatives of every training query.
      settings: of the training.
      lengths: tokens read of a "query" and of a "document".
    """
    rows = contrastive.query_row_lengths(lengths["query"])
    return contrastive.make_batches(queries, texts, source, settings, rows, lengths["document"])


class Reencoded:
    """Dense retrieval with any parameters: the documents are encoded anew."""

    def __init__(self, encoder: DenseEncoder, corpus: corpus_lib.Corpus):
        self._encoder, self._corpus = encoder, corpus

    def with_parameters(self, params: Any) -> DenseRetriever:
        """A retriever around these parameters, over all documents."""
        encoder = self._encoder.with_parameters(params)
        vectors = encoder.encode_documents(self._corpus.contents)
        return DenseRetriever(encoder, dense.make_searcher("exact", vectors))

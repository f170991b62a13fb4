"""The stages of a cross-encoder: the texts that it learns from, and the network, trained or as it is."""

from __future__ import annotations

import pathlib
from typing import Any

from gr_jax.corpus import Corpus
from gr_jax.retrievers import Retriever
from gr_jax.retrievers.rerank import RerankRetriever, pair_text
from gr_jax.stages import contrastive, pair_training
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import Mining
from gr_jax.stages.training import fit, keep_curves
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.cross_encoder.crossing import Crossing, PairNetwork, initial_scorer
from gr_jax.systems.cross_encoder.network import CrossEncoderModel
from gr_jax.systems.cross_encoder.scorer import CrossEncoderScorer
from gr_jax.text import get_transform
from gr_jax.training.features import Pair, PairFeatures
from gr_jax.training.task import Task
from gr_jax.training.token_store import TokenStore, write_token_store

# How much faster than the encoder the new parameters learn.
FASTER = {"score": 10.0, "pooler": 10.0, "similarity_scale": 200.0, "max_sim_scale": 200.0}


@stage(shared=True)
def pair_texts(place: Place, corpus: pathlib.Path, vocabulary: pathlib.Path, *, length: int) -> None:
    """Tokens of all documents as a pair has them: "title: text".

    Args:
      length: tokens of each that are read.
    """
    dataset = load_dataset(corpus)
    rewrite = get_transform(dataset.transform)
    rows = (Pair(rewrite(pair_text(one)), [number], "document") for number, one in enumerate(dataset.corpus))
    write_token_store(place.folder / "documents", rows, PairFeatures(load_vocabulary(vocabulary), length))


@stage(trains=True)
def model(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    pairs: pathlib.Path,
    texts: pathlib.Path,
    bm25: pathlib.Path,
    found_negatives: pathlib.Path,
    *,
    encoders: Encoders,
    crossing: Crossing,
    mining: Mining,
    training: ContrastiveTraining,
) -> None:
    """Trains the cross-encoder; what is measured on dev is the ranking of BM25's first documents. Interrupted, it goes
    on from its latest checkpoint with the same result.

    Args:
      texts: of `pair_texts`.
    """
    dataset = load_dataset(corpus)
    scorer, pretrained = initial_scorer(encoders, crossing.network, load_vocabulary(vocabulary), training.seed)
    reranked = Reranked(load_bm25(bm25, dataset), scorer, dataset.corpus, crossing.depth, dataset.transform)
    task = Task(
        model=CrossEncoderModel(
            scorer.module,
            softmax=crossing.softmax,
            pointwise=crossing.pointwise,
            margin_mse=training.margin_mse or 0.0,
            teacher_kl=training.teacher_kl or 0.0,
        ),
        batches=pair_training.make_batches(
            pairs, found_negatives, mining, training, training.of(encoders), TokenStore.load(texts / "documents")
        ),
        initial_params=scorer.params,
        multipliers=contrastive.learning_rate_multipliers(scorer.params, pretrained, FASTER),
        evaluate=contrastive.evaluation(
            reranked, dataset, contrastive.judged_queries(pairs, dataset, training), training
        ),
    )
    scorer.with_parameters(fit(place, task, training).params).save(place.folder / "scorer")


@stage()
def untrained(place: Place, vocabulary: pathlib.Path, *, encoders: Encoders, network: PairNetwork) -> None:
    """The cross-encoder as it is before any training."""
    scorer, _ = initial_scorer(encoders, network, load_vocabulary(vocabulary), seed=0)
    scorer.save(place.folder / "scorer")
    keep_curves(place)


class Reranked:
    """Reranking with any parameters."""

    def __init__(self, first: Retriever, scorer: CrossEncoderScorer, corpus: Corpus, depth: int, transform: str):
        self._first, self._scorer, self._corpus = first, scorer, corpus
        self._depth, self._transform = depth, transform

    def with_parameters(self, params: Any) -> RerankRetriever:
        """A retriever around these parameters."""
        scorer = self._scorer.with_parameters(params)
        return RerankRetriever(self._first, scorer, self._corpus, depth=self._depth, transform=self._transform)

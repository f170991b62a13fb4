"""Training by contrast, on queries with their answers and with negatives: what all such trainings share."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import jax
import numpy as np
from jaxtyping import Int64

from gr_jax import corpus as corpus_lib
from gr_jax import losses, models
from gr_jax.errors import InputError
from gr_jax.stages import training
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.pairs import HeldOut, load_held_out
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.stages.settings import Settings, check_shares, fields_of, setting
from gr_jax.training.contrastive_batches import ContrastiveBatches, NegativeSource
from gr_jax.training.mesh_of_batches import all_that_fit
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.token_store import TokenStore

# So many queries are packed into a row. Attention is computed over whole rows: with many more it would cost as much as
# padding.
_QUERIES_OF_A_ROW = 4


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class ContrastiveTraining(training.Optimization):
    """How encoders are trained; and all that `Optimization` has.

    Attributes:
      batch_size: queries an update.
      negatives: of each query in a batch, as `Mining` says; None: all other documents of the corpus, where their states
        stay as they are (`DPR.frozen_documents`, `ColBERT.frozen_documents`).
      in_batch: the other queries' documents are negatives too. False: a query's own are all.
      document_length: tokens read of a document in training and on dev; None as many as the index reads. Time grows
        with it, and most of what a shorter one teaches holds for longer texts too.
      rates: share of each kind of query: "query" (of the train split), "pseudo".
      margin_mse, teacher_kl: weights of the losses of these names, beside the contrastive one: what a teacher gave each
        query's documents, in `Mining.file` as the only kind of negatives, is learnt too.
      chunks: parts that a batch is computed in by gradient caching, with the same gradients; saves memory.
      held_out: share of the documents with training questions whose questions are kept back: retrieval of these is
        measured as dev_unseen, for a dev split may ask for documents alone that training asked for too. Without a dev
        split they stand for it.
      dev_documents: documents that the queries of dev search where these are encoded anew each time: the queries'
        answers and others chosen at random; None all.
      keep_best: the measure that chooses the parameters to keep, of "dev/…", "dev_unseen/…" or their mean "dev_mean/…";
        None keeps the last.
    """

    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    evaluate_every: int | None = 250
    checkpoint_every: int | None = 250
    negatives: int | None = setting(1, at_least=0)
    in_batch: bool = setting(True, neutral=True)
    document_length: int | None = setting(None, at_least=3)
    rates: Mapping[str, float] = setting({"query": 0.5, "pseudo": 0.5})
    margin_mse: float | None = setting(None, above=0, neutral=None)
    teacher_kl: float | None = setting(None, above=0, neutral=None)
    chunks: int = setting(1, at_least=1)
    held_out: float | None = setting(None, above=0, below=1)
    dev_documents: int | None = setting(None, at_least=1)

    def check(self) -> None:
        super().check()
        check_shares("ContrastiveTraining.rates", self.rates, ("query", "pseudo"), "kinds of queries")
        training.check_keep_best("ContrastiveTraining.keep_best", self.keep_best)
        if not self.in_batch and not self.negatives:
            raise InputError(
                "without other queries' documents, a query's negatives are its own, and it has "
                f"{'none' if self.negatives == 0 else 'all documents anyway'}",
                "Set ContrastiveTraining.negatives to 1 or more, or ContrastiveTraining.in_batch = True.",
                value=self.negatives,
            )
        if (self.keep_best or "").startswith("dev_unseen") and not self.held_out:
            raise InputError(
                "ContrastiveTraining.keep_best is of queries that are held out, and none are",
                'Set ContrastiveTraining.held_out = 0.05, or keep_best = "dev/RR@10".',
                value=self.keep_best,
            )

    def of(self, encoders: Encoders) -> Encoders:
        """The encoders' settings while they are trained."""
        return dataclasses.replace(encoders, document_length=self.document_length or encoders.document_length)

    @property
    def kept_back(self) -> HeldOut:
        """Which questions are held out."""
        return HeldOut.of(self.held_out, self.seed)


def check_drawn(*trainings: ContrastiveTraining | None) -> None:
    """Raises InputError for a training that would read all documents anew at every step; None stands for one that is
    off."""
    for one in trainings:
        if one is not None and one.negatives is None:
            raise InputError(
                "all documents are a query's negatives only where their states stay as they are",
                "Set ContrastiveTraining.negatives to a number, or frozen_documents of DPR or ColBERT to True.",
                value=None,
            )


@dataclasses.dataclass(frozen=True)
class Draws(Settings):
    """What decides which training queries a training draws; see `ContrastiveTraining`.

    Attributes:
      steps, batch_size, rates, seed: of the training.
    """

    steps: int
    batch_size: int
    rates: Mapping[str, float]
    seed: int

    @classmethod
    def of(cls, training: ContrastiveTraining) -> Draws:
        """Of the settings of a training."""
        return cls(**{field.name: getattr(training, field.name) for field in fields_of(cls)})


def drawn_rows(queries: TokenStore, texts: TokenStore, draws: Sequence[Draws]) -> Int64[np.ndarray, " rows"]:
    """Rows of the queries that any of these trainings draws, ascending: batches are planned by their seed, so it is
    known before there is a network.

    Args:
      queries, texts: training queries and documents as tokens, as the trainings read them.
      draws: of each training.
    """
    rows = [
        ContrastiveBatches(
            queries,
            texts,
            batch_size=one.batch_size,
            query_lengths=int(queries.inputs.lengths.max(initial=1)),
            document_lengths=int(texts.inputs.lengths.max(initial=1)),
            rates=one.rates,
            seed=one.seed,
            process=(0, 1),
        ).rows_of(0, one.steps)
        for one in draws
    ]
    return np.unique(np.concatenate(rows))


def query_row_lengths(longest: int) -> tuple[int, ...]:
    """Lengths of rows of queries, ascending: a batch is padded to the smallest that holds its queries. Each is
    compiled, so that there are few.

    Args:
      longest: tokens read of a query.
    """
    return (*(length for length in (32,) if length < longest), longest)


def make_batches(
    queries: TokenStore,
    texts: TokenStore,
    negatives: NegativeSource,
    settings: ContrastiveTraining,
    query_lengths: int | Sequence[int],
    document_lengths: int,
    *,
    document_tokens: bool = True,
    document_positions: bool | None = None,
    packing: tuple[int, int] | None = None,
) -> ContrastiveBatches:
    """What is trained on.

    Args:
      queries, texts: training queries and documents as tokens.
      negatives: of every training query.
      settings: of the training.
      query_lengths, document_lengths, document_tokens, document_positions, packing: see `ContrastiveBatches`.

    Raises:
      InputError: there are not so many negatives, or all are to be read anew at every step.
    """
    if settings.negatives is not None and not settings.in_batch and settings.negatives >= len(texts):
        raise InputError(  # with other queries' documents beside them, as many as there are will do
            f"a query has fewer wrong documents than negatives: the corpus has {len(texts)} documents",
            f"Set ContrastiveTraining.negatives to {len(texts) - 1} at most, or to None for all.",
            value=settings.negatives,
        )
    if document_tokens:
        check_drawn(settings)
    return ContrastiveBatches(
        queries,
        texts,
        batch_size=settings.batch_size,
        negatives=negatives,
        num_negatives=settings.negatives,
        query_lengths=query_lengths,
        document_lengths=document_lengths,
        rates=settings.rates,
        seed=settings.seed,
        document_tokens=document_tokens,
        document_positions=document_positions,
        every_document=settings.negatives is None,
        packing=packing,
    )


def make_query_batches(
    queries: TokenStore,
    texts: TokenStore,
    negatives: NegativeSource,
    settings: ContrastiveTraining,
    query_lengths: int | Sequence[int],
    *,
    packed: bool = True,
) -> ContrastiveBatches:
    """What is trained on where documents were read before. Queries are packed, some four a row, unless devices cannot
    share a batch evenly.

    Args:
      queries, texts, negatives, settings, query_lengths: see `make_batches`.
      packed: False pads each query to a row of its own, as it is where they are computed in chunks.

    Raises:
      InputError: there are fewer devices than the mesh has, or see `make_batches`.
    """
    mesh = all_that_fit(settings.batch_size) if settings.mesh == (0, 1) else make_mesh(*settings.mesh)
    parts = mesh.shape["data"]  # the queries of a device lie in its own rows
    even = packed and settings.chunks == 1 and settings.batch_size % parts == 0
    return make_batches(
        queries,
        texts,
        negatives,
        settings,
        query_lengths,
        int(texts.inputs.lengths.max(initial=1)),
        document_tokens=False,
        packing=(parts, -(-settings.batch_size // (_QUERIES_OF_A_ROW * parts))) if even else None,
    )


def loss_of(settings: ContrastiveTraining) -> losses.ContrastiveLoss:
    """The loss that the settings weigh."""
    return losses.ContrastiveLoss(
        in_batch=settings.in_batch, margin_mse=settings.margin_mse or 0.0, teacher_kl=settings.teacher_kl or 0.0
    )


def bi_encoder_model(config: models.BiEncoderConfig, settings: ContrastiveTraining) -> models.BiEncoderModel:
    """The model of a bi-encoder with the loss that the settings weigh."""
    return models.BiEncoderModel(models.BiEncoder(config), loss_of(settings), chunks=settings.chunks)


def provenance(
    pseudo_queries: PseudoQueries, *trainings: tuple[Settings | None, ContrastiveTraining | None]
) -> dict[str, Any]:
    """What reports say of the data and seeds of several trainings, each with its mining; None stands for one that is
    off."""
    done = [(mining, one) for mining, one in trainings if one is not None]
    if not done:
        return {"pseudo_queries": "none: not trained", "seeds": [0]}
    with_them = any(one.rates.get("pseudo") for _, one in done)
    seeds = {pseudo_queries.seed, *(one.seed for _, one in done)}
    return {
        "pseudo_queries": pseudo_queries.summary() if with_them else "none: trained on questions alone",
        "seeds": sorted(seeds | {mining.seed for mining, _ in done if mining is not None}),  # type: ignore[attr-defined]
    }


Judged = Mapping[str, training.Judgements]  # split → judgements


def judged_queries(
    pairs: pathlib.Path, dataset: corpus_lib.Dataset, settings: ContrastiveTraining
) -> dict[str, training.Judgements] | None:
    """What retrieval is measured on during training: dev, and what was held out, which stands for dev where there is no
    such split; None where nothing is.

    Args:
      pairs: their finished stage.
    """
    if not settings.dev_queries:
        return None
    judged: dict[str, training.Judgements] = {"dev": dataset.split("dev")} if len(dataset.qrels.get("dev", ())) else {}
    held_out = load_held_out(pairs)
    if held_out:
        train_split = dataset.split("train")
        name = "dev_unseen" if judged or (settings.keep_best or "").startswith("dev_unseen/") else "dev"
        judged[name] = {query_id: train_split[query_id] for query_id in held_out}
    return judged or None


def evaluation(
    retriever: training.Retrainable,
    dataset: corpus_lib.Dataset,
    judged: Judged | None,
    settings: ContrastiveTraining,
    corpus: corpus_lib.Corpus | None = None,
) -> training.DevEvaluation | None:
    """Retrieval of these queries with the parameters of each moment, from `corpus` where that is not all documents;
    None where nothing is judged."""
    if judged is None or settings.dev_queries is None:
        return None
    return training.DevEvaluation(retriever, dataset, settings.dev_queries, splits=judged, corpus=corpus)


def searched(dataset: corpus_lib.Dataset, judged: Judged | None, settings: ContrastiveTraining) -> corpus_lib.Corpus:
    """What retrieval during training searches: all documents, or the answers of the queries that are asked and a random
    sample of the others."""
    corpus, most = dataset.corpus, settings.dev_documents
    if judged is None or settings.dev_queries is None or not most or most >= len(corpus):
        return corpus
    asked = [training.sample_queries(qrels, settings.dev_queries) for qrels in judged.values()]
    needed = {corpus.index_of(doc_id) for qrels in asked for relevant in qrels.values() for doc_id in relevant}
    others = np.setdiff1d(np.arange(len(corpus)), sorted(needed))
    added = np.random.default_rng(0).choice(others, max(0, most - len(needed)), replace=False)
    return corpus.subset(sorted([*needed, *added.tolist()]))


def with_pretrained(params: Mapping[str, Any], pretrained: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters on the host, with the pretrained encoder's in their places."""
    merged: dict[str, Any] = jax.tree.map(np.asarray, dict(params))
    for name in ("token_embedder", "encoder"):
        if pretrained is not None:
            merged[name] = jax.tree.map(np.asarray, dict(pretrained[name]))
    return merged


def learning_rate_multipliers(
    params: Mapping[str, Any], pretrained: Mapping[str, Any] | None, faster: Mapping[str, float]
) -> dict[str, float]:
    """Which parameters move how much, where nobody says otherwise: of a pretrained encoder neither the word embeddings
    nor the lower half of the layers, and what is new beside it faster.

    Args:
      params: of the network.
      pretrained: of its encoder; None where it starts from scratch, and everything moves alike.
      faster: factor of each new parameter; those that the network lacks are left out.
    """
    if pretrained is None:
        return {}
    layers = sorted(int(name.removeprefix("layers_")) for name in pretrained["encoder"] if name.startswith("layers_"))
    names = ["token_embedder", *(f"encoder/{name}" for name in pretrained["encoder"] if "embed" in name)]
    names += [f"encoder/layers_{layer}" for layer in layers[: len(layers) // 2]]
    return dict.fromkeys(names, 0.0) | {name: factor for name, factor in faster.items() if name in params}

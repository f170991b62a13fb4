"""Training on queries with their answers and wrong documents: what bi-encoders, late interaction and cross-encoders
share, and how the latter two are trained."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import jax
import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.recipes import mining
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Mining
from gr_jax.recipes.learning import DevEvaluation, Judgements, Retrainable, make_optimizer, sample_queries
from gr_jax.recipes.settings import PseudoQueries
from gr_jax.recipes.stages import Workplace
from gr_jax.training.contrastive_batches import ContrastiveBatches, NegativeSource
from gr_jax.training.loop import TrainResult, train
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.refreshed_negatives import RefreshedNegatives
from gr_jax.training.task import Task, TrainSettings
from gr_jax.training.token_store import TokenStore
from gr_jax.training.train_state import Model


def check_settings(system: str, encoders: Encoders, mined: Mining) -> None:
    """What these networks would silently do without is refused.

    Args:
      system: as the message names it.
      encoders, mined: settings.

    Raises:
      InputError: negatives that only bi-encoders learn from, or prefixes, which only bi-encoders read.
    """
    if mined.refresh_every or "cluster" in mined.shares:
        raise InputError(
            f'{system} learns from negatives of the kinds "file", "model", "bm25" and "random"',
            "Change Mining.shares, and set Mining.refresh_every = 0.",
            value=dict(mined.shares),
        )
    if encoders.query_prefix or encoders.document_prefix:
        raise InputError(
            f"{system} reads no prefixes",
            'Set Encoders.query_prefix = "" and Encoders.document_prefix = "".',
            value=encoders.query_prefix or encoders.document_prefix,
        )


def fit(
    place: Workplace,
    model: Model,
    params: Mapping[str, Any],
    *,
    encoders: Encoders,
    mined: Mining,
    training: ContrastiveTraining,
    multipliers: Mapping[str, float],
    evaluate: DevEvaluation | None,
    documents: TokenStore | None = None,
) -> TrainResult:
    """Trains a model on batches of the finished stages "pairs" and "negatives"; goes on where it was interrupted.

    Args:
      place: of the stage; what training was like goes into its `meta`.
      model: reads the batches of `ContrastiveBatches`.
      params: to begin with.
      encoders, mined, training: settings.
      multipliers: of learning rates, unless the settings have some.
      evaluate: retrieval on dev; None keeps the last parameters.
      documents: the documents' tokens; None takes those of "pairs".
    """
    queries, texts = mining.load_pairs(place.inputs["pairs"])
    texts = texts if documents is None else documents
    known = mining.load_negatives(place.inputs["negatives"], mined)
    table = mining.first_table(known, mined, queries, len(texts))
    batches = make_batches(queries, texts, table, training, encoders.query_length, encoders.document_length)
    chosen = multipliers if training.multipliers is None else training.multipliers
    return run(place, model, params, batches, training, chosen, evaluate)


def make_batches(
    queries: TokenStore,
    texts: TokenStore,
    negatives: NegativeSource,
    training: ContrastiveTraining,
    query_lengths: int | Sequence[int],
    document_lengths: int,
    *,
    document_tokens: bool = True,
    document_positions: bool | None = None,
) -> ContrastiveBatches:
    """What is trained on.

    Args:
      queries, texts: training queries and documents as tokens.
      negatives: of every training query.
      training: settings.
      query_lengths, document_lengths, document_tokens, document_positions: see `ContrastiveBatches`.
    """
    return ContrastiveBatches(
        queries,
        texts,
        batch_size=training.batch_size,
        negatives=negatives,
        num_negatives=training.negatives,
        query_lengths=query_lengths,
        document_lengths=document_lengths,
        rates=training.rates,
        seed=training.seed,
        document_tokens=document_tokens,
        document_positions=document_positions,
    )


class TeachersLosses(TypedDict):
    """How much each loss from a teacher weighs."""

    margin_mse: float
    teacher_kl: float


def teachers_losses(training: ContrastiveTraining) -> TeachersLosses:
    """How much the losses from a teacher weigh, as every model takes them."""
    return {"margin_mse": training.margin_mse, "teacher_kl": training.teacher_kl}


def bi_encoder_model(config: models.BiEncoderConfig, training: ContrastiveTraining) -> models.BiEncoderModel:
    """The model of a bi-encoder with the losses that the settings weigh."""
    return models.BiEncoderModel(models.BiEncoder(config), chunks=training.chunks, **teachers_losses(training))


def run(
    place: Workplace,
    model: Model,
    params: Any,
    batches: Iterable[Mapping[str, np.ndarray]],
    training: ContrastiveTraining,
    multipliers: Mapping[str, float],
    evaluate: DevEvaluation | None,
    refresher: RefreshedNegatives | None = None,
) -> TrainResult:
    """Trains as the settings say; goes on where it was interrupted.

    Args:
      place: of the stage; what training was like goes into its `meta`.
      model: reads the batches.
      params: to begin with.
      batches: of examples.
      training: settings.
      multipliers: of learning rates.
      evaluate: retrieval on dev; None keeps the last parameters.
      refresher: where batches draw from what it mines.
    """
    keep = training.keep_best if evaluate is not None else ""
    task = Task(
        model,
        batches,
        initial_params=params,
        evaluate=evaluate,
        keep_best=keep,
        hooks=[] if refresher is None else [refresher.hook],
    )
    settings = TrainSettings(
        steps=training.steps,
        optimizer=make_optimizer(training, multipliers),
        mesh=None if tuple(training.mesh) == (0, 1) else make_mesh(*training.mesh),
        seed=training.seed,
        eval_every=training.evaluate_every if evaluate is not None else 0,
        evaluate_first=bool(keep),
        patience=training.patience,
        checkpoint_every=training.checkpoint_every,
    )
    result = train(task, settings, model_dir=place.work, progress=True)
    dev = [record for record in result.history if record["step"] == result.step]
    place.meta.update({"step": result.step, "last_step": result.last_step, "dev": dev})
    if refresher is not None:
        place.meta["refreshes"] = refresher.hook.used(result.last_step)
    return result


def provenance(pseudo_queries: PseudoQueries, mined: Mining, training: ContrastiveTraining) -> dict[str, Any]:
    """What reports say of a training's data and seeds."""
    return provenance_of(pseudo_queries, [(mined, training)])


def provenance_of(
    pseudo_queries: PseudoQueries, trainings: Sequence[tuple[Mining, ContrastiveTraining]]
) -> dict[str, Any]:
    """What reports say of the data and seeds of several trainings, of which some may have no steps."""
    done = [(mined, training) for mined, training in trainings if training.steps]
    if not done:
        seeds = {training.seed for _, training in trainings}
        return {"pseudo_queries": "none: not trained", "seeds": sorted(seeds)}
    with_them = any(training.rates.get("pseudo") for _, training in done)
    return {
        "pseudo_queries": pseudo_queries.summary() if with_them else "none: trained on questions alone",
        "seeds": sorted({pseudo_queries.seed, *(s for pair in done for s in (pair[0].seed, pair[1].seed))}),
    }


def judged_queries(
    place: Workplace, dataset: corpus_lib.Dataset, training: ContrastiveTraining
) -> dict[str, Judgements] | None:
    """What retrieval is measured on during training: dev, and what was held out, which stands for dev where there is no
    such split; None where nothing is."""
    if not training.dev_queries:
        return None
    judged: dict[str, Judgements] = {"dev": dataset.split("dev")} if len(dataset.qrels.get("dev", ())) else {}
    held_out = json.loads((place.inputs["pairs"] / "held_out.json").read_text(encoding="utf-8"))
    if held_out:
        train_split = dataset.split("train")
        name = "dev_unseen" if judged or training.keep_best.startswith("dev_unseen/") else "dev"
        judged[name] = {query_id: train_split[query_id] for query_id in held_out}
    return judged or None


def evaluation(
    retriever: Retrainable,
    dataset: corpus_lib.Dataset,
    judged: Mapping[str, Judgements],
    training: ContrastiveTraining,
    corpus: corpus_lib.Corpus | None = None,
) -> DevEvaluation:
    """Retrieval of these queries with the parameters of each moment, from `corpus` where that is not all documents."""
    return DevEvaluation(retriever, dataset, training.dev_queries, splits=judged, corpus=corpus)


def searched(
    dataset: corpus_lib.Dataset, judged: Mapping[str, Judgements], training: ContrastiveTraining
) -> corpus_lib.Corpus:
    """What retrieval during training searches: all documents, or the answers of the queries that are asked and a random
    sample of the others."""
    corpus, most = dataset.corpus, training.dev_documents
    if not most or most >= len(corpus):
        return corpus
    asked = [sample_queries(qrels, training.dev_queries) for qrels in judged.values()]
    needed = {corpus.index_of(doc_id) for qrels in asked for relevant in qrels.values() for doc_id in relevant}
    others = np.setdiff1d(np.arange(len(corpus)), sorted(needed))
    added = np.random.default_rng(0).choice(others, max(0, most - len(needed)), replace=False)
    return corpus.subset(sorted([*needed, *added.tolist()]))


def finish(place: Workplace, before: float, started: float) -> None:
    """Keeps the curves, and how long all starts trained."""
    curves = place.work / "metrics.jsonl"
    if curves.exists():
        shutil.copy(curves, place.folder / "metrics.jsonl")
    else:
        (place.folder / "metrics.jsonl").write_text("")
    place.meta["seconds"] = before + time.monotonic() - started


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


def default_multipliers(training: ContrastiveTraining, faster: Mapping[str, float]) -> dict[str, Any]:
    """What a key says where nobody names multipliers: other defaults are another training."""
    return {} if training.multipliers is not None else {"multipliers": {"pretrained lower half": 0.0, **faster}}

"""The stages that make a generative retriever: the trained model and the index."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import docids as docids_lib
from gr_jax import evaluation, models, retrievers, storage
from gr_jax.errors import InputWarning
from gr_jax.models import network_folder
from gr_jax.recipes import bindings, documents, examples, networks
from gr_jax.recipes.dense_settings import DEV_MEASURES, ContrastiveTraining
from gr_jax.recipes.settings import Decoding, Network
from gr_jax.recipes.settings import Training as TrainingSettings
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Retriever, index
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.generative import GenerativeRetriever

# Not through gr_jax.training, which loads lazily: gin must know every configurable before it reads a file.
from gr_jax.training.batches import make_batches
from gr_jax.training.loop import EarlyStopping, train
from gr_jax.training.optimizers import Optimizer, Schedule, adafactor, adamw
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.token_store import TokenStore

# Most beams of the retrievals on dev. With fewer than the first level is wide, they would judge the order of clusters
# more than that of documents, and keep other parameters than the full search wants.
DEV_BEAMS = 64


def model_stage(
    corpus: Stage,
    vectors: Stage,
    docids: Stage,
    vocabulary: Stage,
    token_rows: Stage,
    network: Network,
    settings: TrainingSettings,
    decoding: Decoding,
    start: Stage | None = None,
    query_pooling: str = "mean",
) -> Stage:
    """Trains the network. Interrupted, it goes on from its latest checkpoint with the same result.

    Args:
      corpus, vectors, docids, vocabulary, token_rows: their stages.
      network, settings, decoding: settings.
      start: a stage of an encoder whose side of queries the network's starts from; None: the one that `network` names.
      query_pooling: how the documents' vectors are pooled, "mean" or "cls"; see `networks.make_network`.
    """
    dev_beams = min(decoding.beams, DEV_BEAMS)

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        ids = documents.load_docids(place.inputs["docids"])
        words = examples.load_vocabulary(place.inputs[vocabulary.name])
        tower = None
        if start is not None:
            tower = networks.query_tower(DenseEncoder.load(place.inputs[start.name] / "encoder"), network.dropout)
        module, pretrained = networks.make_network(network, words.size, ids, tower, query_pooling=query_pooling)
        document_vectors = np.asarray(documents.load_vectors(place.inputs["vectors"]))
        named = documents.load_docids_of_vectors(place.inputs["docids"])
        params = networks.initial_parameters(module, network, pretrained, named, document_vectors, settings.seed)
        if settings.steps:
            chosen = settings.multipliers
            if chosen is None:
                chosen = networks.learning_rate_multipliers(module, network, pretrained)
            params = _train(place, module, ids, words, params, chosen)
        network_folder.save_network(place.folder, module, params)
        curves = place.work / "metrics.jsonl"
        if curves.exists():
            shutil.copy(curves, place.folder / "metrics.jsonl")
        else:
            (place.folder / "metrics.jsonl").write_text("")
        place.meta["seconds"] = before + time.monotonic() - started

    def _train(
        place: Workplace,
        module: models.EncoderDecoder,
        ids: docids_lib.Docids,
        words: Any,
        params: dict,
        multipliers: Mapping[str, float],
    ) -> Any:
        store = TokenStore.load(place.inputs["examples"] / "tokens")
        batches = make_batches(
            store,
            batch_size=settings.batch_size,
            lengths={"inputs": settings.row_length, "targets": settings.row_targets},
            rates=settings.rates,
            seed=settings.seed,
        )
        model = models.EncoderDecoderModel(
            module=module,
            label_smoothing=settings.label_smoothing,
            rdrop=settings.rdrop,
            normalize=settings.normalize,
            levels=ids.levels,
            eos_id=ids.eos_id,
        )
        dataset = documents.load_dataset(place.inputs["corpus"])
        evaluate = None
        if settings.dev_queries and len(dataset.qrels.get("dev", ())):
            retriever = GenerativeRetriever.over_docids(
                module, params, words, ids,
                transform=dataset.transform, beams=dev_beams, normalize=decoding.normalize,
                max_query_length=settings.max_input_length,  # as training reads them; not what the index is told later
            )  # fmt: skip
            evaluate = DevEvaluation(retriever, dataset, settings.dev_queries)
        keep = settings.keep_best if evaluate is not None else ""
        result = train(
            model,
            batches,
            steps=settings.steps,
            optimizer=make_optimizer(settings, multipliers),
            model_dir=place.work,
            mesh=None if tuple(settings.mesh) == (0, 1) else make_mesh(*settings.mesh),
            seed=settings.seed,
            microbatches=settings.microbatches,
            initial_params=params,
            evaluate=evaluate,
            eval_every=settings.evaluate_every,
            evaluate_first=bool(keep),
            early_stopping=EarlyStopping(keep, settings.patience) if keep else None,
            checkpoint_every=settings.checkpoint_every,
            progress=True,
        )
        dev = [record for record in result.history if record["step"] == result.step]
        place.meta.update({"step": result.step, "last_step": result.last_step, "dev": dev})
        return result.params

    inputs = (corpus, vectors, docids, vocabulary, token_rows, *([] if start is None else [start]))
    about = networks.network_config(network, query_pooling)
    taught = settings.as_config()
    if settings.multipliers is None:
        taught["multipliers"] = networks.multipliers_config(network)
    config: dict[str, Any] = {"network": about, "training": taught, "decoding": decoding.normalize}
    if dev_beams < DEV_BEAMS:  # more beams of the index change nothing here
        config["dev_beams"] = dev_beams
    config |= bindings.of_training(models.EncoderDecoderModel)
    return Stage("model", config, inputs, make)


def seconds_of_earlier_starts(work: pathlib.Path) -> float:
    """How long the starts before this one trained, up to their last sign of life under `work`; notes this start.

    A training budget is what all starts used together, however often the process was killed in between.
    """
    file, now = work / "starts.json", time.time()
    starts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if starts:
        signs = (path.stat().st_mtime for path in work.rglob("*") if path != file)
        starts[-1]["end"] = max(starts[-1]["start"], *(sign for sign in signs if sign < now), 0.0)
    storage.write_json(file, [*starts, {"start": now}])
    return sum(start["end"] - start["start"] for start in starts)


Judgements = Mapping[str, Mapping[str, int]]  # query id → doc_id → grade


class Retrainable(Protocol):
    """A retriever around any parameters of its network."""

    def with_parameters(self, params: Any) -> Retriever: ...


class DevEvaluation:
    """Retrieval on dev during training: the real measures, on a fixed sample of queries.

    Args:
      retriever: gets the parameters of each moment.
      dataset: of the queries.
      most: queries of each split.
      splits: name → judgements, whose mean is measured as "dev_mean" too; None is the dev split alone.
      corpus: what the retriever answers from, where it is not all documents.
    """

    def __init__(
        self,
        retriever: Retrainable,
        dataset: corpus_lib.Dataset,
        most: int,
        *,
        splits: Mapping[str, Judgements] | None = None,
        corpus: corpus_lib.Corpus | None = None,
    ):
        self._retriever, self._corpus = retriever, dataset.corpus if corpus is None else corpus
        self._mean, self._splits = splits is not None, []
        judged: Mapping[str, Judgements] = splits or {"dev": dataset.split("dev")}
        for name, qrels in judged.items():
            sampled = sample_queries(qrels, most)
            self._splits.append((name, dataset.queries.select(list(sampled)), sampled))

    def __call__(self, params: Mapping[str, Any], step: int) -> dict[str, float]:
        del step
        retriever = self._retriever.with_parameters(params)
        values: dict[str, float] = {}
        for split, queries, qrels in self._splits:
            with warnings.catch_warnings():
                # Of long queries; once per batch and evaluation is too often.
                warnings.simplefilter("ignore", InputWarning)
                run = retrievers.retrieve_run(retriever, queries, self._corpus, k=10)
            measured = evaluation.evaluate(run, qrels, DEV_MEASURES)
            values |= {f"{split}/{name}": value for name, value in measured.items()}
        if self._mean:
            for name in DEV_MEASURES:
                values[f"dev_mean/{name}"] = float(np.mean([values[f"{split}/{name}"] for split, _, _ in self._splits]))
        return values


def sample_queries(qrels: Judgements, most: int) -> dict[str, Mapping[str, int]]:
    """The judgements of `most` queries, always the same, in their order."""
    ids: Sequence[str] = list(qrels)
    if len(ids) > most:
        ids = [ids[i] for i in np.sort(np.random.default_rng(0).choice(len(ids), most, replace=False))]
    return {query_id: qrels[query_id] for query_id in ids}


def index_stage(corpus: Stage, docids: Stage, vocabulary: Stage, model: Stage, decoding: Decoding) -> Stage:
    """All that answering needs, in one folder."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        module, params = network_folder.load_network(place.inputs["model"])
        retriever = GenerativeRetriever.over_docids(
            module,
            params,
            examples.load_vocabulary(place.inputs[vocabulary.name]),
            documents.load_docids(place.inputs["docids"]),
            transform=dataset.transform,
            beams=decoding.beams,
            normalize=decoding.normalize,
            max_query_length=decoding.max_query_length,
        )
        index.fill(place.folder, retriever, dataset.corpus)
        size = sum(file.stat().st_size for file in place.folder.rglob("*") if file.is_file())
        place.meta.update({"documents": len(dataset.corpus), "bytes": size})

    return Stage("index", decoding.as_config(), (corpus, docids, vocabulary, model), make)


def make_optimizer(settings: TrainingSettings | ContrastiveTraining, multipliers: Mapping[str, float]) -> Optimizer:
    """The optimiser that the settings name; it warms up for half the steps at most."""
    decay = settings.schedule
    schedule = Schedule(
        settings.learning_rate,
        min(settings.warmup_steps, settings.steps // 2),
        decay,
        settings.steps if decay == "linear" else None,
    )
    if settings.optimizer == "adafactor":
        return adafactor(schedule, clip=settings.clip, multipliers=multipliers)
    return adamw(schedule, weight_decay=settings.weight_decay, clip=settings.clip, multipliers=multipliers)

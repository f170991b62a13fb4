"""The stages after contrastive training: embeddings, index, the combination with BM25, results."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from gr_jax import dense, evaluation, models, retrievers, storage
from gr_jax.corpus import Dataset
from gr_jax.corpus.passages import sentence_passages
from gr_jax.recipes import bindings, documents, encoders, mining, results
from gr_jax.recipes.dense_settings import Search
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import hybrid, index
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.training.metric_writers import read_metrics

# Of the combination with BM25 in tables; `results_stage` puts the system's name for the rest.
HYBRID = "BM25 + {}"
_NORMALIZER = "none: scores are compared within one ranking"


def embeddings_stage(corpus: Stage, model: Stage, search: Search) -> Stage:
    """Vectors of every document, memory-mapped; interrupted, it goes on behind the last finished shard."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        encoder = DenseEncoder.load(place.inputs["model"] / "encoder", mesh=encoders.all_devices())
        texts, owner = sentence_passages(dataset.corpus, search.most_sentences)
        vectors = models.encode_corpus(
            encoder.of_documents,
            encoder.rewritten(texts),
            place.folder / "embeddings",
            work=place.work,
            max_length=encoder.lengths["document"],
            process=(0, 1),
            progress=True,
        )
        assert vectors is not None
        np.save(place.folder / "owner.npy", owner)
        place.meta.update({"vectors": len(vectors), "dimension": vectors.shape[1]})
        shutil.rmtree(place.work, ignore_errors=True)

    return Stage("embeddings", {"most_sentences": search.most_sentences}, (corpus, model), make)


def index_stage(corpus: Stage, model: Stage, embeddings: Stage, search: Search) -> Stage:
    """All that answering needs, in one folder."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        vectors = models.load_embeddings(place.inputs[embeddings.name] / "embeddings")
        owner = storage.load_array(place.inputs[embeddings.name] / "owner.npy") if search.most_sentences else None
        searcher = dense.make_searcher(search.searcher, vectors, say=print, **search.settings)
        encoder = DenseEncoder.load(place.inputs[model.name] / "encoder")
        retriever = DenseRetriever(encoder, searcher, owner, most_sentences=search.most_sentences)
        index.fill(place.folder, retriever, dataset.corpus)
        size = sum(file.stat().st_size for file in place.folder.rglob("*") if file.is_file())
        place.meta.update({"documents": len(dataset.corpus), "searcher": type(searcher).__name__, "bytes": size})

    config = {"searcher": search.searcher, "settings": dict(search.settings)}
    if search.searcher == "auto":  # what that is depends on what is installed, and then the index does, too
        config["installed"] = dense.installed()
    return Stage("index", config, (corpus, model, embeddings), make)


def hybrid_stage(corpus: Stage, bm25: Stage, built: Stage) -> Stage:
    """An index of BM25 and the dense retriever together, `gr_jax.load(MODEL_DIR/hybrid/index)`.

    Normalisation and weight are the best on dev, and stand with the whole curve in `weights.json`; without a dev split
    both parts count alike.
    """

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        parts = {
            "BM25": mining.load_bm25(place.inputs["bm25"], dataset),
            "dense": index.load(place.inputs["index"]).retriever,
        }
        choice = hybrid.WeightChoice((0.5, 0.5), "min-max", ())
        if len(dataset.qrels.get("dev", ())):
            queries = dataset.split_queries("dev")
            rankings = [retrievers.retrieve_all(part, queries, k=hybrid.DEPTH) for part in parts.values()]
            choice = hybrid.choose_weight(*rankings, queries.ids, dataset.corpus, dataset.split("dev"))
        index.save(place.folder / "index", choice.retriever(parts), dataset.corpus)
        storage.write_json(place.folder / "weights.json", choice.as_json())
        place.meta.update({"weights": list(choice.weights), "normalize": choice.normalize})

    how = bindings.of(hybrid.choose_weight)
    return Stage("hybrid", how, (corpus, bm25, built), make)


def results_stage(
    name: str,
    corpus: Stage,
    bm25: Stage,
    built: Stage,
    trainings: Mapping[str, Stage],
    mixed: Stage | None,
    *,
    provenance: dict[str, Any],
) -> Stage:
    """Runs, measures and the report of one dense system, with BM25 and the combination beside it.

    Args:
      name: of the system, in tables.
      built: the index stage.
      trainings: what reports call each training → its stage.
      mixed: the stage of the combination, if there is one.
      provenance: settings that reports must say: "pseudo_queries", "seeds".
    """

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        searcher = index.load(place.inputs["index"])
        systems = {"BM25": mining.load_bm25(place.inputs["bm25"], dataset), name: searcher.retriever}
        if mixed is not None:
            systems[HYBRID.format(name)] = index.load(place.inputs["hybrid"] / "index").retriever
        about = dict(provenance)
        if mixed is not None:
            about["normalizer"] = f"{_NORMALIZER}; {HYBRID.format(name)}: {_how_combined(place.inputs['hybrid'])}"
        report = start_report(name, dataset, about)
        values = results.judge(place, report, dataset, systems)
        if mixed is not None:
            storage.write_json(place.folder / "comparisons.json", compare_with_parts(values, HYBRID.format(name)))
        for title, trained in trainings.items():
            add_training(report, title, place.inputs[trained.name])
        splits = results.judged_splits(dataset)
        if splits:
            results.add_examples(report, name, dataset, splits[-1], searcher)
        results.finish(place, report, dataset)

    settings = {"name": name, "measures": list(results.MEASURES), "depth": results.DEPTH, "provenance": provenance}
    inputs = (corpus, bm25, built, *trainings.values(), *((mixed,) if mixed is not None else ()))
    return Stage("results", settings, inputs, make)


def start_report(name: str, dataset: Dataset, provenance: dict[str, Any]) -> evaluation.Report:
    """A report of a system and its baseline; where `provenance` says nothing else, of one that generates nothing."""
    about = evaluation.Provenance(
        corpus={"name": dataset.name, **dataset.fingerprint},
        split=results.judged_splits(dataset),
        duplicate_rule="documents as they are given",
        **{"constraint": "none: nothing is generated", "normalizer": _NORMALIZER, **provenance},
    )
    return evaluation.Report(f"{name} on {dataset.name}", about, baseline="BM25")


def _how_combined(folder: pathlib.Path) -> str:
    """What a report says of the finished stage of the combination."""
    choice = json.loads((folder / "weights.json").read_text(encoding="utf-8"))
    weights = " and ".join(f"{weight:.2f}" for weight in choice["weights"])
    why = "chosen on dev" if choice["curve"] else "for there is no dev split to choose on"
    return f"{choice['normalize']} of each part's scores, weights {weights}, {why}"


def add_training(report: evaluation.Report, name: str, model: pathlib.Path) -> None:
    """Adds the curves of a training, where there was one that left something to draw."""
    curves = model / "metrics.jsonl"
    if any(record.keys() - {"step"} for record in read_metrics(curves)):
        report.add_training(name, curves)


def compare_with_parts(
    values: Mapping[str, Mapping[str, evaluation.Evaluation]], name: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """split → other system → how `name` compares with it in RR@10, as `evaluation.compare` says. A split of one query
    is left out: it has nothing to test."""
    return {
        split: {
            system: dataclasses.asdict(evaluation.compare(rows[name], measured, "RR@10"))
            for system, measured in rows.items()
            if system != name
        }
        for split, rows in values.items()
        if len(rows[name].query_ids) > 1
    }

"""What GDR's clusters save, and what documents that come later cost: `python -m benchmarks.gdr_efficiency`.

The indexes are those of the headline runs of `benchmarks.gdr_quality`, on `squad_dev`.

* Memory: parameters, bytes of the index without the documents' texts, and how often the first that is written is right:
  GDR's cluster, NCI's docid, and the cluster in NCI's docid.
* Speed: both retrievers in one process, on 2 threads, in turns, over the same questions, each with the fewest beams
  with which its R@100 on dev is within .005 of what the lesser of both reaches with all of them. "times faster" is the
  median of the ratios of neighbouring turns.
* Updates: a model of the small budget that never saw a tenth of the documents, chosen among those without training
  questions, gets them by index update alone; beside it the model that was trained with them. Questions are those of
  test_unseen that the added documents answer.
* Scale: 10 million vectors of 384 numbers, drawn, in int8 with float32 on the disk, in a process of its own. Time and
  bytes of larger corpora follow from its constants: of the 10,000 clusters 1% is looked into, so time and bytes grow
  with the documents.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import gdr_quality, harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax import docids, evaluation, retrievers
from gr_jax.corpus import Dataset, read_beir
from gr_jax.dense import ClusteredSearch, build_clustered
from gr_jax.errors import InputError
from gr_jax.recipes import clusters, documents
from gr_jax.retrievers import index

DATA = "squad_dev"
TURNS, QUESTIONS = 9, {1: 32, 32: 256}
BEAMS = (8, 16, 32, 64, 128)
NEAR = 0.005
DOCUMENTS, WIDTH, CLUSTERS, CHOSEN, QUERIES = 10_000_000, 384, 10_000, 100, 64


def _run(recipe: str) -> RecipeRun:
    run = gdr_quality.headline(DATA, recipe)
    run.make()
    return run


@functools.cache
def _dataset() -> Dataset:
    return read_beir(harness.data_folder(DATA))


def memory(recipe: str) -> Mapping[str, float]:
    """Parameters, bytes and accuracy of one system."""
    run = _run(recipe)
    retriever: Any = index.load(run.folder / "index").retriever
    held = sum(file.stat().st_size for file in (run.folder / "index" / "retriever").rglob("*") if file.is_file())
    parameters = sum(leaf.size for leaf in jax.tree.leaves(retriever.params))
    dataset = _dataset()
    queries, qrels = dataset.split_queries("test"), dataset.split("test")
    gold = [dataset.corpus.index_of(next(d for d, grade in qrels[q].items() if grade > 0)) for q in queries.ids]
    values = {
        "parameters, millions": parameters / 1e6,
        "tokens written": _written(run, recipe).vocab_size,
        "index bytes a document": (held - 4 * parameters) / len(dataset.corpus),
    }
    cluster_of = _cluster_of(_run("gdr"))
    if recipe == "gdr":
        decoded = retriever.decode(queries.texts)
        right = [retriever.looks_into(decoded, row, np.array([one]), 1)[0] for row, one in enumerate(gold)]
        return {**values, "first cluster right": float(np.mean(right))}
    first = retriever.retrieve(queries.texts, 1).doc_index[:, 0]
    return {
        **values,
        "first cluster right": float(np.mean(cluster_of[first] == cluster_of[gold])),
        "first docid right": float(np.mean(first == np.array(gold))),
    }


def _stage_folder(run: RecipeRun, stage: str, name: str) -> pathlib.Path:
    """The shared folder of an input of one of the run's own stages."""
    meta = json.loads((run.folder / stage / "manifest.json").read_text(encoding="utf-8"))["meta"]
    return run.folder.parent / "shared" / f"{name}-{meta['inputs'][name]}"


def _written(run: RecipeRun, recipe: str):
    if recipe == "gdr":
        return clusters.load_clusters(_stage_folder(run, "index", "clusters"))
    return documents.load_docids(_stage_folder(run, "index", "docids"))


def _cluster_of(run: RecipeRun) -> np.ndarray:
    return docids.memberships(_written(run, "gdr"))[:, 0]


def speed(batch: int) -> Mapping[str, float]:
    """Both systems in turns."""
    harness.two_threads("gdr_efficiency")
    systems: dict[str, Any] = {name: index.load(_run(name).folder / "index").retriever for name in ("gdr", "nci")}
    found = {name: _recalls(one) for name, one in systems.items()}
    wanted = min(max(recalls.values()) for recalls in found.values()) - NEAR
    values: dict[str, float] = {}
    for name, one in systems.items():
        one.beams = min(beams for beams, recall in found[name].items() if recall >= wanted)
        values |= {f"{name} beams": one.beams, f"{name} R@100 on dev": found[name][one.beams]}
    queries = _dataset().split_queries("test").texts[: QUESTIONS[batch]]
    parts = [queries[start : start + batch] for start in range(0, len(queries), batch)]

    def timed(one) -> float:
        started = time.perf_counter()
        for part in parts:
            one.retrieve(part, 100)
        return time.perf_counter() - started

    for one in systems.values():
        timed(one)  # compiled
    turns = [(timed(systems["gdr"]), timed(systems["nci"])) for _ in range(TURNS)]
    return {
        **values,
        "times faster": statistics.median(theirs / ours for ours, theirs in turns),
        "GDR, queries a second": len(queries) / statistics.median(ours for ours, _ in turns),
        "NCI, queries a second": len(queries) / statistics.median(theirs for _, theirs in turns),
    }


def _recalls(retriever) -> dict[int, float]:
    """R@100 on dev by number of beams."""
    dataset, before, values = _dataset(), retriever.beams, {}
    queries, qrels = dataset.split_queries("dev"), dataset.split("dev")
    for beams in BEAMS:
        retriever.beams = beams
        run = retrievers.retrieve_run(retriever, queries, dataset.corpus, k=100)
        values[beams] = evaluation.evaluate(run, qrels, ("R@100",))["R@100"]
    retriever.beams = before
    return values


def _added_documents() -> list[str]:
    """A tenth of the documents, of those that no training question asks for."""
    dataset = _dataset()
    asked = {doc_id for relevant in dataset.split("train").values() for doc_id in relevant}
    asked |= {doc_id for relevant in dataset.split("dev").values() for doc_id in relevant}
    free = [doc_id for doc_id in dataset.corpus.doc_ids if doc_id not in asked]
    count = min(len(free), len(dataset.corpus) // 10)
    chosen = np.random.default_rng(0).choice(len(free), count, replace=False)
    return [free[i] for i in np.sort(chosen)]


def updates() -> Mapping[str, float]:
    """R@10 of questions about added documents, before, after and with training."""
    dataset, added = _dataset(), _added_documents()
    folder = harness.CHECKOUT / "runs" / "gdr"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "kept.ids"
    kept.write_text("\n".join(d for d in dataset.corpus.doc_ids if d not in set(added)) + "\n", encoding="utf-8")
    subset = f'BeirFolder.subset="{kept.relative_to(harness.CHECKOUT)}"'
    without = gdr_quality.small("gdr", "kept", subset, seeds=(0,), on=_encoder_without(subset))[0]
    whole = gdr_quality.small("gdr", seeds=(0,))[0]
    for run in (without, whole):
        run.make()
    qrels = {q: r for q, r in dataset.split("test_unseen").items() if set(r) <= set(added)}
    queries = dataset.queries.select(list(qrels))
    new = dataset.corpus.subset([dataset.corpus.index_of(doc_id) for doc_id in added])
    index.load(without.folder / "index").update(add=new.subset(range(8)))  # compiled
    searcher = index.load(without.folder / "index")
    started = time.perf_counter()
    searcher.update(add=new)
    seconds = time.perf_counter() - started
    after = _recall(searcher.retriever, queries, searcher.corpus, qrels)
    trained = _recall(index.load(whole.folder / "index").retriever, queries, dataset.corpus, qrels)
    return {
        "documents added": len(added),
        "questions": len(qrels),
        "R@10, added": after,
        "R@10, trained with them": trained,
        "seconds per 1,000 added": 1000 * seconds / len(added),
        "seconds of training": float(whole.training()["seconds"]),
    }


def _encoder_without(subset: str) -> RecipeRun:
    seed0 = gdr_quality.encoder(0)
    return RecipeRun("dense", DATA, "dpr", "encoder_kept", budget="small", flags=(*seed0.flags, subset))


def _recall(retriever, queries, corpus, qrels) -> float:
    run = retrievers.retrieve_run(retriever, queries, corpus, k=10)
    return evaluation.evaluate(run, qrels, ("R@10",))["R@10"]


class Drawn:
    """Unit vectors around their clusters' centres, made when they are asked for: the same ones every time."""

    shape = (DOCUMENTS, WIDTH)

    def __init__(self):
        rng = np.random.default_rng(0)
        self.centers = _unit(rng.standard_normal((CLUSTERS, WIDTH), np.float32))
        self.clusters = rng.integers(0, CLUSTERS, DOCUMENTS).astype(np.int32)
        self._noise = rng.standard_normal((1 << 22) + WIDTH, np.float32)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        starts = (rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(42)).astype(np.int64)
        noise = self._noise[starts[:, None] + np.arange(WIDTH)]
        return _unit(self.centers[self.clusters[rows]] + noise * np.float32(0.7 / WIDTH**0.5))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def build_and_search(folder: str) -> None:
    """Of `scale`, in a process of its own: prints its values as JSON."""
    drawn, place = Drawn(), pathlib.Path(folder) / "search"
    started = time.perf_counter()
    build_clustered(place, drawn, drawn.clusters, num_clusters=CLUSTERS, codes="row", progress=True)
    built = time.perf_counter() - started
    search = ClusteredSearch.load(place, verify=False)
    rng = np.random.default_rng(1)
    asked = rng.choice(DOCUMENTS, QUERIES, replace=False)
    queries = _unit(drawn[asked] + rng.standard_normal((QUERIES, WIDTH), np.float32) * np.float32(0.3 / WIDTH**0.5))
    chosen = np.argsort(-(queries @ drawn.centers.T), axis=1)[:, :CHOSEN].astype(np.int32)
    search.search_clusters(queries[:2], chosen[:2], 100)  # compiled
    times = []
    for query, its in zip(queries, chosen, strict=True):
        started = time.perf_counter()
        found, _ = search.search_clusters(query[None], its[None], 100)
        times.append(time.perf_counter() - started)
    found, _ = search.search_clusters(queries, chosen, 100)
    exact = []
    for query, its, answer in zip(queries[:16], chosen[:16], found[:16], strict=True):
        inside = np.flatnonzero(np.isin(drawn.clusters, its))
        best = inside[np.argsort(-(drawn[inside] @ query), kind="stable")[:100]]
        exact.append(len(np.intersect1d(best, answer)) / 100)
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    values = {
        "minutes to build": built / 60,
        "GiB on disk": size / 2**30,
        "peak GiB of memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "ms a query": 1000 * statistics.median(times),
        "recall@100 of exact": float(np.mean(exact)),
    }
    print(json.dumps(values))


@functools.cache
def _scale() -> Mapping[str, float]:
    with tempfile.TemporaryDirectory(dir=harness.CHECKOUT / "runs") as folder:
        command = [sys.executable, "-m", "benchmarks.gdr_efficiency", f"--build_and_search={folder}"]
        process = subprocess.run(command, cwd=harness.CHECKOUT, stdout=subprocess.PIPE, text=True)
        if process.returncode:
            raise InputError("building a large index failed", "See above.", value=process.returncode)
    return json.loads(process.stdout.splitlines()[-1])


def on_paper(count: int) -> Mapping[str, float]:
    """From the constants of the index that was built."""
    measured, times = _scale(), count / DOCUMENTS
    return {
        "GiB on disk": measured["GiB on disk"] * times,
        "GiB of memory": count
        * (WIDTH + 4 + 4 + 1)
        / 2**30,  # codes, a scale, the document's number, whether it is there
        "ms a query": measured["ms a query"] * times,
    }


def rows() -> list[harness.Row]:
    """The table."""
    runs = {recipe: gdr_quality.headline(DATA, recipe) for recipe in ("gdr", "nci")}
    both = {name: run.config() for name, run in runs.items()}
    corpus = runs["gdr"].fingerprint
    table = [
        harness.Row(
            name=f"memory, {recipe.upper()}",
            config={"what": "memory", **both},
            measure=functools.partial(memory, recipe),
            corpus=corpus,
            seeds=(0,),
        )
        for recipe in runs
    ]
    for batch in QUESTIONS:
        table.append(
            harness.Row(
                name=f"speed, batch {batch}",
                config={"what": "speed", "batch": batch, "beams": list(BEAMS), **both},
                measure=functools.partial(speed, batch),
                at_least={"times faster": 1.0},
                corpus=corpus,
                seeds=(0,),
            )
        )
    table.append(
        harness.Row(
            name="updates",
            config={"what": "updates", "small": gdr_quality.small("gdr", seeds=(0,))[0].config()},
            measure=updates,
            corpus=corpus,
            seeds=(0,),
        )
    )
    shape = {"documents": DOCUMENTS, "width": WIDTH, "clusters": CLUSTERS, "chosen": CHOSEN}
    table.append(
        harness.Row(
            name=f"{DOCUMENTS:,} vectors, drawn",
            config={"what": "scale", **shape},
            measure=_scale,
            at_most={"peak GiB of memory": 20.0},
            at_least={"recall@100 of exact": 0.995},
            seeds=(0,),
        )
    )
    for count in (10_000_000, 100_000_000):
        table.append(
            harness.Row(
                name=f"{count:,} documents, on paper",
                config={"what": "on paper", "count": count, **shape},
                measure=functools.partial(on_paper, count),
                seeds=(0,),
            )
        )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build_and_search")
    known, rest = parser.parse_known_args(argv)
    if known.build_and_search:
        build_and_search(known.build_and_search)
        return 0
    return harness.main("gdr_efficiency", rows(), rest)


if __name__ == "__main__":
    sys.exit(main())

"""What GDR's clusters save, and what documents that come later cost: `python -m benchmarks.gdr_efficiency`.

The indexes are those of the headline runs of `benchmarks.gdr_quality`, on `squad_dev`.

* Memory: parameters, bytes of the index without the documents' texts, and how often the first that is written is right:
  GDR's cluster, the others' docid, and the cluster of that document.
* Speed: GDR and another in one process, on 2 threads, in turns, over the same questions, each with the fewest beams
  with which its R@100 on dev is within .005 of what the lesser of both reaches with all of them; the others' recipes
  have 100 beams, which are among those tried. "times faster" is the
  median of the ratios of neighbouring turns.
* Updates: a model of the small budget that never saw a tenth of the documents, chosen among those without training
  questions, gets them by index update alone; beside it the model that was trained with them. Questions are those of
  test_unseen that the added documents answer.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import gdr_quality, harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import Dataset, read_beir

DATA = "squad_dev"
OTHERS = {"nci": "NCI", "dsi_clusters": gdr_quality.CLUSTERS}
TURNS, QUESTIONS = 9, {1: 32, 32: 256}
BEAMS = (8, 16, 32, 64, 100, 128)
NEAR = 0.005


def _run(system: str) -> RecipeRun:
    run = gdr_quality.headline(DATA, system)
    run.make()
    return run


@functools.cache
def _dataset() -> Dataset:
    return read_beir(harness.data_folder(DATA))


def memory(system: str) -> Mapping[str, float]:
    """Parameters, bytes and accuracy of one system."""
    import jax

    from gr_jax.retrievers import index

    run = _run(system)
    retriever: Any = index.load(run.folder / "index").retriever
    folder = run.folder / "index" / "retriever"
    sizes = {file.relative_to(folder): file.stat().st_size for file in folder.rglob("*") if file.is_file()}
    fixed = sum(size for file, size in sizes.items() if _is_fixed(file))
    network = retriever if system == "gdr" else retriever.model
    parameters = sum(leaf.size for leaf in jax.tree.leaves(network.params))
    dataset = _dataset()
    queries, gold = dataset.split_queries("test"), gdr_quality.answers(dataset, "test")
    values = {
        "parameters, millions": parameters / 1e6,
        "tokens written": _written(run, system).vocab_size,
        "index bytes a document": (sum(sizes.values()) - fixed) / len(dataset.corpus),
        "MiB whatever the corpus": fixed / 2**20,
    }
    cluster_of = _cluster_of(_run("gdr"))
    if system == "gdr":
        decoded = retriever.decode(queries.texts)
        right = [retriever.looks_into(decoded, row, np.array([one]), 1)[0] for row, one in enumerate(gold)]
        return {**values, "first cluster right": float(np.mean(right))}
    first = retriever.retrieve(queries.texts, 1).doc_index[:, 0]
    return {
        **values,
        "first cluster right": float(np.mean(cluster_of[first] == cluster_of[gold])),
        "first docid right": float(np.mean(first == gold)),
    }


def _is_fixed(file: pathlib.Path) -> bool:
    """Networks and vocabularies: what does not grow with the documents."""
    from gr_jax.models import network_folder

    return file.parts[0] in ("document_encoder", "vocabulary") or file.name == network_folder.PARAMETERS_FILE


def _written(run: RecipeRun, system: str):
    from gr_jax.stages.clusters import load_clusters
    from gr_jax.stages.docids import load_docids

    if system == "gdr":
        return load_clusters(run.input_folder("index", "clusters"))
    return load_docids(run.input_folder("index", "docids"))


def _cluster_of(run: RecipeRun) -> np.ndarray:
    from gr_jax import docids

    return docids.memberships(_written(run, "gdr"))[:, 0]


def speed(other: str, batch: int) -> Mapping[str, float]:
    """GDR and another system in turns."""
    from gr_jax.retrievers import index

    harness.two_threads("gdr_efficiency")
    systems: dict[str, Any] = {name: index.load(_run(name).folder / "index").retriever for name in ("gdr", other)}
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
            one.retrieve(part, _depth(one))
        return time.perf_counter() - started

    for one in systems.values():
        timed(one)  # compiled
    turns = [(timed(systems["gdr"]), timed(systems[other])) for _ in range(TURNS)]
    return {
        **values,
        "times faster": statistics.median(theirs / ours for ours, theirs in turns),
        "GDR, queries a second": len(queries) / statistics.median(ours for ours, _ in turns),
        f"{OTHERS[other]}, queries a second": len(queries) / statistics.median(theirs for _, theirs in turns),
    }


def _depth(retriever) -> int:
    """A hundred documents; of the others no more than they have hypotheses, or they would keep more."""
    from gr_jax.systems.gdr.retriever import GDRRetriever

    return 100 if isinstance(retriever, GDRRetriever) else min(100, retriever.beams)


def _recalls(retriever) -> dict[int, float]:
    """R@100 on dev by number of beams."""
    from gr_jax import evaluation, retrievers

    dataset, before, values = _dataset(), retriever.beams, {}
    queries, qrels = dataset.split_queries("dev"), dataset.split("dev")
    for beams in BEAMS:
        retriever.beams = beams
        run = retrievers.retrieve_run(retriever, queries, dataset.corpus, k=_depth(retriever))
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
    """R@10 of questions about documents that an index got without training, and where training had them."""
    from gr_jax.retrievers import index

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
    index.load(without.folder / "index").update(add=new)  # compiled
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
        "core-seconds of training": 60 * whole.core_minutes(),
    }


def _encoder_without(subset: str) -> RecipeRun:
    seed0 = gdr_quality.encoder(0)
    return RecipeRun("dense", DATA, "dpr", "encoder_kept", budget="small", flags=(*seed0.flags, subset))


def _recall(retriever, queries, corpus, qrels) -> float:
    from gr_jax import evaluation, retrievers

    run = retrievers.retrieve_run(retriever, queries, corpus, k=10)
    return evaluation.evaluate(run, qrels, ("R@10",))["R@10"]


def rows() -> list[harness.Row]:
    """The table."""
    runs = {system: gdr_quality.headline(DATA, system) for system in ("gdr", *OTHERS)}
    corpus = runs["gdr"].fingerprint
    table = [
        harness.Row(
            name=f"memory of {OTHERS.get(system, 'GDR')}",
            config={"what": "memory"},
            measure=functools.partial(memory, system),
            corpus=corpus,
            seeds=(0,),
            runs=[runs["gdr"], *([] if system == "gdr" else [runs[system]])],
        )
        for system in runs
    ]
    for other, batch in itertools.product(OTHERS, QUESTIONS):
        table.append(
            harness.Row(
                name=f"speed at batch {batch}, beside {OTHERS[other]}",
                config={
                    "what": "speed",
                    "batch": batch,
                    "beams": list(BEAMS),
                    "near": NEAR,
                    "turns": TURNS,
                    "questions": QUESTIONS[batch],
                },
                measure=functools.partial(speed, other, batch),
                at_least={"times faster": 1.0},
                corpus=corpus,
                seeds=(0,),
                runs=[runs["gdr"], runs[other]],
                speed=True,
            )
        )
    table.append(
        harness.Row(
            name="updates",
            config={
                "what": "updates",
                "without": "a tenth of the documents",
                "measure": "R@10",
            },
            measure=updates,
            corpus=corpus,
            seeds=(0,),
            runs=gdr_quality.small("gdr", seeds=(0,)),
        )
    )
    return table


if __name__ == "__main__":
    sys.exit(harness.main("gdr_efficiency", rows()))

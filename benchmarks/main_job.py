"""The main job: GDR and DSI on real corpora. `python -m benchmarks.main_job`.

Every row is a system run as a user runs it, `gr-jax recipe --gin_file=…`, in a process of its own, into
`runs/main_job/`; an interrupted one goes on where it was. BM25 is measured in the same run. What was chosen (steps,
rates, beams) was chosen on dev or train; the test splits are only read here. Standard budget: 30 minutes of training
on 2 cores at most; the quickstart trains for at most 3.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
import time
from collections.abc import Mapping

from benchmarks import harness, recipe_runs
from benchmarks.recipe_runs import RecipeRun

Floors = Mapping[str, Mapping[str, float | harness.ShareOf]]


def _hits(at_1: float, at_10: float) -> dict[str, float | harness.ShareOf]:
    return {"Success@1": at_1, "Success@10": at_10}


def _share_of_bm25(split: str) -> dict[str, float | harness.ShareOf]:
    return {"Success@10": harness.ShareOf(f"python_docs {split} BM25", 0.85)}


SQUAD_CENTROIDS: Floors = {"test": _hits(0.65, 0.90), "test_unseen": _hits(0.50, 0.87)}
# Data set, system, what the row is called, and by split what it must reach.
SYSTEMS: tuple[tuple[str, str, str, Floors], ...] = (
    ("python_docs", "quickstart", "GDR quickstart", {s: _share_of_bm25(s) for s in ("test", "test_unseen")}),
    ("python_docs", "dsi_python_docs", "DSI", {s: _share_of_bm25(s) for s in ("test", "test_unseen")}),
    ("squad_dev", "dsi_scratch", "DSI from scratch", {"test": _hits(0.50, 0.82), "test_unseen": _hits(0.22, 0.70)}),
    ("squad_dev", "dsi_centroids", "DSI centroids", SQUAD_CENTROIDS),
    ("squad_dev", "dsi_codes", "DSI codes", {"test": {}, "test_unseen": {}}),
    ("squad_dev", "dsi_passages", "DSI centroids, a docid a sentence", SQUAD_CENTROIDS),
    ("nq_boolq_dev", "dsi_centroids", "DSI centroids", {"test": _hits(0.68, 0.94)}),
)
# BM25's reference values on these data sets; to be met within .01.
BM25_REFERENCE: Mapping[tuple[str, str], tuple[float, float]] = {
    ("squad_dev", "test"): (0.789, 0.953),
    ("squad_dev", "test_unseen"): (0.757, 0.957),
    ("nq_boolq_dev", "test"): (0.711, 0.931),
}


LARGE = RecipeRun("main_job", "wiki_intro_179k", "dsi_large", subset="100k")


def measure(run: RecipeRun, split: str, system: str) -> dict[str, float]:
    """Runs the system, or what is left of it, and reads what it, or BM25 beside it, reached on one split."""
    run.make()
    values = json.loads((run.folder / "results" / "metrics.json").read_text(encoding="utf-8"))[split][system]
    return values if system == "BM25" else {**values, "training minutes": run.training()["seconds"] / 60}


def measure_large() -> dict[str, float]:
    """Indexes 100,000 documents, trains for 100 steps, answers a question; minutes and the largest process's memory.

    Everything is made anew: memory that an earlier run had spent would not be seen.
    """
    folder = LARGE.folder
    shutil.rmtree(folder, ignore_errors=True)
    shared = f'--gin.run.shared_dir="{folder}/shared"'
    started = time.monotonic()
    indexing = recipe_runs.launch("index", *LARGE.arguments(), shared)
    minutes = (time.monotonic() - started) / 60
    answering = recipe_runs.launch(
        "search", f"--index={folder / 'index'}", "Which river flows through the capital of Austria?"
    )
    documents = json.loads((folder / "index" / "manifest.json").read_text(encoding="utf-8"))["meta"]["documents"]
    return {"documents": documents, "peak GiB": max(indexing, answering), "minutes": minutes}


def rows() -> list[harness.Row]:
    """The table."""
    table: dict[str, harness.Row] = {}
    for data, system, title, floors in SYSTEMS:
        run = RecipeRun("main_job", data, system)
        for split, at_least in floors.items():
            reference = BM25_REFERENCE.get((data, split))
            measures = ("Success@1", "Success@10")
            name = f"{data} {split} BM25"
            table.setdefault(
                name,
                harness.Row(
                    name=name,
                    config={"data": data, "split": split, "system": "BM25"},
                    measure=functools.partial(measure, run, split, "BM25"),
                    at_least={m: round(v - 0.01, 4) for m, v in zip(measures, reference or (), strict=False)},
                    at_most={m: round(v + 0.01, 4) for m, v in zip(measures, reference or (), strict=False)},
                    corpus=run.fingerprint,
                ),
            )
            name = f"{data} {split} {title}"
            table[name] = harness.Row(
                name=name,
                config={"split": split},
                measure=functools.partial(measure, run, split, title.split()[0]),
                at_least=at_least,
                at_most={"training minutes": 3.0 if data == "python_docs" else 30.0},
                corpus=run.fingerprint,
                seeds=(0,),
                runs=[run],
            )
    table["wiki_intro 100k"] = harness.Row(
        name="wiki_intro 100k",
        config={"what": "index, one answer"},
        measure=measure_large,
        at_least={"documents": 100_000},
        at_most={"peak GiB": 8.0},
        note="index, 100 steps, one answer",
        corpus=LARGE.fingerprint,
        seeds=(0,),
        runs=[LARGE],
    )
    return list(table.values())


if __name__ == "__main__":
    sys.exit(harness.main("main_job", rows()))

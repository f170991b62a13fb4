"""The default beside its combination with BM25, and what mining costs: `python -m benchmarks.combination`.

Every row of the first part reads `gdr` as a user runs it on a folder that nobody tuned it for, at the small budget and
with one seed, into `runs/combination/`. The weight of the combination is chosen on dev; test splits are read once. A
row says RR@10 of the combination, of BM25 and of the system, and for each of the latter two the lower end of the 95%
interval of the difference, by bootstrap over queries, and p of the paired t-test.

The second part says how much of the documents is read.

The third makes the negatives of a document encoder's training twice: of the questions that the training draws, as
it is done, and of every question. One process makes both, one after the other; their share of core time is judged.
"""

from __future__ import annotations

import functools
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness, records
from benchmarks.recipe_runs import PYTHON_DOCS, RecipeRun
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.evaluation import compare

NAME = GROUP = "combination"
MEASURE = "RR@10"
BM25, GDR, BOTH = "BM25", "GDR", "BM25 + GDR"
WORST = -0.01  # of the lower end of an interval
SHARE = 0.25
Values = Mapping[str, float]


def run_of(data: str, subset: str = "") -> RecipeRun:
    """The default on a data set, at the small budget."""
    return RecipeRun(GROUP, data, "gdr", "small", subset, budget="small_gdr")


RUNS = {
    "squad_dev": run_of("squad_dev"),
    "wiki_intro_179k 10k": run_of("wiki_intro_179k", "10k"),
    "nq_boolq_dev": run_of("nq_boolq_dev"),
    PYTHON_DOCS: run_of(PYTHON_DOCS),
}
# The splits that each has; of a set it is the first that is counted.
SPLITS: Mapping[str, Sequence[str]] = {
    "squad_dev": ("test", "test_unseen"),
    "wiki_intro_179k 10k": ("test", "test_dbpedia"),
    "nq_boolq_dev": ("test",),
    PYTHON_DOCS: ("test", "test_unseen"),
}
MINED = RUNS["wiki_intro_179k 10k"]


def combined(run: RecipeRun, split: str) -> Values:
    """What the combination reaches, and how far it is above its parts."""
    run.make()
    both = run.evaluation(split, BOTH)
    values = {f"{MEASURE} {BOTH}": both[MEASURE]}
    for name in (BM25, GDR):
        part = run.evaluation(split, name)
        found = compare(both, part, MEASURE)
        values[f"{MEASURE} {name}"] = part[MEASURE]
        values |= {f"low {name}": found.interval[0], f"p {name}": found.p_t}
    return values


def above_both() -> Values:
    """On how many sets the combination is above both its parts, p < .05 for each, as the rows of its splits have it.

    Raises:
      InputError: one of them is missing or stale.
    """
    count, current = 0, harness.current_values(split_rows(), records.read(harness.RESULTS / f"{NAME}.json"))
    for data in RUNS:
        name = f"{data} {SPLITS[data][0]} {BOTH}"
        if name not in current:
            raise InputError("a row that this one counts is missing or stale", "Measure it first.", value=name)
        values = current[name]
        parts = [(values[f"{MEASURE} {name}"], values[f"p {name}"]) for name in (BM25, GDR)]
        count += all(value < values[f"{MEASURE} {BOTH}"] and p < 0.05 for value, p in parts)
    return {"sets with p < .05": count}


def read(run: RecipeRun) -> Values:
    """How much of the documents the encoder reads, and how many pieces are searched where that is too little."""
    run.make()
    found = storage.read_folder(run.input_folder("index", "vectors"), verify=False).meta["read"]
    pieces = storage.read_folder(run.input_folder("index", "pieces"), verify=False).meta["vectors"]
    share = found["tokens read"] / found["tokens"]
    return {"documents": found["documents"], "cut": found["cut"], "tokens read": share, "pieces": pieces}


def mining(run: RecipeRun) -> Values:
    """Minutes of mining of what the document encoder's training draws, of every question, and what both found.

    The sides follow one another, so that "share, of cores", of the process's core time, is judged, and not "share".
    """
    import jax

    from gr_jax.stages.graph import Place, Stage, in_order
    from gr_jax.stages.negatives import NEGATIVES
    from gr_jax.stages.runner import Runner
    from gr_jax.training.negatives import Negatives

    stage, runner = run.stages()["encoder_negatives"], Runner(run.folder)
    runner.run(in_order(*stage.upstream()))
    inputs = {name: runner.folder(one) for name, one in stage.inputs.items() if isinstance(one, Stage)}
    minutes, tables, notes = dict[str, float](), dict[str, dict[str, np.ndarray]](), dict[str, Any]()
    with tempfile.TemporaryDirectory() as root:
        draws = stage.settings["draws"]
        for title, drawn in (("drawn", draws), ("every", [])):
            place = Place(pathlib.Path(root) / title, pathlib.Path(root) / "work", {})
            place.folder.mkdir()
            jax.clear_caches()  # each compiles for itself
            started, of_cores = time.monotonic(), time.process_time()
            stage.function.function(place, **inputs, **{**stage.settings, "draws": drawn})
            minutes[title] = (time.monotonic() - started) / 60
            minutes[f"{title}, of cores"] = (time.process_time() - of_cores) / 60
            notes |= place.notes
            kinds = [kind for kind in NEGATIVES if (place.folder / kind / storage.MANIFEST).is_file()]
            tables[title] = {kind: np.array(Negatives.load(place.folder / kind).documents) for kind in kinds}
    same = []
    for kind, documents in tables["drawn"].items():
        rows = (documents >= 0).any(axis=1)
        same.append((documents[rows] == tables["every"][kind][rows]).all(axis=1))
    return {
        "questions": notes["questions"]["of"],
        "drawn": notes["questions"]["mined"],
        "minutes": minutes["drawn"],
        "minutes, every question": minutes["every"],
        "share": minutes["drawn"] / minutes["every"],
        "share, of cores": minutes["drawn, of cores"] / minutes["every, of cores"],
        "same negatives": float(np.mean(np.concatenate(same))),
    }


def split_rows() -> list[harness.Row]:
    """A row for each split of each set."""
    return [
        harness.Row(
            name=f"{data} {split} {BOTH}",
            config={"split": split},
            measure=functools.partial(combined, run, split),
            at_least={f"low {name}": WORST for name in (BM25, GDR)},
            corpus=run.fingerprint,
            seeds=(0,),
            runs=[run],
        )
        for data, run in RUNS.items()
        for split in SPLITS[data]
    ]


def rows() -> list[harness.Row]:
    """The table, in the order in which it is measured."""
    table = split_rows()
    table.append(
        harness.Row(
            name=f"{BOTH} above both",
            config={"splits": {data: splits[0] for data, splits in SPLITS.items()}},
            measure=above_both,
            at_least={"sets with p < .05": 2},
            corpus=lambda: " ".join(run.fingerprint() for run in RUNS.values()),
            seeds=(0,),
            runs=list(RUNS.values()),
        )
    )
    table += [
        harness.Row(
            name=f"{data}, documents read",
            config={"what": "documents read"},
            measure=functools.partial(read, run),
            corpus=run.fingerprint,
            seeds=(0,),
            runs=[run],
        )
        for data, run in RUNS.items()
    ]
    table.append(
        harness.Row(
            name="wiki_intro_179k 10k, mining what is drawn",
            config={"stage": "encoder_negatives"},
            measure=functools.partial(mining, MINED),
            at_least={"same negatives": 1.0},
            at_most={"share, of cores": SHARE},
            corpus=MINED.fingerprint,
            seeds=(0,),
            runs=[MINED],
        )
    )
    return table


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows()))

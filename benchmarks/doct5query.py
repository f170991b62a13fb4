"""BM25 beside BM25 over documents with generated queries: `python -m benchmarks.doct5query`.

One run as a user runs it, into `runs/doct5query/`; an interrupted one goes on where it was. Training and
generation together may take the standard budget, 60 core-minutes. Ten generated queries stand in the run's
`results/report.md`. What was chosen (steps, samples, filter) was chosen on dev; the test splits are only read here.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping

import numpy as np

from benchmarks import harness
from benchmarks.dense_quality import STANDARD
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.corpus import read_beir

DATA = "squad_dev"
STAGES = {"generator": "core-minutes of training", "generated": "core-minutes of generation"}
RUN = RecipeRun("doct5query", DATA, "bm25_doct5query")
SYSTEMS = ("BM25", "BM25 + docT5query")
# BM25's reference values, to be met within .01.
REFERENCE = {"test": (0.789, 0.953, 0.848), "test_unseen": (0.757, 0.957, 0.829)}
MEASURES = ("Success@1", "Success@10", "RR@10")


def measure(split: str, system: str) -> Mapping[str, float]:
    """Runs the system, or what is left of it, and reads what one system reached on one split."""
    RUN.make()
    values = json.loads((RUN.folder / "results" / "metrics.json").read_text(encoding="utf-8"))[split][system]
    if system != "BM25":
        values |= {name: RUN.core_minutes([stage]) for stage, name in STAGES.items()}
        values["core-minutes"] = RUN.core_minutes(list(STAGES))
        values["queries a document"] = storage.read_folder(RUN.folder / "generated", verify=False).meta["per_document"]
    return values


def rows() -> list[harness.Row]:
    """The table."""
    table = []
    for split, reference in REFERENCE.items():
        for system in SYSTEMS:
            plain = system == "BM25"
            bounds = dict(zip(MEASURES, reference, strict=True)) if plain else {}
            table.append(
                harness.Row(
                    name=f"{DATA} {split} {system}",
                    config={"split": split, "system": system},
                    measure=functools.partial(measure, split, system),
                    at_least={name: round(value - 0.01, 4) for name, value in bounds.items()},
                    at_most={name: round(value + 0.01, 4) for name, value in bounds.items()}
                    if plain
                    else {"core-minutes": STANDARD},
                    corpus=RUN.fingerprint,
                    seeds=() if plain else (0,),
                    runs=[RUN],
                )
            )
    return table


def show_queries(count: int = 10) -> None:
    """Prints some of the queries that were generated, with the titles of their documents."""
    from gr_jax.docids.pseudo_queries import PseudoQueries

    corpus = read_beir(harness.data_folder(DATA)).corpus
    made = PseudoQueries.load(RUN.folder / "generated" / "pseudo_queries")
    print("Generated queries:")
    for place in np.linspace(0, len(made) - 1, count).astype(int).tolist():
        print(f"  {made.texts[place]}  ({corpus[int(made.documents[place])].title})")


if __name__ == "__main__":
    status = harness.main("doct5query", rows())
    if (RUN.folder / "generated" / "manifest.json").exists():
        show_queries()
    sys.exit(status)

"""BM25 beside BM25 over documents with generated queries: `python -m benchmarks.doct5query`.

One run of the recipe as a user runs it, into `runs/doct5query/`; an interrupted one goes on where it was. Training and
generation together may take the standard budget, 30 minutes on 2 cores. Ten generated queries stand in the run's
`results/report.md`. What was chosen (steps, samples, filter) was chosen on dev; the test splits are only read here.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import harness
from gr_jax import recipes, storage
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError

DATA, BUDGET = "squad_dev", 30.0
MODEL_DIR = harness.CHECKOUT / "runs" / "doct5query" / DATA
SYSTEMS = ("BM25", "BM25 + docT5query")
# BM25's reference values, to be met within .01.
REFERENCE = {"test": (0.789, 0.953, 0.848), "test_unseen": (0.757, 0.957, 0.829)}
MEASURES = ("Success@1", "Success@10", "RR@10")


def measure(split: str, system: str) -> Mapping[str, float]:
    """Runs the recipe, or what is left of it, and reads what one system reached on one split."""
    flags = [f'--gin.MODEL_DIR="{MODEL_DIR}"', f'--gin.CORPUS="{harness.data_folder(DATA)}"']
    command = [sys.executable, "-m", "launch.recipe", "--gin_file=gin_configs/recipes/bm25_doct5query.gin", *flags]
    if status := subprocess.run(command, cwd=harness.CHECKOUT).returncode:
        raise InputError(f"launch.recipe ended with status {status}", "See above.")
    values = json.loads((MODEL_DIR / "results" / "metrics.json").read_text(encoding="utf-8"))[split][system]
    if system != "BM25":
        for name, stage in (("training minutes", "generator"), ("generation minutes", "generated")):
            values[name] = storage.read_folder(MODEL_DIR / stage, verify=False).meta["seconds"] / 60
        values["minutes"] = values["training minutes"] + values["generation minutes"]
        values["queries a document"] = storage.read_folder(MODEL_DIR / "generated", verify=False).meta["per_document"]
    return values


@functools.cache
def _fingerprint() -> str:
    return read_beir(harness.data_folder(DATA)).corpus.fingerprint


def rows() -> list[harness.Row]:
    """The table."""
    settings = {
        "generator": dataclasses.asdict(recipes.QueryGenerating()),
        "generated": dataclasses.asdict(recipes.GeneratedQueries()),
    }
    table = []
    for split, reference in REFERENCE.items():
        for system in SYSTEMS:
            plain = system == "BM25"
            bounds = dict(zip(MEASURES, reference, strict=True)) if plain else {}
            table.append(
                harness.Row(
                    name=f"{DATA} {split} {system}",
                    config={"data": DATA, "split": split, "system": system, **({} if plain else settings)},
                    measure=functools.partial(measure, split, system),
                    at_least={name: round(value - 0.01, 4) for name, value in bounds.items()},
                    at_most={name: round(value + 0.01, 4) for name, value in bounds.items()}
                    if plain
                    else {"minutes": BUDGET},
                    corpus=_fingerprint,
                    seeds=() if plain else (0,),
                )
            )
    return table


if __name__ == "__main__":
    sys.exit(harness.main("doct5query", rows()))

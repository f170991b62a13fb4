"""How fast writers of n-grams answer, and how large their index is: rows of `benchmarks.generative_baselines`.

Systems answer questions of dev of `nq_boolq_dev`, one by one and 64 at a time. The counted copier, which needs no
training, answers from all 178,775 documents of `wiki_intro_179k` too, beside BM25.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.corpus import read_beir
from gr_jax.stages.training import folder_bytes

DATA, WHOLE = "nq_boolq_dev", "wiki_intro_179k"
ONE_BY_ONE, TOGETHER, AT_A_TIME = 64, 256, 64
Values = Mapping[str, float]


def untrained_gdr(data: str) -> RecipeRun:
    """GDR as it starts."""
    return RecipeRun("ngram", data, "gdr", "untrained", flags=("GDR.encoder_training=None", "GDR.training=None"))


def speed(run: RecipeRun, name: str) -> Values:
    """One over the median time of a question of dev, one by one and in batches; and the index' bytes a document."""
    from gr_jax.retrievers import index
    from gr_jax.stages.bm25 import load_bm25
    from gr_jax.stages.documents import load_dataset

    run.make()
    dataset = read_beir(harness.data_folder(run.data))
    questions = dataset.split_queries("dev").texts[:TOGETHER]
    folder = run.folder / "index"
    if name == "BM25":
        folder = run.input_folder("results", "bm25")
        retriever: Any = load_bm25(folder, load_dataset(run.input_folder("results", "corpus")))
    else:
        retriever = index.load(folder).retriever
    values = {"bytes a document": folder_bytes(folder) / len(dataset.corpus)}
    for measure, asked, batch in (("one by one", questions[:ONE_BY_ONE], 1), ("64 at a time", questions, AT_A_TIME)):
        parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]
        took = []
        for again in range(2):  # the first compiles
            for part in parts:
                started = time.perf_counter()
                retriever.retrieve(part, 100)
                if again:
                    took.append((time.perf_counter() - started) / len(part))
        values[f"queries/s, {measure}"] = 1 / float(np.median(took))
    return values


def whole(run: RecipeRun, name: str) -> Values:
    """Beside `speed`, what is found for the questions of test, and the minutes in which the index was built."""
    values = {**speed(run, name), **run.evaluation("test", name)}
    made = [run.input_folder("results", "bm25")]
    if name != "BM25":
        made = [run.folder / stage for stage in ("ngrams", "index")]
    seconds = sum(storage.read_folder(folder, verify=False).meta["seconds"] for folder in made)
    return {**values, "minutes to build": seconds / 60}


def rows_of(systems: Mapping[str, RecipeRun], copier: Callable[[str], RecipeRun]) -> list[harness.Row]:
    """Rows of speed.

    Args:
      systems: trained ones, by name.
      copier: the untrained one on a data set.
    """
    sides = {"BM25": copier(DATA), **systems, "GDR untrained": untrained_gdr(DATA)}
    asked = {"one by one": ONE_BY_ONE, "together": TOGETHER, "at a time": AT_A_TIME}
    table = [
        harness.Row(
            name=f"{DATA} how fast {name} answers",
            config={**asked, "system": name},
            measure=functools.partial(speed, run, name),
            corpus=run.fingerprint,
            speed=True,
            runs=[run],
        )
        for name, run in sides.items()
    ]
    run = copier(WHOLE)
    for title, name in (("BM25", "BM25"), ("the counted copier", "SEAL")):
        table.append(
            harness.Row(
                name=f"{WHOLE} test {title}",
                config={**asked, "split": "test", "system": name},
                measure=functools.partial(whole, run, name),
                corpus=run.fingerprint,
                speed=True,
                runs=[run],
            )
        )
    return table

"""The systems that write titles, on the data of `benchmarks.cgr`, and what they reach on pages."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import derived_data, harness, pooled
from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from gr_jax.corpus import Corpus, Dataset, Run, read_beir
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.evaluation.pages import qrels_of_pages, run_of_pages

GROUP = "titles"
DATA = {"nq_boolq_dev": "", "wiki_intro_179k": "10k"}
SPLIT, DEV_QUESTIONS, DEPTH = "test", 300, 20
SEEDS = (0, 1, 2)
MEASURES = ("Success@1", "Success@10", "RR@10")
REBUILDS = (1, 3, 7)
COPYING = "TitleDecoding.length_penalty=1.0"  # as GENRE has it; both were chosen on dev
# Title → gin file, and flags.
KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "k = 5": ("cgr", ()),
    **{f"k = {k}": ("cgr", (f"Contextual.clusters={k}",)) for k in (1, 3, 10, 20)},
    "all embeddings": ("cgr", ("Contextual.clusters=None",)),
    "title-only k = 5": ("cgr", ("Contextual.content=False",)),
    "title-only all embeddings": ("cgr", ("Contextual.content=False", "Contextual.clusters=None")),
    "GENRE*": ("genre_star", ()),
    "k = 5 with copying": ("cgr", ("CGR.copying=True", COPYING)),
    "GENRE": ("genre", ()),
    "Contra": ("cgr_contra", ()),
    "Contra with copying": ("cgr_contra", ("CGRContra.copying=True", COPYING)),
    "Contra in_batch": ("cgr_contra", ('Aligning.loss="in_batch"',)),
    "Contra one_positive": ("cgr_contra", ('Aligning.loss="one_positive"',)),
    "Async": ("cgr_async", ()),
    **{
        f"Async title-only {times}": ("cgr_async", (f"CGRAsync.rebuilds={times}", "Contextual.content=False"))
        for times in REBUILDS
    },
}
# As tables call them.
SYSTEMS = {
    "CGR": "k = 5",
    "title-only": "title-only k = 5",
    "GENRE*": "GENRE*",
    "CGR with copying": "k = 5 with copying",
    "GENRE": "GENRE",
    "Contra": "Contra",
    "Contra with copying": "Contra with copying",
    "Async": "Async",
    **{f"k = {k}": f"k = {k}" for k in (1, 3, 10, 20)},
    **{f"Contra {loss}": f"Contra {loss}" for loss in ("in_batch", "one_positive")},
    **{f"Async title-only {times}": f"Async title-only {times}" for times in REBUILDS},
}


def run_of(data: str, kind: str, *, trained: bool = True, part: str = "", seed: int = 0) -> RecipeRun:
    """A system, before its training or after.

    Args:
      part: of the documents; "" is that of the table.
      seed: of training, and of the clusters of its vocabulary.
    """
    system, flags = KINDS[kind]
    label = "_".join(kind.replace("=", "").replace("*", "_star").split())
    if not trained:
        name = {"cgr": "CGR", "genre": "GENRE", "genre_star": "GENREStar"}[system]
        flags, label = (*flags, f"{name}.training=None"), f"{label}_untrained"
    if seed:
        label = f"{label}_seed{seed}"
        flags += tuple(f"{one}.seed={seed}" for one in ("Training", "Contextual"))
    return RecipeRun(GROUP, data, system, label, subset=part or DATA[data], flags=flags)


@functools.cache
def dataset_of(data: str) -> Dataset:
    """Documents, questions and judgements."""
    folder, part = harness.data_folder(data), DATA[data]
    return read_beir(folder, subset=derived_data.subset(folder, part) if part else None)


def pages_of(dataset: Dataset, titles: Any) -> dict[str, str]:
    """Document → its page.

    Args:
      titles: of the vocabulary, or of a retriever.
    """
    ids = dataset.corpus.doc_ids
    return {ids[document]: str(titles.rows_of(document)[0]) for document in range(len(ids))}


def vocabulary_folder(run: RecipeRun) -> pathlib.Path:
    """Where the decoder's vocabulary of a run is."""
    contra = KINDS["Contra"][0] == run.system
    return run.input_folder("model", "aligned_vocabulary" if contra else "contextual_vocabulary")


def states_of(run: RecipeRun) -> np.ndarray:
    """What the encoder made of titles' tokens, float32[tokens, d]."""
    contra = KINDS["Contra"][0] == run.system
    states = run.input_folder(vocabulary_folder(run), "aligned_title_states" if contra else "title_states")
    return np.load(states / "states.npy")


def titles_of(run: RecipeRun) -> Any:
    """The titles of a run, as text."""
    from gr_jax.systems.cgr import vocabulary

    return vocabulary.load_titles(vocabulary_folder(run))


@functools.cache
def answers(data: str, title: str, seed: int = 0) -> Run:
    """The documents that a trained system finds for each test question, as its index is by default. They are kept
    beside it under its key."""
    from gr_jax.retrievers import index, ranking_to_run

    run, dataset = run_of(data, SYSTEMS[title], seed=seed), dataset_of(data)
    run.index()
    key = json.loads((run.folder / "index" / "manifest.json").read_text(encoding="utf-8"))["made_from"]
    file = run.folder / f"{SPLIT}-{key}.trec"
    if not file.is_file():
        asked = list(dataset.split(SPLIT))
        ranking = index.load(run.folder / "index").retriever.retrieve(dataset.query_texts(asked), DEPTH)
        ranking_to_run(ranking, asked, dataset.corpus).save(file)
    return Run.load(file)


@functools.cache
def evaluated(data: str, title: str, seed: int = 0) -> Evaluation:
    """What a trained system reaches on pages of test."""
    dataset, found = dataset_of(data), answers(data, title, seed)
    pages = pages_of(dataset, titles_of(run_of(data, SYSTEMS[title], seed=seed)))
    return evaluate(run_of_pages(found, pages), qrels_of_pages(dataset.split(SPLIT), pages), MEASURES)


def evaluated_both(title: str, seeds: Sequence[int] = (0,)) -> Evaluation:
    """On both sets as one, every question's mean over seeds."""
    return mean_over_seeds([pooled.together([evaluated(data, title, seed) for data in DATA]) for seed in seeds])


@functools.cache
def unseen(data: str) -> frozenset[str]:
    """The test questions whose pages no training question asks for."""
    dataset = dataset_of(data)
    title_of = dict(zip(dataset.corpus.doc_ids, dataset.corpus.titles, strict=True))
    asked = {title_of[one] for grades in dataset.split("train").values() for one in grades}
    judged = dataset.split(SPLIT).items()
    return frozenset(one for one, grades in judged if not asked & {title_of[doc_id] for doc_id in grades})


def part_of(evaluation: Evaluation, ids: Collection[str]) -> Evaluation:
    """What an evaluation says of some of its questions."""
    inside = np.array([one in ids for one in evaluation.query_ids])
    per_query = {name: values[inside] for name, values in evaluation.per_query.items()}
    kept = tuple(one for one, is_in in zip(evaluation.query_ids, inside.tolist(), strict=True) if is_in)
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, kept, per_query)


def answered(
    retriever: Any,
    data: str,
    qrels: Mapping[str, Mapping[str, int]],
    pages: Mapping[str, str],
    corpus: Corpus | None = None,
) -> Evaluation:
    """What a retriever that is held reaches on pages.

    Args:
      corpus: that it answers from, where the documents stand in another order.
    """
    from gr_jax.retrievers import ranking_to_run

    dataset = dataset_of(data)
    found = ranking_to_run(
        retriever.retrieve(dataset.query_texts(list(qrels)), DEPTH), list(qrels), corpus or dataset.corpus
    )
    return evaluate(run_of_pages(found, pages), qrels_of_pages(qrels, pages), MEASURES)

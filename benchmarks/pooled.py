"""What runs reached over several splits as one, and how far one is above another there."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import gr_jax
from benchmarks import derived_data
from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from gr_jax import retrievers, storage
from gr_jax.corpus import Run, read_beir
from gr_jax.evaluation import Evaluation, compare, evaluate
from gr_jax.stages.results import DEPTH, run_file


def together(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Several splits as one, which have no question in common."""
    ids = tuple(itertools.chain.from_iterable(one.query_ids for one in evaluations))
    names = evaluations[0].per_query
    per_query = {name: np.concatenate([one.per_query[name] for one in evaluations]) for name in names}
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, ids, per_query)


def evaluation(runs: Sequence[RecipeRun], name: str, splits: Sequence[str], measures: Sequence[str]) -> Evaluation:
    """What runs that differ in their seeds reached, every query's mean over them; they are made where they are not.

    Args:
      runs: one for each seed.
      name: of the system, in their tables.
      splits: taken as one.
      measures: to compute.
    """
    for run in runs:
        run.make()
    return mean_over_seeds([together([run.evaluation(split, name, measures) for split in splits]) for run in runs])


def of_indices(runs: Sequence[RecipeRun], splits: Sequence[str], measures: Sequence[str]) -> Evaluation:
    """The same, of what the runs' own indices answer. No report is made, which would have the combination with BM25
    answer too, and dev for its weight. Where there is one of the index, its answers are taken; others are kept beside
    the index."""
    return mean_over_seeds([together([_answered(run, split, measures) for split in splits]) for run in runs])


def _answered(run: RecipeRun, split: str, measures: Sequence[str]) -> Evaluation:
    run.index()
    source, index = run.source, run.folder / "index"
    dataset = read_beir(source, subset=derived_data.subset(source, run.subset) if run.subset else None)
    made = storage.read_folder(index, verify=False).made_from
    file = _reported(run.folder / "results", made, split) or run.folder / "answers" / f"{split}-{made}.trec"

    def ask() -> Run:
        searcher, asked = gr_jax.load(index), dataset.split_queries(split)
        return retrievers.retrieve_run(searcher.retriever, asked, searcher.corpus, k=DEPTH, progress=True)

    return evaluate(kept(file, ask), dataset.split(split), measures)


def _reported(results: pathlib.Path, index: str, split: str) -> pathlib.Path | None:
    """The answers of a system in a report of an index, if there is one."""
    if not (results / "manifest.json").is_file():
        return None
    meta = storage.read_folder(results, verify=False).meta
    file = run_file(results, meta["config"]["name"], split)
    return file if meta["inputs"]["index"] == index and file.is_file() else None


def kept(file: pathlib.Path, ask: Callable[[], Run]) -> Run:
    """Answers that are kept in a file; where there is none, those of `ask`."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        ask().save(unfinished)
        unfinished.rename(file)
    return Run.load(file)


def differences(own: Evaluation, theirs: Evaluation) -> Mapping[str, float]:
    """What one has more than the other of every measure, with the interval by bootstrap over queries, and p of a paired
    t-test."""
    values: dict[str, float] = {}
    for measure in own.per_query:
        found = compare(own, theirs, measure)
        low, high = found.interval
        values |= {f"{measure} above": found.difference, f"{measure} low": low, f"{measure} high": high}
        values[f"p {measure}"] = found.p_t
    return values

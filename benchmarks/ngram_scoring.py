"""How n-grams are scored, chosen on dev: rows of `benchmarks.dgr`.

Settings of released code were found for BART. Here two of them are looked for anew: the power of a weight, and what is
added to log-probabilities in the view of queries. MINDER answers questions of dev once, and documents are ranked by
every point of a grid. The counted copier, which is not trained, writes no queries, and its grid has powers alone. The
default was chosen on `squad_dev`, among points that are as good as the best. Training looks at dev by it, so what it
gives on `squad_dev` is measured with a MINDER that was trained with it. The test splits are read once.

The 1,200 questions of dev of `squad_dev` show a difference of .026 at 80% power where a tenth of them differ, and of
.011 where a fiftieth does; the 658 of `nq_boolq_dev` .035 and .015. The best of a grid is lucky too, so dev says more
of it than it will keep, and rows of dev claim nothing. What is gained is what the test splits of `squad_dev` say, which
together show .014 and .006.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import harness, pooled
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import read_beir
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.retrievers.ngrams import NgramAggregation
from gr_jax.stages.training import sample_queries
from gr_jax.systems.ngram.asking import ASKED, PSEUDO_QUERY_MOST, Asking

MEASURES, CHOSEN_BY = ("Success@1", "Success@10", "RR@10"), "RR@10"
QUESTIONS = 1200  # of dev
DEPTH = 10
Values = Mapping[str, float]


class Scoring(NamedTuple):
    """Settings of `Asking`.

    Attributes:
      alpha: power of an n-gram's weight.
      shift: added to log-probabilities in the view of queries; None leaves them.
    """

    alpha: float
    shift: float | None

    @property
    def flags(self) -> tuple[str, ...]:
        """gin bindings of it."""
        return f"Asking.alpha={self.alpha}", f"Asking.pseudo_query_shift={self.shift}"


OF_SEAL = Scoring(2.0, None)
GRID = tuple(Scoring(*one) for one in itertools.product((2.0, 2.5, 3.0, 3.5), (None, -1.0, -2.0, -3.0)))
WITHOUT_QUERIES = tuple(one for one in GRID if one.shift is None)  # of systems that have no view of queries
# Of rows that were measured before there was a choice: their settings stay what they were. No view of SEAL reads the
# shift, which was 14 by default.
BEFORE = {
    "seal": Scoring(2.0, 14.0).flags, **dict.fromkeys(("minder", "ltrgr", "dgr"), OF_SEAL.flags),
}  # fmt: skip
CHOSEN = Scoring(Asking().alpha, Asking().pseudo_query_shift)


def scored_by(retriever: Any, scoring: Scoring) -> NgramAggregation:
    """How a retriever makes documents of n-grams, with other settings.

    Args:
      retriever: a `GenerativeRetriever` whose documents are those of n-grams.
    """
    own = retriever.documents_of
    most = None if scoring.shift is None else PSEUDO_QUERY_MOST
    views = [
        dataclasses.replace(how, shift=scoring.shift, most=most) if view.walks == ASKED else how
        for how, view in zip(own.views, retriever.views, strict=True)
    ]
    settings = dataclasses.replace(own.scorer.settings, alpha=scoring.alpha)
    return NgramAggregation(own.vocabulary, own.scorer.text, own.scorer.row_documents, views=views, scoring=settings)


def on_dev(run: RecipeRun, scorings: Sequence[Scoring]) -> Mapping[Scoring, Evaluation]:
    """What a run's writer reaches on some questions of dev by each scoring; it writes once."""
    from gr_jax.retrievers import index

    run.index()
    dataset = read_beir(harness.data_folder(run.data))
    qrels = sample_queries(dataset.split("dev"), QUESTIONS)
    queries, ids = list(qrels), dataset.corpus.doc_ids
    retriever: Any = index.load(run.folder / "index").retriever
    by = {scoring: scored_by(retriever, scoring) for scoring in scorings}
    runs: dict[Scoring, dict[str, list[tuple[str, float]]]] = {scoring: {} for scoring in scorings}
    for place, written in retriever.written(dataset.query_texts(queries)):
        for scoring, documents_of in by.items():
            best = documents_of.rank(written, DEPTH, explain=False)
            runs[scoring][queries[place]] = [(ids[one.document], one.score) for one in best]
    return {scoring: evaluate(found, qrels, MEASURES) for scoring, found in runs.items()}


def choice(run: RecipeRun, grid: tuple[Scoring, ...]) -> Values:
    """What is best on dev, and how far the default is behind it and above SEAL's.

    Args:
      run: made with SEAL's power, and nothing added.
      grid: where to look.

    Returns:
      Values, in which a shift of 0 stands for nothing added.
    """
    found = on_dev(run, grid)
    best = max(grid, key=lambda scoring: found[scoring][CHOSEN_BY])
    chosen = found[_default(grid)]
    return {
        "alpha": best.alpha,
        "shift": best.shift or 0.0,
        **chosen,
        f"{CHOSEN_BY} by SEAL's": found[OF_SEAL][CHOSEN_BY],
        **pooled.differences(chosen, found[OF_SEAL]),
        "behind the best": found[best][CHOSEN_BY] - chosen[CHOSEN_BY],
    }


def gained(default: RecipeRun, of_seal: RecipeRun, splits: Sequence[str]) -> Values:
    """How far a run with the default scoring is above that with SEAL's, over splits as one."""
    return pooled.differences(*(pooled.of_indices([run], splits, MEASURES) for run in (default, of_seal)))


def _default(grid: tuple[Scoring, ...]) -> Scoring:
    return CHOSEN._replace(shift=None) if grid == WITHOUT_QUERIES else CHOSEN


def row(run: RecipeRun, name: str, grid: tuple[Scoring, ...]) -> harness.Row:
    """What is best on a data set.

    Args:
      run: made with SEAL's power, and nothing added.
      name: of the system.
      grid: where to look.
    """
    return harness.Row(
        name=f"{run.data} dev, scoring of {name}",
        config={
            "grid": [list(one) for one in grid],
            "chosen": list(_default(grid)),
            "questions": QUESTIONS,
        },
        measure=functools.partial(choice, run, grid),
        corpus=run.fingerprint,
        seeds=(0,),
        runs=[run],
        note="the default was chosen on these questions",
    )

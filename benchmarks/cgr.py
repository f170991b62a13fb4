"""Titles in a vocabulary of contextualized tokens: `python -m benchmarks.cgr`.

A page is a title; documents of one title are one page, and measures are of pages. `nq_boolq_dev` and 10,000 documents
of `wiki_intro_179k` together have 1,851 test questions, which show a difference of .021 at 80% power where a tenth of
them differ. 78% of them ask for a title that no training question asks for. Nothing is trained on made queries.

Before anything is trained, rows on dev say what the vocabulary itself knows: with the tokens of a title written in
their order by beam search, and as a bag, which is the same sum over the tokens of every title there is, each in its
likeliest sense, so that nothing is lost on the way. What is copied is counted on training questions. Rows of the
matrix say whether it is what the paper describes, and how large it grows.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import derived_data, harness, pooled
from benchmarks import title_analyses as analyses
from benchmarks.recipe_runs import RecipeRun
from benchmarks.title_systems import (
    DATA,
    DEV_QUESTIONS,
    GROUP,
    MEASURES,
    REBUILDS,
    SEEDS,
    SPLIT,
    SYSTEMS,
    evaluated,
    evaluated_both,
    part_of,
    run_of,
    unseen,
)
from benchmarks.title_vocabulary import SIZES, extrapolated, growth, matrix, untrained
from gr_jax import storage

NAME = "cgr"
UNTRAINED = (
    "k = 1", "k = 5", "k = 20", "all embeddings", "title-only k = 5", "title-only all embeddings", "GENRE*",
    "k = 5 with copying", "GENRE",
)  # fmt: skip
# On test of both sets.
REACHED = ("CGR", "title-only", "GENRE*", "CGR with copying", "GENRE", "Contra", "Contra with copying", "k = 1")
# Success@1 and @10 that should be reached on test; of CGR and of Contra by the better of with and without copying.
BARS = {
    ("CGR", "nq_boolq_dev"): (0.60, 0.83),
    ("CGR", "wiki_intro_179k"): (0.24, 0.38),
    ("Contra", "nq_boolq_dev"): (0.64, 0.87),
    ("Contra", "wiki_intro_179k"): (0.26, 0.41),
    ("GENRE", "nq_boolq_dev"): (0.55, 0.77),
    ("GENRE", "wiki_intro_179k"): (0.22, 0.32),
}
# First, second, and whether it is claimed that the first is above.
PAIRS = (
    ("CGR", "GENRE*", True),
    ("title-only", "GENRE*", True),
    ("CGR", "title-only", False),
    ("CGR", "k = 1", False),
    ("CGR with copying", "GENRE", False),
    ("Contra", "CGR", False),
    ("Contra with copying", "CGR with copying", False),
    ("Async", "CGR", False),
    *((f"Async title-only {times}", "title-only", False) for times in REBUILDS),
    ("Contra in_batch", "Contra", False),
    ("Contra one_positive", "Contra", False),
)
# With three seeds.
SEEDED = ("CGR", "title-only", "GENRE*")
SEEDED_PAIRS = (("CGR", "GENRE*", True), ("title-only", "GENRE*", True), ("CGR", "title-only", False))
ZERO_SHOT = ("CGR", "title-only", "GENRE*")
BY_OVERLAP = ("CGR", "title-only", "GENRE*", "Contra", "CGR with copying", "GENRE")
SENSES = (1, 3, 10, 20)
Values = Mapping[str, float]


def reached(data: str, system: str) -> Values:
    """Of pages; and of those that no training question asks for."""
    found = evaluated(data, system)
    apart = part_of(found, unseen(data))
    values = {**found, **{f"{measure} unseen": value for measure, value in apart.items()}}
    return values | {"core-minutes": run_of(data, SYSTEMS[system]).core_minutes()}


def above(first: str, second: str, seeds: Sequence[int] = (0,)) -> Values:
    """Over both sets; and over their questions about pages that no training question asks for."""
    one, other = evaluated_both(first, seeds), evaluated_both(second, seeds)
    ids = frozenset().union(*map(unseen, DATA))
    apart = pooled.differences(part_of(one, ids), part_of(other, ids))
    return {**pooled.differences(one, other), **{f"{name}, unseen": value for name, value in apart.items()}}


def each_seed(system: str) -> Values:
    """On both sets, the mean over seeds, and how far apart the seeds are."""
    found = [evaluated_both(system, (seed,)) for seed in SEEDS]
    values = {name: [one[name] for one in found] for name in found[0]}
    return {
        **{name: sum(own) / len(own) for name, own in values.items()},
        **{f"{name}, seeds apart": max(own) - min(own) for name, own in values.items()},
    }


def sweep(k: int) -> Values:
    """Base with so many senses of a token, against the paper's five, on one set."""
    data = "wiki_intro_179k"
    found, paper = evaluated(data, f"k = {k}"), evaluated(data, "CGR")
    return {**found, **pooled.differences(found, paper)}


def zero_shot(title: str) -> Values:
    """Each set answered by what was trained on the other."""
    found = analyses.zero_shot(title)
    return {**found, **{f"{name} trained": value for name, value in evaluated_both(title).items()}}


def zero_shot_above(first: str, second: str) -> Values:
    """Of two systems, each trained on the other set."""
    return pooled.differences(analyses.zero_shot(first), analyses.zero_shot(second))


def _of_runs(name: str, config: Mapping[str, Any], measure: Any, *runs: RecipeRun, **more: Any) -> harness.Row:
    """A row of runs, with one seed unless more are given."""
    more = {"seeds": (0,), **more}
    return harness.Row(name=name, config=config, measure=measure, corpus=runs[0].fingerprint, runs=runs, **more)


def _on_both(titles: Sequence[str], seeds: Sequence[int] = (0,)) -> list[RecipeRun]:
    return [run_of(data, SYSTEMS[title], seed=seed) for title in titles for data in DATA for seed in seeds]


def rows() -> list[harness.Row]:
    """The table."""
    return [*_of_the_matrix(), *_before_training(), *_reached(), *_compared(), *_other_documents(), *_analysed()]


def _of_the_matrix() -> list[harness.Row]:
    table = [
        _of_runs(
            f"{data} matrix",
            {"sizes": [5]},
            functools.partial(matrix, data),
            run_of(data, "k = 5", trained=False),
            at_least={"titles read back": 1.0, "rows beyond the sum": 0},
            at_most={"rows beyond the sum": 0, "inertia beside scikit-learn": 1.02},
        )
        for data in DATA
    ]
    for size in SIZES:
        table.append(
            harness.Row(
                name=f"matrix of {size} documents", config={"size": size}, measure=functools.partial(growth, size)
            )
        )
    table.append(
        harness.Row(
            name="matrix of 5.9M pages", config={"from": ["32k", "179k"]}, measure=extrapolated, note="extrapolated"
        )
    )
    return table


def _before_training() -> list[harness.Row]:
    data = "nq_boolq_dev"
    decoding = _of_runs(
        f"{data} every way to write {analyses.TITLES} titles",
        {"tokens": analyses.SHORT},
        functools.partial(analyses.enumeration, data),
        run_of(data, "k = 5", trained=False),
        at_most={f"difference {merge}": 1e-4 for merge in (None, "max", "sum")},
    )
    return [decoding] + [
        _of_runs(
            f"{data} dev untrained {kind}",
            {"questions": DEV_QUESTIONS},
            functools.partial(untrained, data, kind),
            run_of(data, kind, trained=False),
        )
        for data, kind in itertools.product(DATA, UNTRAINED)
    ]


def _reached() -> list[harness.Row]:
    return [
        _of_runs(
            f"{data} {SPLIT} {system}",
            {"split": SPLIT},
            functools.partial(reached, data, system),
            run_of(data, SYSTEMS[system]),
            at_least=dict(zip(MEASURES[:2], BARS.get((system, data), ()), strict=False)),
        )
        for data, system in itertools.product(DATA, REACHED)
    ]


def _compared() -> list[harness.Row]:
    both = " + ".join(DATA)
    table = [
        _of_runs(
            f"{both} {first} above {second}",
            {"split": SPLIT},
            functools.partial(above, first, second),
            *_on_both((first, second)),
            at_least={"RR@10 above": 1e-9} if claimed else {},
            at_most={"p RR@10": 0.05} if claimed else {},
            note="paired t-test over the questions of one training",
        )
        for first, second, claimed in PAIRS
    ]
    table += [
        _of_runs(
            f"{both} {system}, three seeds",
            {"split": SPLIT},
            functools.partial(each_seed, system),
            *_on_both([system], SEEDS),
            seeds=SEEDS,
        )
        for system in SEEDED
    ]
    table += [
        _of_runs(
            f"{both} {first} above {second}, three seeds",
            {"split": SPLIT},
            functools.partial(above, first, second, SEEDS),
            *_on_both((first, second), SEEDS),
            seeds=SEEDS,
            at_least={"RR@10 above": 1e-9} if claimed else {},
            at_most={"p RR@10": 0.05} if claimed else {},
            note="paired t-test over questions, of means over three seeds",
        )
        for first, second, claimed in SEEDED_PAIRS
    ]
    data = "wiki_intro_179k"
    table += [
        _of_runs(
            f"{data} {SPLIT} k = {k} above k = 5",
            {"split": SPLIT},
            functools.partial(sweep, k),
            *(run_of(data, SYSTEMS[title]) for title in (f"k = {k}", "CGR")),
        )
        for k in SENSES
    ]
    table += [
        _of_runs(
            f"{data} dev merge {merge}",
            {"questions": DEV_QUESTIONS},
            functools.partial(analyses.merged, data, merge),
            run_of(data, "k = 5"),
        )
        for data, merge in itertools.product(DATA, (None, "max", "sum"))
    ]
    return table


def _other_documents() -> list[harness.Row]:
    table = [
        _of_runs(
            f"{data} a tenth of the titles added",
            {"splits": ["dev", SPLIT]},
            functools.partial(analyses.added, data),
            run_of(data, "k = 5"),
            run_of(data, "k = 5", part="-".join(filter(None, (DATA[data], derived_data.NINE_TENTHS)))),
            at_most={"Success@10 lost": 0.05},
        )
        for data in DATA
    ]
    table += [
        _of_runs(f"zero-shot {title}", {"split": SPLIT}, functools.partial(zero_shot, title), *_on_both([title]))
        for title in ZERO_SHOT
    ]
    table += [
        _of_runs(
            f"zero-shot {first} above {second}",
            {"split": SPLIT},
            functools.partial(zero_shot_above, first, second),
            *_on_both((first, second)),
        )
        for first, second in (("CGR", "GENRE*"), ("title-only", "GENRE*"))
    ]
    return table


def _analysed() -> list[harness.Row]:
    table = [
        _of_runs(
            f"overlap {title}", {"split": SPLIT}, functools.partial(analyses.by_overlap, title), *_on_both([title])
        )
        for title in BY_OVERLAP
    ]
    table.append(
        _of_runs(
            "four sets",
            {"split": SPLIT},
            functools.partial(analyses.four_sets, "GENRE*", "CGR"),
            *_on_both(("GENRE*", "CGR")),
        )
    )
    table += [
        _of_runs(
            f"{data} vectors {title}",
            {"nearest": analyses.NEAREST, "of": analyses.SAMPLED},
            functools.partial(analyses.vectors, data, title),
            run_of(data, SYSTEMS[title]),
        )
        for data, title in itertools.product(DATA, ("CGR", "title-only", "Contra"))
    ]
    return table


def draw() -> None:
    """What GENRE* and CGR find first where one of them is right, in `runs/titles/predictions.md`."""
    titles = ("GENRE*", "CGR")
    made = [run_of(data, SYSTEMS[title]).folder / "index" for data in DATA for title in titles]
    if all(map(pathlib.Path.is_dir, made)):
        storage.write_text(harness.CHECKOUT / "runs" / GROUP / "predictions.md", analyses.side_by_side(*titles))


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows(), draw=draw))

"""Study `growth` of `benchmarks.gr_vs_dr`: the end points of both modes' curves, three trainings of each system.

A slope is what a doubling of the documents adds from the first size to the last, of every question the mean over the
seeds, with an interval by bootstrap over questions. The least and the greatest slope of a seed stand beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from benchmarks import gr_vs_dr_growth, gr_vs_dr_matched, grown, harness
from benchmarks.gr_vs_dr_growth import DENSE, GENERATIVE, MEASURE, PARTS, SPLIT, slopes, with_interval
from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from gr_jax.evaluation import Evaluation

SEEDS = (0, 1, 2)
ENDS = (next(iter(PARTS)), next(reversed(PARTS)))
Found = dict[int, Evaluation]  # documents → what is reached
Values = Mapping[str, float]


def of_seed(mode: str, system: str, seed: int) -> Found:
    """What a training of a system reaches at both ends."""
    if mode == gr_vs_dr_matched.MODE:
        return gr_vs_dr_matched.by_size(system, seed)
    return gr_vs_dr_growth.by_size(system, ENDS, seed)


def together(found: Sequence[Found]) -> Found:
    """The mean over seeds, of every question."""
    return {count: mean_over_seeds([one[count] for one in found]) for count in found[0]}


def reached(mode: str, system: str) -> Values:
    """What a system reaches at both ends, its slope, and those of single seeds."""
    found = [of_seed(mode, system, seed) for seed in SEEDS]
    mean, single = together(found), [float(slopes(one).mean()) for one in found]
    return {
        **{f"{MEASURE}, {count:,}": one[MEASURE] for count, one in mean.items()},
        **with_interval(slopes(mean), f"{MEASURE} a doubling"),
        "least of a seed": min(single),
        "greatest of a seed": max(single),
    }


def above(mode: str, system: str, other: str) -> Values:
    """How far one system's slope is above another's."""
    own, theirs = (slopes(together([of_seed(mode, one, seed) for seed in SEEDS])) for one in (system, other))
    return with_interval(own - theirs, f"{MEASURE} a doubling, above")


def runs(mode: str, system: str) -> list[RecipeRun]:
    """A system's trainings."""
    if mode == gr_vs_dr_matched.MODE:
        return [gr_vs_dr_matched.runs(part, seed)[system] for part in gr_vs_dr_matched.PARTS for seed in SEEDS]
    return [gr_vs_dr_growth.runs(seed)[system] for seed in SEEDS]


def rows() -> list[harness.Row]:
    """The study's end points."""
    table = []
    for mode in ("distractors", gr_vs_dr_matched.MODE):
        for system in grown.SYSTEMS:
            table.append(_row(mode, system, functools.partial(reached, mode, system), [system]))
        for system in GENERATIVE:
            for other in DENSE:
                measure = functools.partial(above, mode, system, other)
                table.append(_row(mode, f"{system} above {other}", measure, [system, other]))
    return table


def _row(mode: str, title: str, measure: Callable[[], Values], systems: Sequence[str]) -> harness.Row:
    made = [run for system in systems for run in runs(mode, system)]
    return harness.Row(
        name=f"growth: {mode}, three seeds, {title}",
        config={"mode": mode, "split": SPLIT, "ends": True},
        measure=measure,
        corpus=made[-1].fingerprint,
        seeds=SEEDS,
        runs=made,
    )

"""What a ranker teaches a writer of n-grams: `python -m benchmarks.dgr`.

MINDER is the student. LTRGR goes on with it by labels, DGR by the order of a teacher, which is the combination of BM25
and `dpr`. All three are of one training of MINDER, so that differences are of what came after it. What is chosen is
chosen on dev; test splits are read once.

Before anything was trained: the 3,976 questions of both test splits of `squad_dev` show a difference of .014 at 80%
power where a tenth of them differ, the 913 of `nq_boolq_dev` one of .029.

Headlines are at the standard budget of MINDER, with one seed.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import generative_baselines, harness
from benchmarks.generative_baselines import SPLITS
from benchmarks.recipe_runs import RecipeRun
from gr_jax.evaluation import Evaluation, compare

GROUP = "ngram"
MEASURES = ("Success@1", "Success@5", "Success@10", "Success@20", "Success@100", "RR@10")
# Success@1 and @10 that DGR should reach.
BARS = {("squad_dev", "test"): (0.78, 0.955), ("squad_dev", "test_unseen"): (0.75, 0.95)}
STUDENT, LABELS, RANKS = "MINDER", "LTRGR", "DGR"
# First above second, and whether that is claimed or an interval is recorded.
PAIRS = {(RANKS, STUDENT): True, (RANKS, LABELS): False, (LABELS, STUDENT): False}
Values = Mapping[str, float]


def student(data: str) -> RecipeRun:
    """MINDER at its own budget."""
    return generative_baselines.trained(data, STUDENT)


def teacher(data: str) -> RecipeRun:
    """The run of `dpr` whose combination with BM25 teaches."""
    return RecipeRun("dense", data, "dpr")


def run_of(system: str, data: str) -> RecipeRun:
    """One of the three."""
    if system == STUDENT:
        return student(data)
    taught = teacher(data) if system == RANKS else None
    return RecipeRun(GROUP, data, system.lower(), trained=student(data), teacher=taught)


def evaluation(run: RecipeRun, name: str, splits: Sequence[str]) -> Evaluation:
    """What a run reached, over several splits as one."""
    run.make()
    found = [run.evaluation(split, name, MEASURES) for split in splits]
    ids = tuple(itertools.chain.from_iterable(one.query_ids for one in found))
    per_query = {name: np.concatenate([one.per_query[name] for one in found]) for name in MEASURES}
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, ids, per_query)


def reached(system: str, data: str, split: str) -> Values:
    """What a system reached on a split, and its trainings, the student's too."""
    run = run_of(system, data)
    values = dict(evaluation(run, system, [split]))
    return {**values, "core-minutes": run.core_minutes(["student", "model", "generator", "generated"])}


def above(first: str, second: str, data: str) -> Values:
    """How far one system is above another over all test splits, with the interval by bootstrap over queries, and p."""
    own, theirs = (evaluation(run_of(one, data), one, SPLITS[data]) for one in (first, second))
    values: dict[str, float] = {}
    for measure in MEASURES:
        found = compare(own, theirs, measure)
        low, high = found.interval
        values |= {f"{measure} above": found.difference, f"{measure} low": low, f"{measure} high": high}
        values[f"p {measure}"] = found.p_t
    return values


def worked_list() -> Values:
    """Three documents with equal scores: rows 3 · (300 + 400) and 1/2 · 300, over three violated terms."""
    import jax.numpy as jnp

    from gr_jax.losses.ranking import DistilledRankNet, RankedLists

    lists = RankedLists(jnp.ones(3, bool), jnp.zeros(3))
    return {"loss": float(DistilledRankNet(300.0, 100.0)(jnp.zeros(3), lists))}


def rows() -> list[harness.Row]:
    """The table."""
    table = [
        harness.Row(
            name="loss of the worked list",
            config={"scores": [0.0, 0.0, 0.0], "margins": [300.0, 100.0]},
            measure=worked_list,
            at_least={"loss": 750.0},
            at_most={"loss": 750.0},
        )
    ]
    for data, splits in SPLITS.items():
        for split, system in itertools.product(splits, (LABELS, RANKS)):
            bars = BARS.get((data, split), ()) if system == RANKS else ()
            run = run_of(system, data)
            table.append(
                harness.Row(
                    name=f"{data} {split} {system}",
                    config={"split": split, "system": system},
                    measure=functools.partial(reached, system, data, split),
                    at_least=dict(zip(("Success@1", "Success@10"), bars, strict=False)),
                    corpus=run.fingerprint,
                    seeds=(0,),
                    runs=[run],
                )
            )
        for (first, second), claimed in PAIRS.items():
            runs = [run_of(first, data), run_of(second, data)]
            table.append(
                harness.Row(
                    name=f"{data} {' + '.join(splits)} {first} above {second}",
                    config={"splits": list(splits), "first": first, "second": second},
                    measure=functools.partial(above, first, second, data),
                    at_least={"RR@10 above": 1e-9} if claimed else {},
                    at_most={"p RR@10": 0.05} if claimed else {},
                    corpus=runs[0].fingerprint,
                    seeds=(0,),
                    runs=runs,
                    note="paired t-test over the queries of one training",
                )
            )
    return table


if __name__ == "__main__":
    sys.exit(harness.main("dgr", rows()))

"""Ranks against labels where labels are few: rows of `benchmarks.dgr`.

Of `squad_dev` 500 training questions keep their label. MINDER is trained on these, and goes on in three ways, for as
many updates each: by these labels (LTRGR), by the order of a teacher, for these and for questions without a label
(DGR), and, for the same questions, by labels alone, with LTRGR's margins. There a question without a label takes the
teacher's first document among those that the student finds. Questions without a label are training questions that lost
theirs, and queries that a generator wrote which was trained on the 500. Each way is taken to its end. MINDER's own
training keeps what is best on dev, whose labels are beside the 500. N-grams weigh by the second power, and queries as
the rest.

The teacher is BM25 + MiniLM as it is, with equal weights: it saw no label of any split. What is to be trained here is
at the small budget, and has one seed for MINDER and three for what comes after it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from benchmarks import harness, ngram_scoring, pooled
from benchmarks.dense_quality import ZERO_SHOT
from benchmarks.recipe_runs import RecipeRun
from benchmarks.systems import System
from gr_jax.evaluation import Evaluation

GROUP, DATA, LABELS = "ngram", "squad_dev", 500
SEEDS = (0, 1, 2)
UNLABELLED, MADE = 800, 400  # questions that a teacher is asked, beside those with a label
STEPS = ("Distilling.steps=150", "Distilling.evaluate_every=150", "Distilling.keep_best=None")
SMALL = (
    *ngram_scoring.BEFORE["minder"],
    "QueryGenerating.steps=150",
    "NgramWriting.steps=100",
    "NgramWriting.evaluate_every=50",
)
STUDENT, BY_LABELS, BY_RANKS, BY_FIRST = "MINDER", "500 labels", "ranks", "teacher labels"
Values = Mapping[str, float]

_ASKED = (f"Distilling.unlabelled={UNLABELLED}", f"Distilling.made={MADE}")
# Name of an arm → the system, and its settings.
ARMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    BY_LABELS: ("ltrgr", ()),
    BY_RANKS: ("dgr", _ASKED),
    BY_FIRST: ("dgr", (*_ASKED, "Distilling.teacher_labels=True", 'Distilling.loss="two_margins"')),
}
# First above second, and whether that is claimed or an interval is recorded.
PAIRS = {(BY_RANKS, BY_LABELS): True, (BY_RANKS, BY_FIRST): False, (BY_LABELS, STUDENT): False}


def student() -> RecipeRun:
    """MINDER of 500 labels."""
    return RecipeRun(GROUP, DATA, "minder", flags=SMALL, labels=LABELS)


def teacher() -> RecipeRun:
    """BM25 beside MiniLM as it is, on documents without any label."""
    return RecipeRun("dense", DATA, "dpr", "zero_shot", flags=ZERO_SHOT[DATA].flags, labels=0)


def runs_of(arm: str) -> System:
    """An arm, once for each seed; MINDER once."""
    if arm == STUDENT:
        return System((student(),), STUDENT)
    system, flags = ARMS[arm]
    runs = tuple(
        RecipeRun(
            GROUP, DATA, system, f"{arm.replace(' ', '_')}_{seed}",
            flags=(*SMALL, *STEPS, *flags, f"Distilling.seed={seed}"), trained=student(), labels=LABELS,
            teacher=teacher() if system == "dgr" else None,
        )
        for seed in SEEDS
    )  # fmt: skip
    return System(runs, system.upper())


def rows_of(splits: Sequence[str], measures: Sequence[str]) -> list[harness.Row]:
    """What each arm reaches, and the differences.

    Args:
      splits: all together are one.
      measures: of each.
    """

    def evaluation(name: str) -> Evaluation:
        return pooled.of_indices(arms[name].runs, splits, measures)

    def reached(name: str) -> Values:
        return dict(evaluation(name))

    def above(first: str, second: str) -> Values:
        return pooled.differences(evaluation(first), evaluation(second))

    arms, table = {name: runs_of(name) for name in (STUDENT, *ARMS)}, []
    where = f"{DATA} {' + '.join(splits)}, {LABELS} labels"
    for name, system in arms.items():
        table.append(
            harness.Row(
                name=f"{where}: {name}",
                config={"splits": list(splits), "arm": name},
                measure=functools.partial(reached, name),
                corpus=system.runs[0].fingerprint,
                seeds=SEEDS[: len(system.runs)],
                runs=list(system.runs),
            )
        )
    for (first, second), claimed in PAIRS.items():
        runs = [*arms[first].runs, *arms[second].runs]
        table.append(
            harness.Row(
                name=f"{where}: {first} above {second}",
                config={"splits": list(splits), "first": first, "second": second},
                measure=functools.partial(above, first, second),
                at_least={"RR@10 above": 1e-9} if claimed else {},
                at_most={"p RR@10": 0.05} if claimed else {},
                corpus=runs[0].fingerprint,
                seeds=SEEDS,
                runs=runs,
                note="paired t-test over queries, of means over three seeds",
            )
        )
    return table

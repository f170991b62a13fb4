"""What decides how much a ranker teaches: rows of `benchmarks.dgr`, on dev of `squad_dev`, one seed.

Every arm goes on from the same MINDER with 100 updates, and differs from the first one in one setting. N-grams weigh by
the second power, and queries as the rest. At its end an arm answers the same 600 questions of dev, which the first one
answers before it too. The end is what counts. Between two rounds the better of both stays. Arms with other losses
answer the 1,601 questions of test, too.

Before anything was trained: 600 questions show a difference of .036 at 80% power where a tenth of them differ, and of
.016 where a fiftieth does; those of test one of .022 and .010. Arms that lie closer together are not told apart.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import dgr_lists, harness, ngram_scoring, pooled
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.losses.ranking import RANKING_LOSSES

GROUP, DATA, MEASURE = "ngram", "squad_dev", "RR@10"
TESTED, MEASURES = "test", ("Success@1", "Success@10")  # of losses
STEPS = ("Distilling.steps=100", "Distilling.evaluate_every=50")
SMALL = (
    *ngram_scoring.BEFORE["dgr"],
    STEPS[0],
    "Distilling.evaluate_every=100",
    f"Distilling.dev_queries={dgr_lists.QUESTIONS}",
)
# Without a choice among looks there is none before the first update, which is that of the same student for all.
AT_THE_END = "Distilling.keep_best=None"
Values = Mapping[str, float]
DIFFERING = 1 / 50  # of the queries: what bands of gains assume

# Curve → what its horizontal axis is, and value → flags.
CURVES: Mapping[str, tuple[str, Mapping[Any, tuple[str, ...]]]] = {
    "margin": (
        "margin of neighbours, in distances of the student's ranks 1 and 10",
        {c: (f"Distilling.margin={c}",) for c in (0.5, 1.0, 2.0, 4.0)},
    ),
    "length": (
        "documents of a list",
        {n: (f"Distilling.length={n}", f"Distilling.pool={max(15, n - 1)}") for n in (4, 8, 16)},
    ),
    "rounds": ("rounds of finding and learning", {n: (f"DGR.rounds={n}",) for n in (1, 2)}),
    "shuffled": (
        "share of the teacher's order that is shuffled",
        {share: (f"Distilling.shuffled={share}",) for share in (0.0, 0.25, 0.5, 1.0)},
    ),
}
RAW = ("Distilling.margins=(300.0, 100.0)",)  # the paper's
# What was tried because little of the teacher's order is learned: title → flags.
TRIED: Mapping[str, tuple[str, ...]] = {
    "learning rate 4e-4": ("Distilling.learning_rate=4e-4",),
    "encoder trained": (
        "Distilling.frozen=False",
        "Distilling.multipliers={'token_embedder': 0.0, 'encoder': 0.3}",
    ),
    "generation 0.1": ("Distilling.generation=0.1",),
    "no labels": ("Distilling.labelled=False",),
    "400 updates of all questions": (
        "Distilling.steps=400",
        "Distilling.evaluate_every=200",
        "Distilling.questions=None",
    ),
}


def arm(student: RecipeRun, teacher: RecipeRun, label: str, *flags: str, taught_by: str = "hybrid") -> RecipeRun:
    """DGR at the small budget with other settings; the first one is called "small"."""
    looks = () if label == "small" or any(flag.startswith("DGR.rounds") for flag in flags) else (AT_THE_END,)
    return RecipeRun(
        GROUP, student.data, "dgr", label, flags=(*SMALL, *looks, *flags), trained=student, teacher=teacher,
        taught_by=taught_by,
    )  # fmt: skip


def learned(run: RecipeRun, first: RecipeRun) -> Values:
    """Dev before it and at its end, and its training.

    Args:
      first: the first arm, which looked at dev before it.
    """
    for one in (first, run):
        one.train()
    rounds = [stage for stage in ("student_1", "model") if (run.folder / stage).is_dir()]
    before, looks = first.looks()[0], run.looks()
    after = looks[max(looks)]
    values = {name: after[f"dev/{name}"] for name in (*MEASURES, MEASURE)}
    gain = values[MEASURE] - before[f"dev/{MEASURE}"]
    return {
        **values,
        f"{MEASURE} before": before[f"dev/{MEASURE}"],
        "gain": gain,
        "core-minutes": run.core_minutes(rounds),
    }


def taught(run: RecipeRun, first: RecipeRun) -> Values:
    """The same, and what the teacher itself reaches where it orders the documents that the student finds."""
    own = dgr_lists.reached(run.data, dgr_lists.ordered(run), [MEASURE])
    return {**learned(run, first), f"teacher's {MEASURE}": own[MEASURE]}


def tested(run: RecipeRun, first: RecipeRun) -> Values:
    """What it reaches on a split that nothing was chosen by, and how far above the first arm that is.

    Args:
      first: the first arm.
    """
    own, theirs = (
        dgr_lists.reached(one.data, dgr_lists.found(one, TESTED), [*MEASURES, MEASURE], TESTED) for one in (run, first)
    )
    return {**own, **({} if run == first else pooled.differences(own, theirs))}


def teachers(student: RecipeRun, teacher: RecipeRun, others: Mapping[str, tuple[RecipeRun, str]]) -> dict[str, Any]:
    """Title → run: the teacher as it is, and others."""
    found = {"BM25 + DPR": arm(student, teacher, "small")}
    for title, (run, part) in others.items():
        label = "by_" + "_".join(title.replace("+", "and").split())
        found[title] = arm(student, run, label, taught_by=part)
    return found


def rows_of(student: RecipeRun, teacher: RecipeRun, others: Mapping[str, tuple[RecipeRun, str]]) -> list[harness.Row]:
    """The table.

    Args:
      student, teacher: their runs.
      others: further teachers: title → run, and which of its indices.
    """
    first = arm(student, teacher, "small")
    at_ends, by_teachers = functools.partial(learned, first=first), functools.partial(taught, first=first)
    table = [_row(f"teacher {title}", by_teachers, run) for title, run in teachers(student, teacher, others).items()]
    table.append(_row("what is learned", dgr_lists.lost, first))
    unlabelled = "no labels"
    table.append(_row(f"what is learned: {unlabelled}", dgr_lists.lost, _tried(student, teacher, unlabelled)))
    by_loss = {name: _with_loss(student, teacher, name) for name in RANKING_LOSSES}
    table += [_row(f"loss {name}", at_ends, run) for name, run in by_loss.items()]
    on_test = functools.partial(tested, first=first)
    table += [_row(f"loss {name}", on_test, run, split=TESTED) for name, run in by_loss.items()]
    for curve, (_, points) in CURVES.items():
        for value, flags in points.items():
            table.append(_row(f"{curve} {value:g}", at_ends, arm(student, teacher, _label(curve, value), *flags)))
    for title in TRIED:
        table.append(_row(f"tried: {title}", at_ends, _tried(student, teacher, title)))
    return [*table, _row("margins 300/100", at_ends, arm(student, teacher, "margins_raw", *RAW))]


def _with_loss(student: RecipeRun, teacher: RecipeRun, name: str) -> RecipeRun:
    if name == "distilled_ranknet":
        return arm(student, teacher, "small")
    return arm(student, teacher, f"loss_{name}", f'Distilling.loss="{name}"')


def _tried(student: RecipeRun, teacher: RecipeRun, title: str) -> RecipeRun:
    return arm(student, teacher, "_".join(["tried", *title.split()]), *TRIED[title])


def _label(curve: str, value: float) -> str:
    as_it_is = {"margin": 1.0, "length": 8, "rounds": 1, "shuffled": 0.0}
    return "small" if value == as_it_is[curve] else f"{curve}_{value:g}"


def _name(title: str, split: str = "dev") -> str:
    return f"{DATA} {split}, {title}"


def _row(title: str, measure: Any, run: RecipeRun, split: str = "dev") -> harness.Row:
    return harness.Row(
        name=_name(title, split),
        config={"split": split},
        measure=functools.partial(measure, run),
        corpus=run.fingerprint,
        seeds=(0,),
        runs=[run],
    )


def draw(current: Mapping[str, Values], titles: Sequence[str]) -> None:
    """A picture of each curve, and one of teachers and what was learned from them.

    Args:
      current: name of a row → its values.
      titles: of teachers.
    """
    from gr_jax.evaluation import plots

    points = {name: (axis, {x: f"{name} {x:g}" for x in values}) for name, (axis, values) in CURVES.items()}
    curves = {
        name: (axis, {"": [(x, current[_name(title)]["gain"]) for x, title in its.items() if _name(title) in current]})
        for name, (axis, its) in points.items()
    }
    by_teacher = {title: current[name] for title in titles if (name := _name(f"teacher {title}")) in current}
    own = f"teacher's {MEASURE}"
    points_of = {title: [(one[own], one["gain"])] for title, one in by_teacher.items()}
    curves["teachers"] = (f"{own} among the student's documents", points_of)
    for name, (axis, found) in curves.items():
        if sum(map(len, found.values())) > 1:
            figure = plots.curves(
                {f"gain in {MEASURE}": found}, title=f"DGR above its student, {DATA}, dev, one seed", x=axis,
                logarithmic=name in ("margin", "length"), queries={f"gain in {MEASURE}": dgr_lists.QUESTIONS},
                differing=DIFFERING,
            )  # fmt: skip
            storage.write_bytes(harness.RESULTS / f"dgr_{name}.svg", plots.to_svg(figure))

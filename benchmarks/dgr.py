"""What a ranker teaches a writer of n-grams: `python -m benchmarks.dgr`.

MINDER is the student. LTRGR goes on with it by labels, DGR by the order of a teacher, which is the combination of BM25
and `dpr`. All three are of one training of MINDER, so that differences are of what came after it. What is chosen is
chosen on dev; test splits are read once.

Before anything was trained: the 3,976 questions of both test splits of `squad_dev` show a difference of .014 at 80%
power where a tenth of them differ, the 913 of `nq_boolq_dev` one of .029.

Headlines are at the standard budget of MINDER, with one seed. Comparisons go on from the same MINDER with the small
budget for what comes after it, and three seeds of that. Arms (`dgr_arms`) go on from it too, differ in one setting each
and are measured on dev. DSI is a second student, whose docids are taught in the same way. What is worth more where few
questions have a label, these or the order of a teacher, is measured too (`few_labels`).

In all of these n-grams weigh by the second power, as in SEAL's released code, and queries as the rest. The default was
chosen on dev (`ngram_scoring`), and headlines of `squad_dev` are measured with it, too.
Pictures are drawn into `benchmarks/results/dgr_*.svg`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import (
    dense_quality,
    dgr_arms,
    dgr_lists,
    docid_comparisons,
    few_labels,
    generative_baselines,
    harness,
    ngram_scoring,
    pooled,
    records,
    untouched,
)
from benchmarks.generative_baselines import SPLITS
from benchmarks.recipe_runs import RecipeRun
from benchmarks.systems import System

NAME, GROUP = "dgr", "ngram"
SEEDS = (0, 1, 2)
MEASURES = ("Success@1", "Success@5", "Success@10", "Success@20", "Success@100", "RR@10")
# Success@1 and @10 that DGR should reach.
BARS = {("squad_dev", "test"): (0.78, 0.955), ("squad_dev", "test_unseen"): (0.75, 0.95)}
GRADED = ("nDCG@10", "R@100")
STUDENT, LABELS, RANKS = "MINDER", "LTRGR", "DGR"
BY_DEFAULT = ", default scoring"  # behind names of rows
# First above second, and whether that is claimed or an interval is recorded.
PAIRS = {(RANKS, STUDENT): True, (RANKS, LABELS): False, (LABELS, STUDENT): False}
TRIED = ("learning rate 4e-4",)  # of `dgr_arms.TRIED`, where nothing is gained
Values = Mapping[str, float]
Of = Callable[[str, str], RecipeRun]  # a system, data → its run


def student(data: str) -> RecipeRun:
    """MINDER at its own budget."""
    return generative_baselines.trained(data, STUDENT)


def teacher(data: str) -> RecipeRun:
    """The run of `dpr` whose combination with BM25 teaches: at the small budget on `squad_dev`, and with the questions'
    side trained alone on `nq_boolq_dev`, which is better there."""
    return dense_quality.DPR[data] if data == "nq_boolq_dev" else dense_quality.small(data, "dpr")[0]


def other_teachers() -> dict[str, tuple[RecipeRun, str]]:
    """Title → run, and which of its indices; on `squad_dev`."""
    data = dgr_arms.DATA
    zero_shot = dense_quality.ZERO_SHOT[data]
    return {
        "BM25": (RecipeRun(GROUP, data, "bm25"), ""),
        "MiniLM": (zero_shot, ""),
        "BM25 + MiniLM": (zero_shot, "hybrid"),
        "DPR": (teacher(data), ""),
    }


def run_of(system: str, data: str) -> RecipeRun:
    """One of the three."""
    if system == STUDENT:
        return student(data)
    taught = teacher(data) if system == RANKS else None
    flags = ngram_scoring.BEFORE[system.lower()]
    return RecipeRun(GROUP, data, system.lower(), flags=flags, trained=student(data), teacher=taught)


def by_default(system: str, data: str) -> RecipeRun:
    """One of the three with the default scoring of n-grams; what MINDER reads is generated once."""
    if system == STUDENT:
        return dataclasses.replace(student(data), label="default", flags=(), trained=student(data))
    return dataclasses.replace(run_of(system, data), label="default", flags=(), trained=by_default(STUDENT, data))


def bars_of(system: str, data: str, split: str) -> Mapping[str, float]:
    """What it should reach."""
    bars = BARS.get((data, split), ()) if system == RANKS else ()
    return dict(zip(("Success@1", "Success@10"), bars, strict=False))


def claim(claimed: bool) -> dict[str, Any]:
    """Bounds of a row that says how far one system is above another: it is above it, where that is claimed."""
    return {"at_least": {"RR@10 above": 1e-9}, "at_most": {"p RR@10": 0.05}} if claimed else {}


def small(system: str, data: str) -> tuple[RecipeRun, ...]:
    """One of the three, with the small budget for what comes after MINDER, once for each seed of that."""
    run = run_of(system, data)
    if system == STUDENT:
        return (run,)
    return tuple(
        dataclasses.replace(run, label=f"small_{seed}", flags=(*run.flags, *dgr_arms.STEPS, f"Distilling.seed={seed}"))
        for seed in SEEDS
    )


def small_above(first: str, second: str, data: str) -> Values:
    """How far one is above another at the small budget, over all test splits; measures are means over the seeds."""
    return pooled.differences(*(pooled.of_indices(small(one, data), SPLITS[data], MEASURES) for one in (first, second)))


def docid_student() -> System:
    """DSI, before it is taught."""
    return docid_comparisons.semantic(False)


def taught_docids() -> System:
    """The same, taught as DGR is; a seed is that of the student and of what comes after it."""
    runs = tuple(
        RecipeRun(
            GROUP, run.data, "dgr_dsi", str(seed), trained=run, teacher=teacher(run.data),
            flags=(*run.flags, f"DocidDistilling.seed={seed}"),
        )
        for seed, run in zip(docid_comparisons.SEEDS, docid_student().runs, strict=True)
    )  # fmt: skip
    return System(runs, "DSI + DGR")


def docid_rows() -> list[harness.Row]:
    """What a student of docids reaches and gains, on each split."""
    student, taught, table = docid_student(), taught_docids(), []
    for split in docid_comparisons.SPLITS:
        table.append(
            harness.Row(
                name=f"{docid_comparisons.DATA} {split} DSI + DGR",
                config={"split": split, "system": taught.config()},
                measure=functools.partial(docid_comparisons.reached, taught, split),
                corpus=taught.runs[0].fingerprint,
                seeds=docid_comparisons.SEEDS,
                runs=taught.runs,
            )
        )
        table.append(
            harness.Row(
                name=f"{docid_comparisons.DATA} {split} DSI + DGR above DSI",
                config={"split": split, "systems": [taught.config(), student.config()]},
                measure=functools.partial(docid_comparisons.above, taught, student, split),
                corpus=taught.runs[0].fingerprint,
                seeds=docid_comparisons.SEEDS,
                runs=[*taught.runs, *student.runs],
                note="paired t-test over queries, of means over three seeds",
            )
        )
    return table


def reached(system: str, data: str, split: str, of: Of = run_of) -> Values:
    """What a system reached on a split, and its trainings, the student's too."""
    run = of(system, data)
    values = dict(pooled.of_indices([run], [split], MEASURES))
    return {**values, "core-minutes": run.core_minutes(["student", "model", "generator", "generated"])}


def above(first: str, second: str, data: str, of: Of = run_of) -> Values:
    """How far one system is above another over all test splits, with the interval by bootstrap over queries, and p."""
    return pooled.differences(*(pooled.of_indices([of(one, data)], SPLITS[data], MEASURES) for one in (first, second)))


def headline_rows(data: str, systems: Sequence[str], of: Of, suffix: str = "") -> list[harness.Row]:
    """What systems reach on each split, and how far one is above another.

    Args:
      systems: some of the three.
      of: the run of each.
      suffix: of names.
    """
    table = []
    for split, system in itertools.product(SPLITS[data], systems):
        run = of(system, data)
        table.append(
            harness.Row(
                name=f"{data} {split} {system}{suffix}",
                config={"split": split, "system": system},
                measure=functools.partial(reached, system, data, split, of),
                at_least=bars_of(system, data, split),
                corpus=run.fingerprint,
                seeds=(0,),
                runs=[run],
            )
        )
    for (first, second), claimed in PAIRS.items():
        runs = [of(first, data), of(second, data)]
        table.append(
            harness.Row(
                name=f"{data} {' + '.join(SPLITS[data])} {first} above {second}{suffix}",
                config={"splits": list(SPLITS[data]), "first": first, "second": second},
                measure=functools.partial(above, first, second, data, of),
                corpus=runs[0].fingerprint,
                seeds=(0,),
                runs=runs,
                note="paired t-test over the queries of one training",
                **claim(claimed),
            )
        )
    return table


def scoring_rows(data: str) -> list[harness.Row]:
    """Which scoring of n-grams is best on dev."""
    copier = generative_baselines.copier(data)
    return [
        ngram_scoring.row(copier, generative_baselines.COPIER, ngram_scoring.WITHOUT_QUERIES),
        ngram_scoring.row(student(data), STUDENT, ngram_scoring.GRID),
    ]


def default_rows(data: str) -> list[harness.Row]:
    """What the default scoring gives the student, and what the three reach with it."""
    default, of_seal = by_default(STUDENT, data), student(data)
    gain = harness.Row(
        name=f"{data} {' + '.join(SPLITS[data])} {STUDENT}{BY_DEFAULT}, above the second power",
        config={"splits": list(SPLITS[data])},
        measure=functools.partial(ngram_scoring.gained, default, of_seal, SPLITS[data]),
        corpus=default.fingerprint,
        seeds=(0,),
        runs=[default, of_seal],
        note="paired t-test over the queries of one training",
        **claim(True),
    )
    return [gain, *headline_rows(data, (STUDENT, LABELS, RANKS), by_default, BY_DEFAULT)]


def kept_rows(data: str) -> list[harness.Row]:
    """Where the order of a teacher gained nothing: whose share is lost, and what was tried."""
    run = run_of(RANKS, data)
    arms = {RANKS: run}
    for title in TRIED:
        flags = (*run.flags, *dgr_arms.TRIED[title])
        arms[f"{RANKS}, {title}"] = dataclasses.replace(run, label=title.replace(" ", "_"), flags=flags)
    return [
        harness.Row(
            name=f"{data} dev, what is learned: {name}",
            config={"questions": dgr_lists.QUESTIONS, "depth": dgr_lists.DEPTH},
            measure=functools.partial(dgr_lists.kept, arm),
            corpus=arm.fingerprint,
            seeds=(0,),
            runs=[arm],
        )
        for name, arm in arms.items()
    ]


def graded_rows() -> list[harness.Row]:
    """Graded judgements, before and after, on 10,000 documents of `wiki_intro_179k`."""
    data, subset, split = "wiki_intro_179k", "10k", "test_dbpedia"
    scoring = ngram_scoring.BEFORE["dgr"]
    before = RecipeRun(GROUP, data, STUDENT.lower(), subset=subset, flags=scoring)
    after = RecipeRun(
        GROUP, data, RANKS.lower(), subset=subset, flags=scoring, trained=before,
        teacher=dense_quality.ZERO_SHOT[f"{data} {subset}"],
    )  # fmt: skip

    def reached(run: RecipeRun) -> Values:
        return dict(pooled.of_indices([run], [split], GRADED))

    def more() -> Values:
        sides = [pooled.of_indices([run], [split], GRADED) for run in (after, before)]
        return pooled.differences(*sides)

    table, where = [], f"{data} {subset} {split}"
    for name, measure, runs in (
        (STUDENT, functools.partial(reached, before), [before]),
        (RANKS, functools.partial(reached, after), [after]),
        (f"{RANKS} above {STUDENT}", more, [after, before]),
    ):
        table.append(
            harness.Row(
                name=f"{where} {name}",
                config={"split": split, "row": name},
                measure=measure,
                corpus=runs[0].fingerprint,
                seeds=(0,),
                runs=runs,
            )
        )
    return table


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
    for data in SPLITS:
        table += headline_rows(data, (LABELS, RANKS), run_of)
    both = [run_of(STUDENT, dgr_arms.DATA), run_of(RANKS, dgr_arms.DATA)]
    table.append(
        harness.Row(
            name=f"{dgr_arms.DATA}, answering: {RANKS} beside {STUDENT}",
            config={"questions": untouched.QUESTIONS},
            measure=functools.partial(untouched.inference_untouched, *both),
            at_least={"programs": 1, "taken from the cache": 1, "files of parameters that differ": 1},
            at_most={"other files that differ": 0, "bytes more": 0, "compiled anew": 0},
            corpus=both[0].fingerprint,
            seeds=(0,),
            runs=both,
        )
    )
    for (first, second), claimed in PAIRS.items():
        runs = [*small(first, dgr_arms.DATA), *small(second, dgr_arms.DATA)]
        table.append(
            harness.Row(
                name=f"{dgr_arms.DATA} test + test_unseen, small, {first} above {second}",
                config={"splits": list(SPLITS[dgr_arms.DATA]), "first": first, "second": second},
                measure=functools.partial(small_above, first, second, dgr_arms.DATA),
                corpus=runs[0].fingerprint,
                seeds=SEEDS,
                runs=runs,
                note="paired t-test over queries, of means over three seeds",
                **claim(claimed),
            )
        )
    for data in SPLITS:
        table += scoring_rows(data)
    table += default_rows(dgr_arms.DATA)
    table += [*kept_rows("nq_boolq_dev"), *graded_rows(), *docid_rows()]
    table += few_labels.rows_of(SPLITS[few_labels.DATA], MEASURES)
    return table + dgr_arms.rows_of(student(dgr_arms.DATA), teacher(dgr_arms.DATA), other_teachers())


def draw() -> None:
    """Pictures of the arms that are recorded."""
    current = harness.current_values(rows(), records.read(harness.RESULTS / f"{NAME}.json"))
    dgr_arms.draw(current, ["BM25 + DPR", *other_teachers()])


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows(), draw=draw))

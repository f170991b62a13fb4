"""Study `growth` of `benchmarks.gr_vs_dr`, mode `matched_training`: every document of the corpus is trained towards.

At 10,000 and at 32,000 introductions of `wiki_intro_179k` the four systems are trained anew, on the same pairs: the
training questions with their answers, and for every document some words of its own text with the document
(`derived_data.with_every_document`). Pseudo-queries are left out. All have as many steps, at both sizes. Nobody looks
on dev, and the last parameters are taken. A step has 32 pairs. Writers pack pairs into 9 rows of 64 tokens, so that
theirs has about as many. Each row says how often the system went through the pairs, and what share of them it saw,
which has to be all. Codebooks are fitted on the documents of each size, and together, since no document joins. MVDR has
7 negatives a query, for its time on a CPU: in study `negatives`, with one seed, 31 add .002 to its RR@10. Otherwise
systems are those of `benchmarks.gr_vs_dr_growth`.

Both sizes are end points, of three seeds each. Two sizes make a slope the difference between them over the doublings.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import first_ranks, gr_vs_dr_dense, gr_vs_dr_late, grown, harness, pooled
from benchmarks.first_ranks import FirstRanks
from benchmarks.gr_vs_dr_growth import (
    DATA,
    DENSE,
    GENERATIVE,
    GROUP,
    LENGTH,
    MEASURES,
    SEEDS,
    SPLIT,
    TITLES_RATE,
    curve,
    difference,
    of_slopes,
    without_looks,
)  # fmt: skip
from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from gr_jax.evaluation import Evaluation
from gr_jax.stages import results
from gr_jax.stages.contrastive import Draws, drawn_rows
from gr_jax.stages.pairs import load_pairs
from gr_jax.stages.write_docids import Training
from gr_jax.training.batches import make_batches
from gr_jax.training.example_sources import source_number
from gr_jax.training.token_store import TokenStore

MODE = "matched_training"
NEGATIVES = 7  # of MVDR
PARTS = {"10k": 10_000, "32k": 32_000}
STEPS = 1200  # of 32 pairs: the 36,575 of the larger part once
Values = Mapping[str, float]


@functools.cache
def runs(part: str, seed: int = 0) -> dict[str, RecipeRun]:
    """The systems, trained on a part."""
    reading = (
        *_of("ContrastiveTraining"), f"Encoders.document_length={LENGTH}", "ContrastiveTraining.rates={'query': 1.0}",
        "PseudoQueries.kinds={}",
    )  # fmt: skip
    writing = (
        *_of("Training"), f"Training.seed={seed}", "Training.batch_size=9",
        "Training.rates={'query': 1.0}", "PseudoQueries.kinds={}",
    )  # fmt: skip
    made = {
        "DR": gr_vs_dr_dense.arm(data=DATA, seeds=(seed,), flags=reading)[0],
        "MVDR": gr_vs_dr_late.arm(NEGATIVES, data=DATA, seeds=(seed,), flags=reading)[0],
        "GR-codebook": RecipeRun(
            GROUP, DATA, "dsi_codebook", f"matched_{seed}", flags=(f"Vectors.max_length={LENGTH}", *writing)
        ),
        "GR-text": RecipeRun(GROUP, DATA, "genre", f"matched_{seed}", flags=(*writing, TITLES_RATE)),
    }
    return {system: dataclasses.replace(run, every_document=part) for system, run in made.items()}


def _of(training: str) -> tuple[str, ...]:
    """Flags of how long is trained, without looks on dev."""
    often = {"steps": STEPS, "checkpoint_every": max(1, STEPS // 4)}
    return (*(f"{training}.{name}={value}" for name, value in often.items()), *without_looks(training))


@functools.cache
def answered(system: str, part: str, seed: int) -> FirstRanks:
    """What a system found, with how often it went through the pairs, what share of them it saw, and its time."""
    run = runs(part, seed)[system]
    assert results.DEPTH == first_ranks.DEPTH

    def ask() -> tuple[Evaluation, Values]:
        found = pooled.of_indices([run], [SPLIT], [first_ranks.RECIPROCAL])
        return found, {**drawn(run), "core-minutes": run.core_minutes()}

    row = harness.Row(
        name=f"growth {MODE} {system} {PARTS[part]} {seed}",
        config={"mode": MODE, "split": SPLIT},
        measure=dict,
        corpus=run.fingerprint,
        seeds=(seed,),
        runs=[run],
    )
    return first_ranks.kept(row, ask)


def evaluated(system: str, part: str, seeds: Sequence[int] = SEEDS) -> Evaluation:
    """What a system reaches on a part, every question's mean over the seeds."""
    return mean_over_seeds([answered(system, part, seed).evaluation(MEASURES) for seed in seeds])


def reached(system: str, part: str) -> Values:
    """The same, with how often it went through the pairs, the least share of them that a training saw, and the longest
    training's time."""
    values = [answered(system, part, seed).values for seed in SEEDS]
    return {
        **evaluated(system, part),
        "passes": values[0]["passes"],
        "pairs seen": min(one["pairs seen"] for one in values),
        "core-minutes": max(one["core-minutes"] for one in values),
    }


def drawn(run: RecipeRun) -> Values:
    """How often a training went through the pairs, and what share of them it saw. Its batches are planned again.

    Args:
      run: trained.
    """
    training: Any = run.resolved().training  # type: ignore[attr-defined]
    if run.system in ("dpr", "colbert"):
        queries, texts = load_pairs(run.input_folder("model", "pairs"))
        seen = len(drawn_rows(queries, texts, [Draws.of(training)])) / len(queries)
        return {"passes": training.steps * training.batch_size / len(queries), "pairs seen": seen}
    return seen_by_writer(TokenStore.load(run.input_folder("model", "examples") / "tokens"), training)


def seen_by_writer(store: TokenStore, training: Training) -> Values:
    """The same of a writer, which packs pairs into rows.

    Args:
      store: its examples.
      training: on questions alone.
    """
    batches = iter(
        make_batches(
            store, batch_size=training.batch_size, rates=training.rates, seed=training.seed,
            lengths={"inputs": training.row_length, "targets": training.row_targets},
        )
    )  # fmt: skip
    for _ in range(training.steps):
        next(batches)
    state: Any = batches.get_state()
    pairs = int(np.count_nonzero(store.source == source_number("query")))
    unseen = max(0, pairs - state["position"]) + sum(place < pairs for place in state["held"])
    return {"passes": (state["position"] - len(state["held"])) / pairs, "pairs seen": 1 - unseen / pairs}


def by_size(system: str, seeds: Sequence[int] = SEEDS) -> dict[int, Evaluation]:
    """Documents → what a system reaches."""
    return {count: evaluated(system, part, seeds) for part, count in PARTS.items()}


def slope(system: str) -> Values:
    """What a doubling of the documents adds."""
    return of_slopes(by_size(system), [by_size(system, [seed]) for seed in SEEDS])


def above(system: str, other: str) -> Values:
    """How far one system's slopes are above another's."""
    return difference(by_size(system), by_size(other))


def draw(current: Mapping[str, Values]) -> None:
    """The measure by documents, of the rows that are recorded."""
    curve(current, f"{MODE}, ", PARTS.values(), f"gr_vs_dr_growth_{MODE}.svg")


def rows() -> list[harness.Row]:
    """The study."""
    table = []
    for system in grown.SYSTEMS:
        for part, count in PARTS.items():
            measure = functools.partial(reached, system, part)
            table.append(_row(f"{system}, {count:,}", measure, [system], [part], {"pairs seen": 1.0}))
    for system in grown.SYSTEMS:
        table.append(_row(f"{system}, a doubling", functools.partial(slope, system), [system], list(PARTS)))
    for system in GENERATIVE:
        for other in DENSE:
            measure = functools.partial(above, system, other)
            table.append(_row(f"{system} above {other}, a doubling", measure, [system, other], list(PARTS)))
    return table


def _row(
    title: str,
    measure: Callable[[], Values],
    systems: Sequence[str],
    parts: Sequence[str],
    at_least: Mapping[str, float] | None = None,
) -> harness.Row:
    made = [runs(part, seed)[system] for system in systems for part in parts for seed in SEEDS]
    return harness.Row(
        name=f"growth: {MODE}, {title}",
        config={"mode": MODE, "split": SPLIT},
        measure=measure,
        at_least=at_least or {},
        corpus=made[-1].fingerprint,
        seeds=SEEDS,
        runs=made,
    )

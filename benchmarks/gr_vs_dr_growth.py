"""Study `growth` of `benchmarks.gr_vs_dr`: what is lost where documents join that nobody was trained on.

Mode `distractors`: systems are trained on 10,000 introductions of `wiki_intro_179k`, among which every answer is, and
answer the same questions from 32,000, 100,000 and all 178,775 of them. Parameters and codebooks stay; a hash of them is
in every row, and the row of the slope counts how many there are of each seed, and of all. A document is encoded once,
64 tokens of it.

All four have one protocol: training questions with their answers and, a fifth of the pairs, pseudo-queries of the
first 10,000 documents, and as many steps. A step has 32 pairs; writers pack pairs into 16 rows of 64 tokens, so that
theirs has about as many. Bi-encoder and late interaction are those of the other studies, of 31 random negatives and
width 128. GR-codebook writes six codes and a number (`dsi_codebook`), of codebooks that are not fitted together.
GR-text writes titles (`genre`). DR, MVDR and GR-codebook look on dev every 100 steps, and keep their best parameters.

GR-text learns at a fifth of GENRE's own rate, does not look, and keeps its last parameters. At GENRE's rate every look
on dev was far below the start. At the fifth looks were a little below it, by less than 400 questions can show. So the
best of the looks was no training, and the same for every seed.

States of the tokens of documents that join are read once and lie on the disk, 8 GB of all; each training of late
interaction projects them.

End points have three seeds, of the training; every question's mean over them is taken. Sizes between have one. A slope
is a measure's change with a doubling of the documents: least squares over the sizes, of every question, with an
interval by bootstrap over questions. Beside it stand the least and the greatest of single seeds, of the end points
alone. What each training found is kept (`benchmarks.first_ranks`). Before anything was trained: 938 questions show a
difference of .029 of success at 80% power where a tenth of them differ.

Mode `matched_training` is in `benchmarks.gr_vs_dr_matched`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from benchmarks import first_ranks, gr_vs_dr_dense, gr_vs_dr_late, grown, harness
from benchmarks.first_ranks import RECIPROCAL, FirstRanks
from benchmarks.grown import WHOLE, Growing
from benchmarks.recipe_runs import RecipeRun, mean_over_seeds
from gr_jax import retrievers, storage
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.evaluation.significance import bootstrap_interval

GROUP, DATA, SPLIT = "gr_vs_dr", "wiki_intro_179k", "test"
PARTS = {"10k": "10,000", "32k": "32,000", "100k": "100,000", WHOLE: "178,775"}
QUESTIONS = 938
ENDS = (next(iter(PARTS)), WHOLE)
SEEDS = (0, 1, 2)
MEASURE = "RR@10"
MEASURES = ("Success@1", "Success@10", MEASURE)
GENERATIVE, DENSE = ("GR-codebook", "GR-text"), ("DR", "MVDR")
LENGTH = 64
TITLES_RATE = "Training.learning_rate=1e-5"  # at GENRE's own rate dev falls far below the start
JOINED = "Identifiers.refits=0"  # codebooks that are fitted closely to some documents serve others a little less
STEPS = 300
RATES = {"query": 0.8, "pseudo": 0.2}
KINDS = {"cloze": 6, "sentence": 3, "span": 2, "title": 1}
Values = Mapping[str, float]


@functools.cache
def runs(seed: int = 0) -> dict[str, RecipeRun]:
    """The systems, trained on the first part."""
    first = next(iter(PARTS))
    reading = (f"Encoders.document_length={LENGTH}", *trained("ContrastiveTraining"))
    writing = ("Training.batch_size=16", f"Training.seed={seed}", *trained("Training"))
    codes, label = (f"Vectors.max_length={LENGTH}", JOINED), f"growth_{seed}"
    return {
        "DR": gr_vs_dr_dense.arm(data=DATA, subset=first, seeds=(seed,), flags=reading)[0],
        "MVDR": gr_vs_dr_late.arm(data=DATA, subset=first, seeds=(seed,), flags=reading)[0],
        "GR-codebook": RecipeRun(GROUP, DATA, "dsi_codebook", label, subset=first, flags=(*codes, *writing)),
        "GR-text": RecipeRun(
            GROUP, DATA, "genre", label, subset=first, flags=(*writing, *without_looks("Training"), TITLES_RATE)
        ),
    }


def trained(training: str) -> tuple[str, ...]:
    """Flags of a training that all systems have alike."""
    often = {"steps": STEPS, "warmup_steps": STEPS // 10, "evaluate_every": STEPS // 3, "checkpoint_every": STEPS // 2}
    return (
        *(f"{training}.{name}={value}" for name, value in often.items()), f"{training}.rates={RATES}",
        f'{training}.keep_best="dev/{MEASURE}"', f"PseudoQueries.kinds={KINDS}",
    )  # fmt: skip


def without_looks(training: str) -> tuple[str, ...]:
    """Flags of a training that does not look on dev, and keeps its last parameters."""
    return f"{training}.dev_queries=None", f"{training}.keep_best=None"


def seeds_of(part: str) -> tuple[int, ...]:
    """End points have three."""
    return SEEDS if part in ENDS else SEEDS[:1]


@functools.cache
def growing(system: str, seed: int = 0) -> Growing:
    """The documents, for a system."""
    return Growing(runs(seed)[system], tuple(PARTS))


@functools.cache
def answered(system: str, part: str, seed: int = 0) -> FirstRanks:
    """What a system found among a part of the documents, and the hash of what is fixed."""
    documents = growing(system, seed)
    dataset, count = documents.dataset, documents.sizes[part]

    def ask() -> tuple[Evaluation, Values]:
        documents.run.index()
        answering = grown.SYSTEMS[system](documents, count)
        asked = dataset.split_queries(SPLIT)
        found = retrievers.retrieve_run(
            answering.retriever, asked, documents.first(count), k=first_ranks.DEPTH, progress=True
        )
        return evaluate(found, dataset.split(SPLIT), [RECIPROCAL]), {"hash": answering.fingerprint}

    row = harness.Row(
        name=f"growth {system} {count} {seed}",
        config={"mode": "distractors", "split": SPLIT},
        measure=dict,
        corpus=functools.partial(_fingerprint, part),
        seeds=(seed,),
        runs=[documents.run],
    )
    return first_ranks.kept(row, ask)


@functools.cache
def _fingerprint(part: str) -> str:
    documents = growing(next(iter(grown.SYSTEMS)))
    return documents.first(documents.sizes[part]).fingerprint


def evaluated(system: str, part: str, seeds: Sequence[int]) -> Evaluation:
    """Every question's mean over the seeds."""
    return mean_over_seeds([answered(system, part, seed).evaluation(MEASURES) for seed in seeds])


def reached(system: str, part: str) -> Values:
    """What a system reaches on a part, and the hash of its first seed."""
    return {**evaluated(system, part, seeds_of(part)), **answered(system, part).values}


def slopes(found: Mapping[int, Evaluation], measure: str = MEASURE) -> Float[np.ndarray, " queries"]:
    """How much of a measure a doubling of the documents adds, of each question: least squares over log2 of the sizes.

    Args:
      found: documents → what was reached on the same questions.
      measure: of them.
    """
    evaluations = list(found.values())
    assert all(one.query_ids == evaluations[0].query_ids for one in evaluations)
    doublings = np.log2(np.asarray(list(found), np.float64))
    doublings -= doublings.mean()
    values = np.stack([one.per_query[measure] for one in evaluations])  # [sizes, queries]
    return doublings @ values / (doublings @ doublings)


def with_interval(values: Float[np.ndarray, " queries"], name: str) -> Values:
    """The mean over questions, with its interval by bootstrap."""
    low, high = bootstrap_interval(values)
    return {name: float(values.mean()), f"{name} low": low, f"{name} high": high}


def by_size(system: str) -> dict[int, Evaluation]:
    """Documents → what a system reaches."""
    return {growing(system).sizes[part]: evaluated(system, part, seeds_of(part)) for part in PARTS}


def slope(system: str) -> Values:
    """A system's slopes, and how many hashes it has: one a seed."""
    sizes = growing(system).sizes
    single = [{sizes[part]: evaluated(system, part, [seed]) for part in ENDS} for seed in SEEDS]
    return {
        **of_slopes(by_size(system), single),
        **hashes([system]),
        "hashes": float(len(set().union(*_hashes(system)))),
    }


def _hashes(system: str) -> list[set[float]]:
    """Of what is fixed, by seed."""
    return [{answered(system, part, seed).values["hash"] for part in PARTS if seed in seeds_of(part)} for seed in SEEDS]


def hashes(systems: Sequence[str]) -> Values:
    """How many hashes a seed of these systems has at most: one, where all of its sizes are of one training."""
    return {"hashes of a seed": float(max(len(found) for system in systems for found in _hashes(system)))}


def of_slopes(found: Mapping[int, Evaluation], single: Sequence[Mapping[int, Evaluation]]) -> Values:
    """What is said of a slope.

    Args:
      found: documents → what was reached.
      single: the same of each seed.
    """
    values: dict[str, float] = {}
    for measure in MEASURES:
        values |= with_interval(slopes(found, measure), f"{measure} a doubling")
    of_seeds = [float(slopes(one).mean()) for one in single]
    ends = f"{MEASURE} a doubling of the ends"
    return values | {f"{ends}, least of a seed": min(of_seeds), f"{ends}, greatest of a seed": max(of_seeds)}


def difference(found: Mapping[int, Evaluation], others: Mapping[int, Evaluation]) -> Values:
    """How far one system's slopes are above another's, on the same questions.

    Args:
      found, others: documents → what either reached.
    """
    assert next(iter(found.values())).query_ids == next(iter(others.values())).query_ids
    values: dict[str, float] = {}
    for measure in MEASURES:
        values |= with_interval(slopes(found, measure) - slopes(others, measure), f"{measure} a doubling, above")
    return values


def draw(current: Mapping[str, Values]) -> None:
    """The measure by documents, of the rows that are recorded."""
    curve(current, "", [int(said.replace(",", "")) for said in PARTS.values()], "gr_vs_dr_growth.svg")


def curve(current: Mapping[str, Values], mode: str, counts: Collection[int], file: str) -> None:
    """A picture of a line a system, where two of its rows are recorded.

    Args:
      current: rows.
      mode: what their names have before the system.
      counts: of documents.
      file: name of the picture.
    """
    from gr_jax.evaluation import plots

    lines = {}
    for system in grown.SYSTEMS:
        named = {count: f"growth: {mode}{system}, {count:,}" for count in counts}
        points = [(count, current[name][MEASURE]) for count, name in named.items() if name in current]
        if len(points) > 1:
            lines[system] = points
    if lines:
        trained_on = "all documents trained on" if mode else "trained on the first 10k documents"
        figure = plots.curves(
            {MEASURE: lines}, title=f"{DATA}, {SPLIT}, {trained_on}", x="documents", logarithmic=True,
            queries={MEASURE: QUESTIONS},
        )  # fmt: skip
        storage.write_bytes(harness.RESULTS / file, plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The study."""
    table = []
    for system in grown.SYSTEMS:
        table += [
            _row(f"{system}, {said}", functools.partial(reached, system, part), [system], seeds_of(part))
            for part, said in PARTS.items()
        ]
    for system in grown.SYSTEMS:
        table.append(_row(f"{system}, a doubling", functools.partial(slope, system), [system], slopes=True))
    for system in GENERATIVE:
        for other in DENSE:
            measure = functools.partial(above, system, other)
            table.append(_row(f"{system} above {other}, a doubling", measure, [system, other], slopes=True))
    return table


def above(system: str, other: str) -> Values:
    """How far one system's slopes are above another's, and whether either's are of one training a seed."""
    return {**difference(by_size(system), by_size(other)), **hashes([system, other])}


def _row(
    title: str,
    measure: Callable[[], Values],
    systems: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    slopes: bool = False,
) -> harness.Row:
    made = [runs(seed)[system] for system in systems for seed in seeds]
    return harness.Row(
        name=f"growth: {title}",
        config={"mode": "distractors", "split": SPLIT, "depth": first_ranks.DEPTH},
        measure=measure,
        at_least={"hashes": float(len(SEEDS))} if slopes and len(systems) == 1 else {},
        at_most={"hashes of a seed": 1.0} if slopes else {},
        corpus=made[0].fingerprint,
        seeds=tuple(seeds),
        runs=made,
    )

"""Studies `negatives`, `hard` and `dimension` of `benchmarks.gr_vs_dr`: what drawn negatives and narrow vectors cost.

Standard DR: MiniLM reads documents once and its states stay; the side of queries is trained with a projection of both
by two layers, which starts at random. A query's negatives are exactly those that are drawn for it. All arms have equal
pairs, steps and seeds; their last parameters are taken. End points of a curve and what is tested have three seeds.
Other points have one. `benchmarks.gr_vs_dr_late` has the rows of late interaction. The number of negatives is studied
on MiniLM's input embeddings too: MiniLM retrieves before it is trained, and they hardly do.

Before anything was trained: the 3,976 questions of both test splits of `squad_dev` show a difference of .014 at 80%
power where a tenth of them differ.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import gr_jax
from benchmarks import harness, pooled
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.corpus import Dataset, read_beir
from gr_jax.evaluation import Evaluation, calibration, evaluate
from gr_jax.retrievers import DenseRetriever

GROUP, DATA, SPLITS = "gr_vs_dr", "squad_dev", ("test", "test_unseen")
MEASURES = ("Success@1", "Success@10", "RR@10", "nDCG@10")
MEASURE = "RR@10"
QUESTIONS = 3976  # of both splits
SEEDS = (0, 1, 2)
STEPS, WIDTH = 300, 128
NEGATIVES = (1, 7, 31, 127, None)  # None: all
RATIOS = (0.0, 0.25, 0.5, 0.75, 1.0)
WIDTHS = (8, 16, 32, 64, 128, 384)
TESTED = (8, 32, 128)
TEMPERATURE = 0.05
Values = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Side:
    """A system that is studied.

    Attributes:
      name: in rows.
      system: in its own tables.
      temperature: of its training.
    """

    name: str
    system: str
    temperature: float


DR = Side("DR", "DPR", TEMPERATURE)
ON_EMBEDDINGS = Side("DR on input embeddings", "DPR", TEMPERATURE)
EMBEDDINGS = "embeddings"
PROTOCOL = (
    "Encoders.document_length=256", "ContrastiveTraining.learning_rate=3e-5",
    f"ContrastiveTraining.steps={STEPS}", "ContrastiveTraining.batch_size=32", "ContrastiveTraining.warmup_steps=30",
    "ContrastiveTraining.held_out=None", "ContrastiveTraining.keep_best=None",
    f"ContrastiveTraining.evaluate_every={STEPS}", f"ContrastiveTraining.checkpoint_every={STEPS // 2}",
)  # fmt: skip
_PROTOCOL = (
    *PROTOCOL, "DPR.frozen_documents=True", "DPR.query_training=None", "Search.hybrid=False", "Search.unread=None",
    f"Encoders.temperature={TEMPERATURE}",
)  # fmt: skip


def arm(
    negatives: int | None = 31,
    *,
    hard: float = 0.0,
    width: int = WIDTH,
    seeds: Sequence[int] = (0,),
    data: str = DATA,
    subset: str = "",
    backbone: str = "",
    flags: Sequence[str] = (),
) -> tuple[RecipeRun, ...]:
    """Standard DR, once for each seed.

    Args:
      negatives: K of each query; None: all documents.
      hard: share of them that BM25 finds; the others are drawn at random.
      width: of the vectors.
      seeds: of the training.
      data, subset: the documents.
      backbone: "" for MiniLM, `EMBEDDINGS` for its input embeddings, which are no retriever before they are trained.
      flags: over the protocol's.
    """
    layers = ("Encoders.pretrained_layers=0",) if backbone == EMBEDDINGS else ()
    named = "_".join(filter(None, (backbone, label(negatives, hard=hard, width=width))))
    return tuple(
        RecipeRun(
            GROUP, data, "dpr", f"{named}_{seed}", subset=subset,
            flags=(
                *_PROTOCOL, *layers, *drawn(negatives, hard), f"Encoders.projection={width}",
                f"ContrastiveTraining.seed={seed}", *flags,
            ),
        )
        for seed in seeds
    )  # fmt: skip


Arms = Callable[..., tuple[RecipeRun, ...]]  # `arm`, of any system


def label(negatives: int | None, *, hard: float = 0.0, width: int = WIDTH) -> str:
    """What tells an arm apart."""
    parts = [f"k{named(negatives)}", *([f"hard{hard:g}"] if hard else []), *([f"r{width}"] if width != WIDTH else [])]
    return "_".join(parts)


def drawn(negatives: int | None, hard: float = 0.0) -> tuple[str, ...]:
    """Flags of a query's negatives; see `arm`."""
    some = () if negatives is None else (f"Mining.kept={max(16, negatives)}", "ContrastiveTraining.in_batch=False")
    return (*some, f"ContrastiveTraining.negatives={negatives}", f"Mining.shares={shares(hard)}")


def named(negatives: int | None) -> str:
    """A number of negatives, in titles."""
    return "all" if negatives is None else str(negatives)


def shares(hard: float) -> dict[str, float]:
    """Of BM25's negatives and of random ones; what BM25 cannot give is drawn."""
    return {kind: share for kind, share in (("bm25", hard), ("random", 1.0 - hard)) if share}


def evaluated(runs: Sequence[RecipeRun], side: Side = DR) -> Evaluation:
    """Every query's mean over the seeds, over both splits."""
    return pooled.evaluation(runs, side.system, SPLITS, MEASURES)


def reached(runs: Sequence[RecipeRun], side: Side = DR) -> Values:
    """What it reached, and how sure it is: p̂ is the softmax over all documents at the temperature of training. "Brier"
    is the mean of what it is on either split, where measures are means over the questions of both."""
    values = dict(evaluated(runs, side))
    scores = []
    for run in runs:
        searcher, dataset = gr_jax.load(run.folder / "index"), read_beir(run.source)
        for split in SPLITS:
            asked, qrels = dataset.split_queries(split), dataset.split(split)
            found = searcher.retrieve(asked.texts, len(searcher.corpus))
            right = [
                [place for place, at in enumerate(row) if qrels[one].get(searcher.corpus.doc_ids[at], 0) > 0]
                for one, row in zip(asked.ids, found.doc_index, strict=True)
            ]
            scores.append(calibration.brier(calibration.of_corpus(found.score / side.temperature, right)))
    return values | {"Brier": float(np.mean(scores)), "core-minutes": max(run.core_minutes() for run in runs)}


def above(first: Sequence[RecipeRun], second: Sequence[RecipeRun], side: Side = DR) -> Values:
    """How far one arm is above another."""
    return pooled.differences(evaluated(first, side), evaluated(second, side))


@functools.cache
def _untrained() -> tuple[Dataset, np.ndarray, Mapping[str, np.ndarray]]:
    """MiniLM's vectors of documents [documents, d], and of the questions of each split [questions, d]."""
    from benchmarks import dense_quality

    run = dense_quality.ZERO_SHOT[DATA]
    run.make()
    retriever, dataset = gr_jax.load(run.folder / "index").retriever, read_beir(run.source)
    assert isinstance(retriever, DenseRetriever)
    encode = retriever.encoder.encode
    documents = encode(dataset.corpus.contents, "document")
    return dataset, documents, {split: encode(dataset.split_queries(split).texts, "query") for split in SPLITS}


def principal(width: int) -> Values:
    """The reference of the dimension: MiniLM's vectors cut to their principal axes, nothing trained."""
    dataset, documents, queries = _untrained()
    axes = np.linalg.svd(documents - documents.mean(axis=0), full_matrices=False)[2][:width].T
    found = []
    for split in SPLITS:
        asked = dataset.split_queries(split)
        ranked = np.argsort(-(queries[split] @ axes) @ (documents @ axes).T, axis=1)[:, :100]
        run_of = {
            one: [(dataset.corpus.doc_ids[at], -float(rank)) for rank, at in enumerate(row)]
            for one, row in zip(asked.ids, ranked, strict=True)
        }
        found.append(evaluate(run_of, dataset.split(split), list(MEASURES)))
    return dict(pooled.together(found))


def negatives(arms: Arms = arm) -> dict[int | None, tuple[RecipeRun, ...]]:
    """Arms by the number of negatives."""
    return {count: arms(count, seeds=SEEDS if count in (1, None) else (0,)) for count in NEGATIVES}


def hard(arms: Arms = arm) -> dict[float, tuple[RecipeRun, ...]]:
    """Arms by the share of hard negatives among 31."""
    return {ratio: arms(hard=ratio, seeds=SEEDS if ratio in (0.0, 1.0) else (0,)) for ratio in RATIOS}


def widths(arms: Arms = arm) -> dict[int, tuple[RecipeRun, ...]]:
    """Arms by the width of the vectors."""
    return {width: arms(width=width, seeds=SEEDS if width in (*TESTED, 384) else (0,)) for width in WIDTHS}


def rows_of_negatives(arms: Arms = arm, side: Side = DR) -> list[harness.Row]:
    """The study, of a system."""
    made = negatives(arms)
    table = [row("negatives", f"K = {named(count)}", runs, side) for count, runs in made.items()]
    return [*table, row_above("negatives", "K = all", made[None], "K = 1", made[1], claimed=False, side=side)]


def rows_on_embeddings() -> list[harness.Row]:
    """The study `negatives`, of standard DR on input embeddings."""
    return rows_of_negatives(functools.partial(arm, backbone=EMBEDDINGS), ON_EMBEDDINGS)


def rows_of_hard(arms: Arms = arm, side: Side = DR) -> list[harness.Row]:
    """The study, of a system."""
    made = hard(arms)
    table = [row("hard", f"share {ratio:g}", runs, side) for ratio, runs in made.items()]
    return [*table, row_above("hard", "share 1", made[1.0], "share 0", made[0.0], claimed=False, side=side)]


def rows_of_widths(arms: Arms = arm, side: Side = DR) -> list[harness.Row]:
    """The study `dimension`, of a system that is trained."""
    made = widths(arms)
    table = [row("dimension", f"r = {width}", runs, side) for width, runs in made.items()]
    for narrow, wide in zip(TESTED, TESTED[1:], strict=False):
        tested = row_above(
            "dimension", f"r = {wide}", made[wide], f"r = {narrow}", made[narrow], claimed=True, side=side
        )
        table.append(tested)
    return table


def rows_of_dimension() -> list[harness.Row]:
    """The study, with its reference."""
    from benchmarks import dense_quality

    run = dense_quality.ZERO_SHOT[DATA]
    references = [
        harness.Row(
            name=f"dimension: PCA, r = {width}",
            config={"splits": list(SPLITS), "width": width},
            measure=functools.partial(principal, width),
            corpus=run.fingerprint,
            runs=[run],
            note="MiniLM, nothing trained",
        )
        for width in WIDTHS
    ]
    return [*rows_of_widths(), *references]


def draw(study: str, current: Mapping[str, Values]) -> None:
    """A picture of a study, of the rows that are recorded."""
    from gr_jax.evaluation import plots

    axes: Mapping[str, tuple[str, Mapping[str, float]]] = {
        "negatives": ("negatives a query", {f"K = {named(count)}": count or 2066 for count in NEGATIVES}),
        "hard": ("share of hard negatives", {f"share {ratio:g}": ratio for ratio in RATIOS}),
        "dimension": ("width of the vectors", {f"r = {width}": width for width in WIDTHS}),
    }
    axis, points = axes[study]
    found = {
        side: {
            at: current[f"{study}: {side}, {title}"][MEASURE]
            for title, at in points.items()
            if f"{study}: {side}, {title}" in current
        }
        for side in (DR.name, "MVDR", ON_EMBEDDINGS.name, "PCA", "MVDR by PCA")
    }
    lines = {side: list(line.items()) for side, line in found.items() if len(line) > 1}
    if lines:
        figure = plots.curves(
            {MEASURE: lines}, title=f"{DATA}, both test splits; one or three seeds", x=axis,
            logarithmic=study != "hard", queries={MEASURE: QUESTIONS},
        )  # fmt: skip
        storage.write_bytes(harness.RESULTS / f"gr_vs_dr_{study}.svg", plots.to_svg(figure))


def row(study: str, title: str, runs: Sequence[RecipeRun], side: Side = DR) -> harness.Row:
    """What an arm reached."""
    return harness.Row(
        name=f"{study}: {side.name}, {title}",
        config={"splits": list(SPLITS)},
        measure=functools.partial(reached, runs, side),
        corpus=runs[0].fingerprint,
        seeds=SEEDS[: len(runs)],
        runs=list(runs),
    )


def row_above(
    study: str,
    first: str,
    runs: Sequence[RecipeRun],
    second: str,
    others: Sequence[RecipeRun],
    *,
    claimed: bool,
    side: Side = DR,
) -> harness.Row:
    """How far one arm is above another.

    Args:
      claimed: the row is short where it is not.
    """
    return harness.Row(
        name=f"{study}: {side.name}, {first} above {second}",
        config={"splits": list(SPLITS), "first": first, "second": second},
        measure=functools.partial(above, runs, others, side),
        at_least={f"{MEASURE} above": 1e-9} if claimed else {},
        at_most={f"p {MEASURE}": 0.05} if claimed else {},
        corpus=runs[0].fingerprint,
        seeds=SEEDS[: len(runs)],
        runs=[*runs, *others],
        note=f"paired t-test over queries, {'of means over three seeds' if len(runs) > 1 else 'of one training'}",
    )

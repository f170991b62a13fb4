"""Study `growth` of `benchmarks.gr_vs_dr`: what is lost where documents join that nobody was trained on.

Mode `distractors`: systems are trained on 10,000 introductions of `wiki_intro_179k`, among which every answer is, and
answer the same questions from 32,000, 100,000 and all 178,775 of them. Parameters and codebooks stay; a hash of them is
in every row, and the row of the slope counts how many there are. A document is encoded once, 64 tokens of it.
Bi-encoder and late interaction are those of the other studies, of 31 random negatives and width 128. GR-codebook writes
six codes and a number (`dsi_codebook`), of codebooks that are not fitted together. GR-text writes titles (`genre`).
Token vectors of all documents are mapped from the disk, so that late interaction fits at every size.

A slope is RR@10 a doubling of the documents: least squares over the sizes, of every question, with an interval by
bootstrap over questions. One seed: an interval says nothing of other trainings; `benchmarks.gr_vs_dr_growth_seeds` has
the end points of three. Before anything was trained: 938
questions show a difference of .029 of success at 80% power where a tenth of them differ.

Mode `matched_training` is in `benchmarks.gr_vs_dr_matched`.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from benchmarks import gr_vs_dr_dense, gr_vs_dr_late, grown, harness, pooled
from benchmarks.grown import WHOLE, Growing
from benchmarks.recipe_runs import RecipeRun
from gr_jax import retrievers, storage
from gr_jax.corpus import Run
from gr_jax.evaluation import Evaluation, evaluate
from gr_jax.evaluation.significance import bootstrap_interval

GROUP, DATA, SPLIT = "gr_vs_dr", "wiki_intro_179k", "test"
PARTS = {"10k": "10,000", "32k": "32,000", "100k": "100,000", WHOLE: "178,775"}
MEASURE, DEPTH = "RR@10", 100
MEASURES = ("Success@1", "Success@10", MEASURE)
GENERATIVE, DENSE = ("GR-codebook", "GR-text"), ("DR", "MVDR")
LENGTH = 64
JOINED = "Identifiers.refits=0"  # codebooks that are fitted closely to some documents serve others a little less
Values = Mapping[str, float]


@functools.cache
def runs(seed: int = 0) -> dict[str, RecipeRun]:
    """The systems, trained on the first part."""
    first = next(iter(PARTS))
    read, trained = (f"Encoders.document_length={LENGTH}",), f"Training.seed={seed}"
    vectors = (f"Vectors.max_length={LENGTH}", JOINED, trained)
    label = named("growth", seed)
    return {
        "DR": gr_vs_dr_dense.arm(data=DATA, subset=first, seeds=(seed,), flags=read)[0],
        "MVDR": gr_vs_dr_late.arm(data=DATA, subset=first, seeds=(seed,), flags=read)[0],
        "GR-codebook": RecipeRun(GROUP, DATA, "dsi_codebook", label, subset=first, flags=vectors),
        "GR-text": RecipeRun(GROUP, DATA, "genre", label, subset=first, flags=(trained,)),
    }


def named(label: str, seed: int) -> str:
    """The label of a writer's run: the first seed's has no number."""
    return f"{label}_{seed}" if seed else label


@functools.cache
def growing(system: str, seed: int = 0) -> Growing:
    """The documents, for a system, which is indexed where it is not."""
    run = runs(seed)[system]
    run.index()
    return Growing(run, tuple(PARTS))


@functools.cache
def answered(system: str, part: str, seed: int = 0) -> tuple[Evaluation, float]:
    """What a system reaches on a part of the documents, and the hash of what is fixed. Both are kept, as long as its
    index is the same, byte for byte: documents that join take a while."""
    documents = growing(system, seed)
    count, dataset = documents.sizes[part], documents.dataset
    index = hashlib.sha256((documents.run.folder / "index" / "manifest.json").read_bytes()).hexdigest()
    file = documents.folder("answers", f"{index} {count} {DEPTH}") / f"{SPLIT}.trec"
    fixed = file.with_name("hash.json")

    def ask() -> Run:
        answering = grown.SYSTEMS[system](documents, count)
        storage.write_json(fixed, answering.fingerprint)
        asked = dataset.split_queries(SPLIT)
        return retrievers.retrieve_run(answering.retriever, asked, documents.first(count), k=DEPTH, progress=True)

    found = pooled.kept(file, ask)
    return evaluate(found, dataset.split(SPLIT), MEASURES), float(json.loads(fixed.read_text(encoding="utf-8")))


def reached(system: str, part: str) -> Values:
    """What a system reaches on a part, and the hash."""
    found, fingerprint = answered(system, part)
    return {**found, "hash": fingerprint}


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


def by_size(system: str, parts: Collection[str] = tuple(PARTS), seed: int = 0) -> dict[int, Evaluation]:
    """Documents → what a system reaches."""
    return {growing(system, seed).sizes[part]: answered(system, part, seed)[0] for part in parts}


def slope(system: str) -> Values:
    """A system's slope, and how many hashes its rows have."""
    hashes = {answered(system, part)[1] for part in PARTS}
    return {**with_interval(slopes(by_size(system)), f"{MEASURE} a doubling"), "hashes": float(len(hashes))}


def difference(system: str, other: str) -> Values:
    """How far one system's slope is above another's."""
    return with_interval(slopes(by_size(system)) - slopes(by_size(other)), f"{MEASURE} a doubling, above")


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
        figure = plots.curves(lines, title=f"{DATA}, {SPLIT}", x="documents", y=MEASURE, logarithmic=True)
        storage.write_bytes(harness.RESULTS / file, plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The study."""
    table = []
    for system in grown.SYSTEMS:
        table += [
            _row(f"{system}, {said}", functools.partial(reached, system, part), [system])
            for part, said in PARTS.items()
        ]
    for system in grown.SYSTEMS:
        table.append(_row(f"{system}, a doubling", functools.partial(slope, system), [system], {"hashes": 1.0}))
    for system in GENERATIVE:
        for other in DENSE:
            measure = functools.partial(difference, system, other)
            table.append(_row(f"{system} above {other}, a doubling", measure, [system, other]))
    return table


def _row(
    title: str, measure: Callable[[], Values], systems: Sequence[str], at_most: Mapping[str, float] | None = None
) -> harness.Row:
    made = [runs()[system] for system in systems]
    return harness.Row(
        name=f"growth: {title}",
        config={"mode": "distractors", "split": SPLIT, "depth": DEPTH},
        measure=measure,
        at_most=at_most or {},
        corpus=functools.partial(_fingerprint, DATA),
        seeds=(0,),
        runs=made,
    )


def _fingerprint(data: str) -> str:
    from benchmarks.recipe_runs import fingerprint

    return fingerprint(data)

"""GDR, and DSI on its clusters, as the corpus grows: `python -m benchmarks.gdr_scaling`.

10,000, 32,000 and 100,000 introductions of `wiki_intro_179k`, the same questions, 1,000 clusters whatever the size, one
seed; untrained, and trained for the small budget's steps. They become longer for DSI as it gets more tokens to write:
of 100,000 documents it trains for a third of them, which take as long as GDR's, and in a row of its own for all. The
document encoder is MiniLM as it is, 64 tokens of a document. DSI's outputs start from its documents' vectors, GDR's
from its clusters' means. Prints rows, and draws R@100 of those that are recorded into
`benchmarks/results/gdr_scaling.svg`.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
from collections.abc import Mapping

import numpy as np

from benchmarks import harness, records
from benchmarks.gdr_quality import CLUSTERS, gaps
from benchmarks.recipe_runs import RecipeRun
from benchmarks.systems import System
from gr_jax import storage

NAME = "gdr_scaling"
DATA, SIZES = "wiki_intro_179k", {"10k": 10_000, "32k": 32_000, "100k": 100_000}
QUERIES = 938
SYSTEMS = {"gdr": "GDR", "dsi_clusters": CLUSTERS}
_CLASSES = {"gdr": "GDR", "dsi_clusters": "DSIClusters"}
_BUDGETS = {"gdr": "small_gdr", "dsi_clusters": "small_docids"}
UNTRAINED, TRAINED = HOW = ("untrained", "trained")
_IN_EQUAL_TIME = {("dsi_clusters", "100k", TRAINED): ("Training.steps=50", "Training.evaluate_every=50")}
LONGER = "trained for 150 steps"  # as at the other sizes
_ALIKE = (
    "GDR.encoder_training=None",
    "DSIClusters.encoder_training=None",
    "Encoders.document_length=64",
    "Clusters.budget=1000",
)


@functools.cache
def run(system: str, size: str, how: str) -> RecipeRun:
    """One run."""
    steps = _IN_EQUAL_TIME.get((system, size, how), ()) if how != UNTRAINED else (f"{_CLASSES[system]}.training=None",)
    label = "_".join(how.split())
    return RecipeRun("gdr", DATA, system, label, size, budget=_BUDGETS[system], flags=(*_ALIKE, *steps))


def measure(system: str, size: str, how: str) -> Mapping[str, float]:
    """What a system reaches on test, and how many examples a document it was trained on."""
    made = run(system, size, how)
    values = dict(System((made,), SYSTEMS[system]).evaluate("test"))
    if how != UNTRAINED:
        values |= {"examples a document": _examples(made) / SIZES[size], "core-minutes": made.core_minutes()}
    return values


def _examples(made: RecipeRun) -> float:
    """Questions that a training read. DSI's rows hold several short ones: there, tokens are counted."""
    lines = [json.loads(line) for line in (made.folder / "model" / "metrics.jsonl").read_text("utf-8").splitlines()]
    weights = [line["train/weight_sum"] for line in lines if "train/weight_sum" in line]
    counted = statistics.mean(weights) * made.training()["config"]["training"]["steps"]
    if made.system == "gdr":
        return counted
    from gr_jax.stages.docids import load_docids

    docids = load_docids(made.input_folder("model", "docids"))
    return counted / float(np.mean(docids.lengths) + (docids.eos_id is not None))


def gap(size: str, how: str, other: str) -> Mapping[str, float]:
    """GDR above DSI, which may be trained otherwise, and p."""
    return gaps(System((run("gdr", size, how),), "GDR"), System((run("dsi_clusters", size, other),), CLUSTERS), "test")


def draw() -> None:
    """R@100 of both systems by size, of the rows that are recorded."""
    from gr_jax.evaluation import plots

    current = harness.current_values(rows(), records.read(harness.RESULTS / f"{NAME}.json"))
    curves = {}
    for name in SYSTEMS.values():
        for how in HOW:
            found = {count: current.get(f"{size}, {how}, {name}") for size, count in SIZES.items()}
            curves[f"{name}, {how}"] = [(count, values["R@100"]) for count, values in found.items() if values]
    longer = current.get(f"100k, {LONGER}, {CLUSTERS}")
    if longer:
        curves[f"{CLUSTERS}, {LONGER}"] = [
            *(point for point in curves[f"{CLUSTERS}, {TRAINED}"] if point[0] != SIZES["100k"]),
            (SIZES["100k"], longer["R@100"]),
        ]
    if any(curves.values()):
        figure = plots.curves(
            {"R@100": curves}, title=f"{DATA}, test, 1,000 clusters, one seed", x="documents", logarithmic=True,
            queries={"R@100": QUERIES},
        )  # fmt: skip
        storage.write_bytes(harness.RESULTS / f"{NAME}.svg", plots.to_svg(figure))


def _row(system: str, size: str, how: str) -> harness.Row:
    made = run(system, size, how)
    return harness.Row(
        name=f"{size}, {how}, {SYSTEMS[system]}",
        config={"split": "test"},
        measure=functools.partial(measure, system, size, how),
        corpus=made.fingerprint,
        seeds=(0,),
        runs=[made],
        note="50 steps" if (system, size, how) in _IN_EQUAL_TIME else "",
    )


def _gap(size: str, how: str, other: str, name: str = CLUSTERS) -> harness.Row:
    gdr = run("gdr", size, how)
    return harness.Row(
        name=f"{size}, {how}, GDR above {name}",
        config={"split": "test", "what": "gap"},
        measure=functools.partial(gap, size, how, other),
        corpus=gdr.fingerprint,
        seeds=(0,),
        runs=[gdr, run("dsi_clusters", size, other)],
        note="paired t-tests, not corrected for how many there are",
    )


def rows() -> list[harness.Row]:
    """The table."""
    table = []
    for size in SIZES:
        for how in HOW:
            table += [_row(system, size, how) for system in SYSTEMS]
            table.append(_gap(size, how, how))
    return [*table, _row("dsi_clusters", "100k", LONGER), _gap("100k", TRAINED, LONGER, f"{CLUSTERS} {LONGER}")]


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows(), draw=draw))

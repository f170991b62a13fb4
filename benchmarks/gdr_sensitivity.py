"""What GDR's settings do: `python -m benchmarks.gdr_sensitivity`.

One seed at the small budget, on `squad_dev`'s dev split, beside the small GDR of `benchmarks.gdr_quality` and on its
document encoder. The number of clusters, α and the other settings are trained for, each with β and the clusters chosen
on dev; beams are not, and have both chosen anew. β and the number of clusters chosen are points of the table that one
run measured on dev. Prints rows, and draws a picture of each parameter into `benchmarks/results/gdr_*.svg`.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from benchmarks import harness, records
from benchmarks.gdr_quality import Values, small
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.corpus import read_beir

NAME = "gdr_sensitivity"
MEASURES, QUERIES = ("Success@1", "RR@10", "R@100"), 1451  # of dev
DRAWN = {name: name for name in MEASURES} | {"share_scored": "share of documents scored"}
# Parameter → the name of its rows, how they are made from a value, values, and the one that the small GDR has.
TRAINED = {
    "clusters": ("{:g} clusters", ("budget{}", "Clusters.budget={}"), (100, 200, 400, 800, 1600), 800),
    "alpha": ("alpha {:g}", ("alpha{}", "Matching.alpha={}"), (0.25, 1, 4, 16), 1),
}
BEAMS = (8, 16, 32, 64, 128)
CHOSEN = {
    "beta": ("beta {:g}", (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)),
    "chosen": ("{:g} clusters chosen", (5, 10, 20, 40, 80, 120)),
}
AXES = {
    "clusters": "clusters",
    "alpha": "α, what a document of the answer's cluster weighs in the loss",
    "beams": "beams",
    "beta": "β, what a cluster's probability adds to a document's score",
    "chosen": "clusters looked into",
}
# Up to 1,024 clusters, hierarchical k-means is one level: what "kmeans" makes differs from it in nothing but chance.
CLUSTERINGS = {
    "a tree of 20 × 40 clusters": ("tree", "Clusters.branching=[20, 40]"),
    **{
        f"{name} clusters": (name, f'Clusters.algorithm="{name}"')
        for name in ("kmeans", "spherical", "balanced", "agglomerative")
    },
}
# What else the small budget can be spent on: title → file of `gin_configs/ablations/`.
ABLATIONS = {"R-Drop in half the steps": "rdrop", "the document encoder too": "second_stage"}


def measure(run: RecipeRun, beta: float | None = None, chosen: int | None = None, beams: int | None = None) -> Values:
    """A point of the table that the run measured on dev; the one that it took, where nothing else is said. With other
    `beams` the table is measured again."""
    from gr_jax.retrievers import index
    from gr_jax.systems.gdr.index import choose_on_dev
    from gr_jax.systems.gdr.settings import ClusterSearch

    run.make()
    choice = json.loads((run.folder / "index" / "choice.json").read_text(encoding="utf-8"))
    if beams is not None:
        retriever: Any = index.load(run.folder / "index").retriever
        retriever.beams = beams
        dataset = read_beir(harness.data_folder(run.data))
        choice = choose_on_dev(retriever, dataset, ClusterSearch()).as_json()
    beta, chosen = (choice["beta"] if beta is None else beta), (choice["chosen"] if chosen is None else chosen)
    (point,) = [p for p in choice["table"] if (p["beta"], p["chosen"]) == (beta, chosen)]
    values = {name: point[name] for name in DRAWN} | {"beta": beta, "chosen": chosen}
    return {**values, "core-minutes": run.core_minutes()}


def run_of(label: str = "", *flags: str, ablation: str = "") -> RecipeRun:
    """The small GDR, or another one beside it."""
    (run,) = small("gdr", label, *flags, ablation=ablation, seeds=(0,))
    return run


def draw() -> None:
    """A picture for every parameter, of the rows that are recorded."""
    from gr_jax.evaluation import plots

    current = harness.current_values(rows(), records.read(harness.RESULTS / f"{NAME}.json"))
    values_of = {name: (title, values) for name, (title, _, values, _) in TRAINED.items()}
    values_of |= {"beams": ("{:g} beams", BEAMS), **CHOSEN}
    for parameter, (title, values) in values_of.items():
        found = {value: current[title.format(value)] for value in values if title.format(value) in current}
        if len(found) > 1:
            figure = plots.curves(
                {shown: {"": [(at, point[one]) for at, point in found.items()]} for one, shown in DRAWN.items()},
                title="GDR, squad_dev, dev, one seed", x=AXES[parameter], logarithmic=True,
                queries=dict.fromkeys(MEASURES, QUERIES),
            )  # fmt: skip
            storage.write_bytes(harness.RESULTS / f"gdr_{parameter}.svg", plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The table."""
    table = []
    for title, (label, flag), values, default in TRAINED.values():
        for value in values:
            run = run_of() if value == default else run_of(label.format(value), flag.format(value))
            table.append(_row(title.format(value), run))
    table += [_row(f"{beams} beams", run_of(), beams=beams) for beams in BEAMS]
    table += [_row(title, run_of(*how)) for title, how in CLUSTERINGS.items()]
    table += [_row(title, run_of(ablation=name)) for title, name in ABLATIONS.items()]
    for parameter, (title, values) in CHOSEN.items():
        table += [_row(title.format(value), run_of(), **{parameter: value}) for value in values]
    return table


def _row(name: str, run: RecipeRun, **point: Any) -> harness.Row:
    return harness.Row(
        name=name,
        config={"point": point},
        measure=functools.partial(measure, run, **point),
        corpus=run.fingerprint,
        seeds=(0,),
        runs=[run],
    )


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows(), draw=draw))

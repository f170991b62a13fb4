"""GDR beside NCI and its own bi-encoder, its ablations and its sensitivities: `python -m benchmarks.gdr_quality`.

Every row reads recipes that are run as a user runs them, each in a process of its own, into `runs/gdr/` (and
`runs/dense/`, for document encoders): once, wherever they appear. GDR, NCI and the bi-encoder have the same document
encoder, the same documents, questions and pseudo-queries; GDR and NCI the same clusters. A training's core-minutes
hold its document encoder's. What was chosen (steps, rates, clusters, weights) was chosen on dev; the test splits are
only read here. Headline rows train for at most the standard budget, 30 minutes on 2 cores, with one seed; comparisons
for at most the small one, 5 minutes, with three, over which a query's measures are averaged; p of the paired t-test
over queries. Sensitivities are one seed's, on dev. GDR keeps back a twentieth of the questions, by which its parameters
are chosen; NCI trains on all of them. NCI is trained with R-Drop, which helps it on dev, and GDR without.
NCI's decoder head is a row of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import doct5query, harness
from benchmarks.dense_quality import DPR, FINE_TUNED, SMALL, STANDARD
from benchmarks.recipe_runs import RecipeRun
from benchmarks.systems import System
from gr_jax.corpus import read_beir
from gr_jax.evaluation import compare, evaluate
from gr_jax.retrievers import Ranking, index, ranking_to_run

SEEDS, STABILITY = (0, 1, 2), (0, 1, 2, 3, 4)
MEASURES = ("R@100", "Success@10", "Success@1")
ABOVE = {measure: f"{measure} above" for measure in MEASURES}
DATA = "squad_dev"
Values = Mapping[str, float]

# Fractions of the small budget: the document encoder's, then the rest for what reads queries.
ENCODER_FLAGS = ("ContrastiveTraining.steps=60", "ContrastiveTraining.evaluate_every=30")


def headline(data: str, recipe: str) -> RecipeRun:
    """At the standard budget, on the document encoder of the recipe dpr's headline run: trained on squad_dev, MiniLM as
    it is on nq_boolq_dev."""
    return RecipeRun("gdr", data, recipe, encoder=DPR[data])


@functools.cache
def encoder(seed: int) -> RecipeRun:
    """A document encoder of the small budget."""
    flags = (*ENCODER_FLAGS, f"ContrastiveTraining.seed={seed}")
    return RecipeRun("dense", DATA, "dpr", f"encoder_{seed}", budget="small", flags=flags)


UNTRAINED = RecipeRun(
    "dense",
    DATA,
    "dpr",
    "encoder_untrained",
    flags=("ContrastiveTraining.steps=0", "query_side/ContrastiveTraining.steps=0", "Search.hybrid=False"),
)
INPUT_EMBEDDINGS = dataclasses.replace(
    UNTRAINED, label="encoder_inputs", flags=(*UNTRAINED.flags, "Encoders.pretrained_layers=0")
)


def small(
    recipe: str,
    label: str = "",
    *flags: str,
    seeds: Sequence[int] = SEEDS,
    on: RecipeRun | None = None,
    queries: RecipeRun | None = None,
) -> tuple[RecipeRun, ...]:
    """A recipe at the small budget, once for each seed; `on` another document encoder than the seed's own, with the
    generated `queries` of another run."""
    training = "Training" if recipe == "nci" else "ContrastiveTraining"
    return tuple(
        RecipeRun(
            "gdr",
            DATA,
            recipe,
            "_".join(filter(None, ("small", label, str(seed)))),
            budget=f"small_{recipe}",
            flags=(*flags, f"{training}.seed={seed}", f"Clusters.seed={seed}"),
            encoder=encoder(seed) if on is None else on,
            queries=queries,
        )
        for seed in seeds
    )


def reached(system: System, split: str) -> Values:
    """Measures, spread over seeds, and the core-minutes that it trained."""
    values = dict(system.evaluate(split))
    if len(system.runs) > 1:
        values["spread of R@100"] = system.spread(split, "R@100")
    return {**values, "core-minutes": system.core_minutes()}


def gaps(system: System, other: System, split: str) -> Values:
    """What one system is above another, and p."""
    own, theirs = system.evaluate(split), other.evaluate(split)
    values: dict[str, float] = {}
    for measure in MEASURES:
        found = compare(own, theirs, measure)
        values |= {ABOVE[measure]: found.difference, f"p of {measure}": found.p_t}
    return values


def scored(run: RecipeRun, split: str) -> Values:
    """Which share of the documents' vectors is scored, and what R@100 that costs against scoring all of them with the
    same weight."""
    run.make()
    found = json.loads((run.folder / "results" / "clusters.json").read_text(encoding="utf-8"))[split]
    return {
        "share scored": found["share_scored"],
        "answer's cluster chosen": found["answer_in_chosen"],
        "R@100": found["R@100"],
        "R@100, all scored": found["R@100, all scored"],
        "lost": found["R@100, all scored"] - found["R@100"],
    }


def nearest(run: RecipeRun, split: str) -> Values:
    """What the decoder's choice is worth: of as many clusters those whose means are nearest to the query's vector."""
    run.make()
    retriever: Any = index.load(run.folder / "index").retriever
    dataset = read_beir(harness.data_folder(run.data))
    queries, qrels = dataset.split_queries(split), dataset.split(split)
    decoded = retriever.decode(queries.texts)
    clusters = retriever.searcher.choose_clusters(np.asarray(decoded.vectors), retriever.chosen)
    chosen = decoded._replace(clusters=clusters, weights=np.zeros(clusters.shape, np.float32))
    ranking = Ranking(*retriever.search(chosen, 100))
    return {
        "share scored": float(np.mean(retriever.share_scored(chosen))),
        **evaluate(ranking_to_run(ranking, queries.ids, dataset.corpus), qrels, MEASURES),
    }


def sensitivity(run: RecipeRun, beta: float | None = None, chosen: int | None = None) -> Values:
    """A point of the table that was measured on dev."""
    run.make()
    choice = json.loads((run.folder / "index" / "choice.json").read_text(encoding="utf-8"))
    beta, chosen = (choice["beta"] if beta is None else beta), (choice["chosen"] if chosen is None else chosen)
    (point,) = [p for p in choice["table"] if (p["beta"], p["chosen"]) == (beta, chosen)]
    return {name: point[name] for name in ("Success@1", "RR@10", "R@100", "share_scored")}


def _row(name: str, system: System, split: str, **bounds) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, **system.config()},
        measure=functools.partial(reached, system, split),
        corpus=system.runs[0].fingerprint,
        seeds=tuple(range(len(system.runs))),
        **bounds,
    )


def _gap(name: str, system: System, other: System, split: str, *, claimed: Sequence[str] = ()) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, **system.config(), "other": other.config()},
        measure=functools.partial(gaps, system, other, split),
        at_least={ABOVE[measure]: 1e-9 for measure in claimed},
        corpus=system.runs[0].fingerprint,
        seeds=tuple(range(len(system.runs))),
        note="paired t-test",
    )


def _headline_rows() -> list[harness.Row]:
    table = []
    for data, split in FINE_TUNED:
        gdr, nci, passages = (headline(data, recipe) for recipe in ("gdr", "nci", "gdr_passages"))
        passages = dataclasses.replace(passages, trained=gdr)
        floors = {("squad_dev", "test"): (0.69, 0.93)}.get((data, split), FINE_TUNED[data, split])
        hits = dict(zip(("Success@1", "Success@10"), floors, strict=True))
        budget = {"core-minutes": STANDARD}
        name = f"{data} {split}"
        table += [
            _row(f"{name} GDR", System((gdr,), "GDR"), split, at_least=hits, at_most=budget),
            _row(
                f"{name} GDR, a vector a sentence", System((passages,), "GDR"), split, at_least=hits, at_most=budget
            ),
            _row(f"{name} GDR, vectors alone", System((gdr,), "GDR, vectors alone"), split),
            _row(f"{name} NCI", System((nci,), "NCI"), split, at_most=budget),
            _gap(f"{name} GDR above NCI", System((gdr,), "GDR"), System((nci,), "NCI"), split, claimed=MEASURES),
            _gap(
                f"{name} GDR above its bi-encoder", System((gdr,), "GDR"), System((DPR[data],), "DPR"), split,
                claimed=MEASURES,
            ),
            harness.Row(
                name=f"{name} GDR, share scored",
                config={"split": split, **gdr.config(), "what": "share"},
                measure=functools.partial(scored, gdr, split),
                at_most={"share scored": 0.15, "lost": 0.01},
                corpus=gdr.fingerprint,
                seeds=(0,),
            ),
            harness.Row(
                name=f"{name} GDR, clusters of the nearest means",
                config={"split": split, **gdr.config(), "what": "nearest means"},
                measure=functools.partial(nearest, gdr, split),
                corpus=gdr.fingerprint,
                seeds=(0,),
            ),
        ]  # fmt: skip
    return table


# What is compared with GDR as it is: name → its label and flags.
NEGATIVES = {
    "BM25 negatives": ("bm25", "Mining.shares={'bm25': 1.0}"),
    "random negatives": ("random", "Mining.shares={'random': 1.0}"),
    "ANCE negatives": (
        "ance",
        "Mining.shares={'ance': 1.0}",
        "Mining.refresh_every=50",
        "document_encoder/Mining.refresh_every=0",
    ),
}
AUGMENTATION = {
    "no pseudo-queries": ("none", "ContrastiveTraining.rates={'query': 1.0}"),
    "spans": ("spans", "PseudoQueries.kinds={'span': 5}"),
    "generated queries": ("generated", "PseudoQueries.kinds={'generated': 5}"),
    "generated queries and spans": ("both", "PseudoQueries.kinds={'generated': 5, 'span': 5}"),
}
GENERATED = ("generated queries", "generated queries and spans")
# Documents' vectors are means of input embeddings there; what reads queries is MiniLM all the same.
QUERIES_BY_MINILM = {"gdr": ('Matching.start="pretrained"',), "nci": ('nci.start="pretrained"',)}


def _small_rows() -> list[harness.Row]:
    gdr = System(small("gdr"), "GDR")
    nci = System(small("nci"), "NCI")
    budget = {"at_most": {"core-minutes": SMALL}}
    table = []
    for split in ("test", "test_unseen"):
        name = f"{DATA} {split}, small"
        table += [
            _row(f"{name}, GDR", gdr, split, **budget),
            _row(f"{name}, NCI", nci, split, **budget),
            _gap(f"{name}, GDR above NCI", gdr, nci, split),
        ]
        for title, (label, *flags) in {**NEGATIVES, **AUGMENTATION}.items():
            written = doct5query.RUN if title in GENERATED else None
            other = System(small("gdr", label, *flags, queries=written), "GDR")
            table += [
                _row(f"{name}, {title}", other, split, **budget),
                _gap(f"{name}, above {title}", gdr, other, split),
            ]
        for title, on in (("MiniLM untuned", UNTRAINED), ("input embeddings", INPUT_EMBEDDINGS)):
            for recipe, own in (("gdr", gdr), ("nci", nci)):
                label = on.label.removeprefix("encoder_")
                start = QUERIES_BY_MINILM[recipe] if on is INPUT_EMBEDDINGS else ()
                other = System(small(recipe, label, *start, on=on), own.name)
                table += [
                    _row(f"{name}, {own.name} on {title}", other, split, **budget),
                    _gap(f"{name}, {own.name} above {own.name} on {title}", own, other, split),
                ]
        pawa = System(small("nci", "pawa", "Network.pawa_layers=1"), "NCI")
        table.append(_row(f"{name}, NCI with its decoder head", pawa, split))
        table.append(_row(f"{name}, GDR, five seeds", System(small("gdr", seeds=STABILITY), "GDR"), split))
    return table


ALPHAS, BUDGETS = (0.25, 4.0, 16.0), (100, 200, 400, 1600)
# What else a small budget can be spent on: name → label and flags.
OTHERWISE = {
    "a tree of 20 × 40 clusters": ("tree", "Clusters.branching=[20, 40]"),
    "kmeans clusters": ("kmeans", 'Clusters.algorithm="kmeans"'),
    "spherical clusters": ("spherical", 'Clusters.algorithm="spherical"'),
    "balanced clusters": ("balanced", 'Clusters.algorithm="balanced"'),
    "agglomerative clusters": ("agglomerative", 'Clusters.algorithm="agglomerative"'),
    "R-Drop in half the steps": ("rdrop", "Matching.rdrop=0.15", "ContrastiveTraining.steps=100"),
}
BEAMS = (8, 32, 64)


def _sensitivity_rows() -> list[harness.Row]:
    (run,) = small("gdr", seeds=(0,))
    table = []
    for budget in BUDGETS:
        (other,) = small("gdr", f"budget{budget}", f"Clusters.budget={budget}", seeds=(0,))
        table.append(_point(f"{budget} clusters, on dev", other))
    for alpha in ALPHAS:
        (other,) = small("gdr", f"alpha{alpha}", f"Matching.alpha={alpha}", seeds=(0,))
        table.append(_point(f"alpha {alpha:g}, on dev", other))
    for name, (label, *flags) in OTHERWISE.items():
        (other,) = small("gdr", label, *flags, seeds=(0,))
        table.append(_point(f"{name}, on dev", other))
    for beams in BEAMS:
        (other,) = small("gdr", f"beams{beams}", f"ClusterSearch.beams={beams}", seeds=(0,))
        table.append(_point(f"{beams} beams, on dev", other))
    for beta in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0):
        table.append(_point(f"beta {beta:g}, on dev", run, beta=beta))
    for chosen in (5, 10, 20, 40, 80, 120):
        table.append(_point(f"{chosen} clusters chosen, on dev", run, chosen=chosen))
    return table


def _point(name: str, run: RecipeRun, **point) -> harness.Row:
    return harness.Row(
        name=name,
        config={**run.config(), "point": point},
        measure=functools.partial(sensitivity, run, **point),
        corpus=run.fingerprint,
        seeds=(0,),
    )


def rows() -> list[harness.Row]:
    """The table, in the order in which it is measured."""
    return [*_headline_rows(), *_small_rows(), *_sensitivity_rows()]


if __name__ == "__main__":
    sys.exit(harness.main("gdr_quality", rows()))

"""What docids and generated queries are worth to DSI: rows of `benchmarks.generative_baselines`.

Before anything was trained: 3,976 questions of `squad_dev`, both test splits together, show a difference of .014 at 80%
power; those of test .022, those of test_unseen .018. Comparisons are at about the small budget, 10 core-minutes,
with three seeds, over which a query's measures are averaged; docids without a tree have one seed.

DSI-QG and DSI differ in what documents are learned from alone, the documents' words or queries that `bm25_doct5query`
generated: where MiniLM reads both sides it answers for itself, so that both networks are from scratch, or documents are
means of word embeddings. Random docids are the semantic ones, dealt out to other documents; their tokens start from the
centroids of the documents that they then stand for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from benchmarks import harness, ngram_scoring, pooled
from benchmarks.recipe_runs import RecipeRun
from benchmarks.systems import System

GROUP, DATA = "ngram", "squad_dev"
SPLITS = ("test", "test_unseen")
SEEDS = (0, 1, 2)
MEASURES = ("Success@1", "Success@10", "RR@10")
GENERATED = RecipeRun(GROUP, DATA, "bm25_doct5query")
Values = Mapping[str, float]

# Shares of the examples: of what documents are learned from half, of questions of people half.
WORDS = ('Training.rates={"query": 0.5, "document": 0.5, "pseudo": 0.0}',)
QUERIES = ('Training.rates={"query": 0.5, "document": 0.0, "pseudo": 0.5}', 'PseudoQueries.kinds={"generated": 5}')
FROM_SCRATCH = (
    "Training.steps=1500", "Training.evaluate_every=500", "Training.checkpoint_every=500", "Training.dev_queries=200",
)  # fmt: skip
# A tree gives a docid's tokens something to start from. These have none: they start at random, as the paper's do.
WITHOUT_TREE = {
    "atomic": ('Identifiers.scheme="atomic"',),
    "naive": (
        'Identifiers.scheme="naive_numeric"', 'Training.normalize="vocabulary"', 'Decoding.normalize="vocabulary"',
    ),
}  # fmt: skip


def _seeded(run: RecipeRun, seeds: Sequence[int] = SEEDS, *others: str) -> tuple[RecipeRun, ...]:
    """The run with each of the seeds, of its training and `others`."""
    return tuple(
        dataclasses.replace(
            run,
            label=f"{run.label}_{seed}",
            flags=(*run.flags, f"Training.seed={seed}", *(f"{other}={seed}" for other in others)),
        )
        for seed in seeds
    )


def from_scratch(generated: bool) -> System:
    """DSI of a small T5 that nobody trained before."""
    flags = (*FROM_SCRATCH, *(QUERIES if generated else WORDS))
    queries = GENERATED if generated else None
    run = RecipeRun(
        GROUP, DATA, "dsi", "qg_scratch" if generated else "scratch", flags=flags, queries=queries, model="tiny"
    )
    return System(_seeded(run), "DSI")


def input_embeddings(generated: bool) -> System:
    """DSI on clusters of the documents' mean word embeddings."""
    run = RecipeRun(
        GROUP, DATA, "dsi_clusters", "qg_embeddings" if generated else "embeddings", budget="small_docids",
        ablation="input_embeddings", flags=QUERIES if generated else WORDS, queries=GENERATED if generated else None,
    )  # fmt: skip
    return System(_seeded(run, SEEDS, "Clusters.seed"), "DSI on clusters")


def semantic(permuted: bool) -> System:
    """DSI whose docids are paths in a tree of clusters, of the documents or of others."""
    run = RecipeRun(GROUP, DATA, "dsi_centroids", "random" if permuted else "semantic")
    return System(_seeded(run, SEEDS, *(("Identifiers.permuted",) if permuted else ())), "DSI")


def without_tree(kind: str) -> System:
    """DSI with atomic or naive docids."""
    flags = (*WITHOUT_TREE[kind], "Training.steps=350")
    return System(_seeded(RecipeRun(GROUP, DATA, "dsi_scratch", kind, flags=flags), (0,)), "DSI")


def untrained() -> dict[str, System]:
    """The same before training; of DSI with docids of one tree the start is the centroids, of the others random."""
    off, found = ("DSI.training=None",), {}
    for title, run in {
        "DSI, from scratch": RecipeRun(GROUP, DATA, "dsi", "scratch_untrained", flags=off, model="tiny"),
        "DSI, semantic docids": RecipeRun(GROUP, DATA, "dsi_centroids", "semantic_untrained", flags=off),
        **{
            f"DSI, {kind} docids": RecipeRun(GROUP, DATA, "dsi_scratch", f"{kind}_untrained", flags=(*flags, *off))
            for kind, flags in WITHOUT_TREE.items()
        },
    }.items():
        found[f"{title}, untrained"] = System((run,), "DSI")
    clusters = RecipeRun(
        GROUP, DATA, "dsi_clusters", "embeddings_untrained", ablation="input_embeddings",
        flags=("DSIClusters.training=None",),
    )  # fmt: skip
    return {**found, "DSI, on input embeddings, untrained": System((clusters,), "DSI on clusters")}


def seal() -> System:
    """The headline run."""
    return System((RecipeRun(GROUP, DATA, "seal", flags=ngram_scoring.BEFORE["seal"]),), "SEAL")


def reached(system: System, split: str) -> Values:
    """What a system reached on a split, and its longest training."""
    return {**system.evaluate(split), "core-minutes": system.core_minutes()}


def _untrained(system: System, split: str) -> Values:
    """What a system reaches before training."""
    return dict(system.evaluate(split))


def above(system: System, other: System, split: str) -> Values:
    """How far one system is above another on a split, with the interval by bootstrap over queries, and p."""
    return pooled.differences(*(pooled.evaluation(one.runs, one.name, [split], MEASURES) for one in (system, other)))


def rows() -> list[harness.Row]:
    """Both kinds of rows, system by system."""
    systems = {
        "DSI, from scratch": from_scratch(False),
        "DSI-QG, from scratch": from_scratch(True),
        "DSI, on input embeddings": input_embeddings(False),
        "DSI-QG, on input embeddings": input_embeddings(True),
        "DSI, semantic docids": semantic(False),
        "DSI, random docids": semantic(True),
        **{f"DSI, {kind} docids": without_tree(kind) for kind in WITHOUT_TREE},
    }
    pairs = [
        ("DSI-QG, from scratch", "DSI, from scratch", True),
        ("DSI-QG, on input embeddings", "DSI, on input embeddings", True),
        ("DSI, semantic docids", "DSI, random docids", False),
        *(("SEAL", f"DSI, {kind} docids", False) for kind in WITHOUT_TREE),
    ]
    table = []
    for name, system in systems.items():
        table += [
            _row(f"{DATA} {split} {name}", functools.partial(reached, system, split), split, [system])
            for split in SPLITS
        ]
    for name, system in untrained().items():
        table += [
            _row(f"{DATA} {split} {name}", functools.partial(_untrained, system, split), split, [system])
            for split in SPLITS
        ]
    systems["SEAL"] = seal()
    for first, second, claimed in pairs:
        sides = [systems[first], systems[second]]
        for split in SPLITS:
            measure = functools.partial(above, systems[first], systems[second], split)
            table.append(_row(f"{DATA} {split} {first} above {second}", measure, split, sides, claimed))
    return table


def _row(name: str, measure, split: str, systems: Sequence[System], claimed: bool = False) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, "systems": [one.config() for one in systems]},
        measure=measure,
        at_least={"RR@10 above": 1e-9} if claimed else {},
        at_most={"p RR@10": 0.05} if claimed else {},
        corpus=systems[0].runs[0].fingerprint,
        seeds=tuple(range(len(systems[0].runs))),
        runs=[run for one in systems for run in one.runs],
        note="paired t-test over queries" if len(systems) > 1 else "",
    )

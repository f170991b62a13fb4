"""GDR beside NCI, DSI and its own bi-encoder, and its ablations: `python -m benchmarks.gdr_quality`.

Every row reads systems that are run as a user runs them, each in a process of its own, into `runs/gdr/` (and
`runs/dense/`, for document encoders): once, wherever they appear. All have the same document encoder, documents,
questions and pseudo-queries; GDR and "DSI on clusters", which writes the cluster and the place in it with a token for
each, the same clusters. NCI has its own 30-ary tree and position-aware tokens. A training's core-minutes hold its
document encoder's, not what mined the encoder's negatives. What was chosen (steps, rates, clusters, weights) was chosen
on dev; the test splits are only read here. Headline rows train for at most the standard budget, 30 minutes on 2 cores,
with one seed; comparisons for at most the small one, 5 minutes, with three, over which a query's measures are averaged;
p of the paired t-test over queries. GDR keeps back a twentieth of the questions, by which its parameters are chosen;
NCI and DSI train on all of them, with R-Drop, which helps there on dev, and GDR without. Negatives among 100 clusters
are of one seed.
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
from gr_jax.corpus import Dataset, read_beir
from gr_jax.evaluation import compare, evaluate

SEEDS, STABILITY, ONE = (0, 1, 2), (0, 1, 2, 3, 4), (0,)
MEASURES = ("R@100", "Success@10", "Success@1")
FIRST = (1, 10, 40)
ABOVE = {measure: f"{measure} above" for measure in MEASURES}
P = {measure: f"p of {measure}" for measure in MEASURES}
DATA = "squad_dev"
Values = Mapping[str, float]

# Fractions of the small budget: the document encoder's, then the rest for what reads queries.
ENCODER_FLAGS = ("ContrastiveTraining.steps=60", "ContrastiveTraining.evaluate_every=30")
# The small budget has no second training. This one is said whole: what is bound does not change a default.
_QUERIES_TOO = (
    "DPR.query_training=@query_training/ContrastiveTraining()",
    *(
        f"query_training/ContrastiveTraining.{setting}"
        for setting in (
            "steps=200",
            "batch_size=64",
            "negatives=8",
            "document_length=128",
            "warmup_steps=10",
            "evaluate_every=50",
            "checkpoint_every=50",
            "dev_queries=200",
            "held_out=0.05",
            'keep_best="dev_mean/RR@10"',
        )
    ),
)


# What trains each system, what makes its clusters, and its small budget.
_TOLD = {
    "gdr": ("ContrastiveTraining", "Clusters", "small_gdr"),
    "dsi_clusters": ("Training", "Clusters", "small_docids"),
    "nci": ("Training", "Identifiers", "small_docids"),
}
CLUSTERS = "DSI on clusters"  # of GDR, a token for each node


def headline(data: str, system: str) -> RecipeRun:
    """At the standard budget, on the document encoder of DPR's headline run: trained on squad_dev, MiniLM as it is on
    nq_boolq_dev."""
    return RecipeRun("gdr", data, system, encoder=DPR[data])


@functools.cache
def encoder(seed: int) -> RecipeRun:
    """A document encoder of the small budget."""
    flags = (*ENCODER_FLAGS, f"ContrastiveTraining.seed={seed}")
    return RecipeRun("dense", DATA, "dpr", f"encoder_{seed}", budget="small", flags=flags)


@functools.cache
def bi_encoder(seed: int) -> RecipeRun:
    """The same encoder, whose side of queries then trains for as many steps as GDR, on batches as large."""
    before = encoder(seed)
    flags = (*before.flags, *_QUERIES_TOO)
    return dataclasses.replace(before, label=f"both_{seed}", flags=flags, trained=before)


def small(
    system: str,
    label: str = "",
    *flags: str,
    ablation: str = "",
    seeds: Sequence[int] = SEEDS,
    on: RecipeRun | None = None,
    trained: bool = True,
    queries: RecipeRun | None = None,
) -> tuple[RecipeRun, ...]:
    """A system at the small budget, once for each seed, on the seed's own document encoder or `on` another, or on one
    that is not `trained`; with the generated `queries` of another run."""
    training, seeded, budget = _TOLD[system]
    return tuple(
        RecipeRun(
            "gdr",
            DATA,
            system,
            "_".join(filter(None, ("small", label or ablation, str(seed)))),
            budget=budget,
            ablation=ablation,
            flags=(*flags, f"{training}.seed={seed}", f"{seeded}.seed={seed}"),
            encoder=(encoder(seed) if on is None else on) if trained else None,
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
        values |= {ABOVE[measure]: found.difference, P[measure]: found.p_t}
    return values


def scored(run: RecipeRun, split: str) -> Values:
    """Which share of the documents' vectors is scored, and what R@100 that costs against scoring all of them with the
    same weight."""
    run.make()
    found = json.loads((run.folder / "results" / "clusters.json").read_text(encoding="utf-8"))[split]
    choice = json.loads((run.folder / "index" / "choice.json").read_text(encoding="utf-8"))
    return {
        "beta": choice["beta"],
        "clusters": choice["chosen"],
        "share scored": found["share_scored"],
        "answer's cluster chosen": found["answer_in_chosen"],
        "R@100": found["R@100"],
        "R@100, all scored": found["R@100, all scored"],
        "lost": found["R@100, all scored"] - found["R@100"],
    }


def nearest(run: RecipeRun, split: str) -> Values:
    """What the decoder's choice is worth: instead of it the clusters whose means are nearest to the query's vector, as
    many as score the same share of the documents in the mean."""
    from gr_jax.retrievers import Ranking, index, ranking_to_run

    run.make()
    retriever: Any = index.load(run.folder / "index").retriever
    dataset = read_beir(harness.data_folder(run.data))
    queries, qrels = dataset.split_queries(split), dataset.split(split)
    decoded = retriever.decode(queries.texts)
    searcher, wanted = retriever.searcher, float(np.mean(retriever.share_scored(decoded)))
    ranked = searcher.choose_clusters(np.asarray(decoded.vectors), searcher.num_clusters)
    held = np.where(ranked >= 0, searcher.sizes()[ranked], 0)
    shares = np.cumsum(held, axis=1).mean(axis=0) / searcher.num_live
    count = 1 + int(np.argmin(np.abs(shares - wanted)))
    clusters = ranked[:, :count]
    means = decoded._replace(clusters=clusters, weights=np.zeros(clusters.shape, np.float32))
    ranking = Ranking(*retriever.search(means, 100, chosen=count))
    return {
        "clusters": count,
        "share scored": float(np.mean(retriever.share_scored(means, count))),
        **evaluate(ranking_to_run(ranking, queries.ids, dataset.corpus), qrels, MEASURES),
    }


def answers(dataset: Dataset, split: str) -> np.ndarray:
    """The position of the first document that answers each query of a split."""
    qrels = dataset.split(split)
    first = [next(doc_id for doc_id, grade in qrels[query_id].items() if grade > 0) for query_id in qrels]
    return np.array([dataset.corpus.index_of(doc_id) for doc_id in first])


def first_clusters(run: RecipeRun, split: str) -> Values:
    """How often the answer's cluster is among the first, by the decoder and by the clusters' means."""
    from gr_jax.retrievers import index

    run.make()
    retriever: Any = index.load(run.folder / "index").retriever
    dataset = read_beir(harness.data_folder(run.data))
    decoded = retriever.decode(dataset.split_queries(split).texts)
    most = max(FIRST)
    by_means = retriever.searcher.choose_clusters(np.asarray(decoded.vectors), most)
    gold, values = answers(dataset, split), dict[str, float]()
    for who, ranked in (("decoder", np.asarray(decoded.clusters[:, :most])), ("means", by_means)):
        pairs = zip(gold, ranked, strict=True)
        held = np.stack([retriever.searcher.contains(np.array([one]), row)[:, 0] for one, row in pairs])
        values |= {f"in {n}, {who}": float(held[:, :n].any(axis=1).mean()) for n in FIRST}
    return values


def _row(name: str, system: System, split: str, **bounds) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, "system": system.config()},
        measure=functools.partial(reached, system, split),
        corpus=system.runs[0].fingerprint,
        seeds=tuple(range(len(system.runs))),
        runs=system.runs,
        **bounds,
    )


def _gap(name: str, system: System, other: System, split: str, *, claimed: Sequence[str] = ()) -> harness.Row:
    return harness.Row(
        name=name,
        config={"split": split, "system": system.config(), "other": other.config()},
        measure=functools.partial(gaps, system, other, split),
        at_least={ABOVE[measure]: 1e-9 for measure in claimed},
        at_most={P[measure]: 0.05 for measure in claimed},
        corpus=system.runs[0].fingerprint,
        seeds=tuple(range(len(system.runs))),
        runs=[*system.runs, *other.runs],
        note="paired t-tests, not corrected for how many there are",
    )


# What NCI should reach.
NCI_HITS = {
    ("squad_dev", "test"): {"Success@1": 0.66, "Success@10": 0.93},
    ("nq_boolq_dev", "test"): {"Success@1": 0.85, "Success@10": 0.985},
}


def _headline_rows() -> list[harness.Row]:
    table = []
    for data, split in FINE_TUNED:
        gdr, nci, dsi, passages = (headline(data, name) for name in ("gdr", "nci", "dsi_clusters", "gdr_passages"))
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
            _row(f"{name} NCI", System((nci,), "NCI"), split, at_least=NCI_HITS.get((data, split), {}), at_most=budget),
            _row(f"{name} {CLUSTERS}", System((dsi,), CLUSTERS), split, at_most=budget),
            _gap(f"{name} GDR above NCI", System((gdr,), "GDR"), System((nci,), "NCI"), split, claimed=MEASURES),
            _gap(f"{name} GDR above {CLUSTERS}", System((gdr,), "GDR"), System((dsi,), CLUSTERS), split),
            _gap(
                f"{name} GDR above its bi-encoder", System((gdr,), "GDR"), System((DPR[data],), "DPR"), split,
                claimed=MEASURES,
            ),
            *(
                harness.Row(
                    name=f"{name} {title}, share scored",
                    config={"split": split, "what": "choice and share"},
                    measure=functools.partial(scored, run, split),
                    at_most={"share scored": 0.15, "lost": 0.01},
                    corpus=run.fingerprint,
                    seeds=(0,),
                    runs=[run],
                )
                for title, run in (("GDR", gdr), ("GDR, a vector a sentence", passages))
            ),
            harness.Row(
                name=f"{name} GDR, clusters of the nearest means",
                config={"split": split, "what": "nearest means, the same share"},
                measure=functools.partial(nearest, gdr, split),
                corpus=gdr.fingerprint,
                seeds=(0,),
                runs=[gdr],
            ),
            harness.Row(
                name=f"{name} GDR, the answer's cluster among the first",
                config={"split": split, "what": "first clusters", "first": list(FIRST)},
                measure=functools.partial(first_clusters, gdr, split),
                corpus=gdr.fingerprint,
                seeds=(0,),
                runs=[gdr],
            ),
        ]  # fmt: skip
    return table


# What is compared with GDR as it is: title → file of `gin_configs/ablations/`.
ABLATIONS = {
    "all of the cluster's negatives": "cluster_negatives",
    "BM25 negatives": "bm25_negatives",
    "random negatives": "random_negatives",
    "ANCE negatives": "ance_negatives",
    "no pseudo-queries": "no_pseudo_queries",
    "spans": "spans",
    "generated queries": "generated_queries",
    "generated queries and spans": "generated_and_spans",
}
GENERATED = ("generated queries", "generated queries and spans")
# With 800 clusters one holds 2.6 documents: of the sixteen from which a question's 8 negatives are drawn it gives a
# few, and chance the rest. Of 100 clusters it gives nearly all.
FEW = ("budget100", "Clusters.budget=100")
# GDR and NCI on other document encoders than the one that was trained.
ENCODERS = {"MiniLM untuned": "untuned_documents", "input embeddings": "input_embeddings"}


def _small_rows() -> list[harness.Row]:
    gdr = System(small("gdr"), "GDR")
    dsi = System(small("dsi_clusters"), CLUSTERS)
    nci = System(small("nci", seeds=ONE), "NCI")
    headless = System(small("nci", ablation="no_decoder_head", seeds=ONE), "NCI")
    dpr = System(tuple(bi_encoder(seed) for seed in SEEDS), "DPR")
    budget = {"at_most": {"core-minutes": SMALL}}
    table = []
    for split in ("test", "test_unseen"):
        name = f"{DATA} {split}, small"
        table += [
            _row(f"{name}, GDR", gdr, split, **budget),
            _row(f"{name}, NCI", nci, split, **budget),
            _row(f"{name}, NCI without its decoder head", headless, split, **budget),
            _row(f"{name}, {CLUSTERS}", dsi, split, **budget),
            _row(f"{name}, its bi-encoder", dpr, split, **budget),
            _gap(f"{name}, GDR above {CLUSTERS}", gdr, dsi, split),
            _gap(f"{name}, GDR above its bi-encoder", gdr, dpr, split),
        ]
        for title, ablation in ABLATIONS.items():
            written = doct5query.RUN if title in GENERATED else None
            other = System(small("gdr", ablation=ablation, queries=written), "GDR")
            table += [
                _row(f"{name}, {title}", other, split, **budget),
                _gap(f"{name}, above {title}", gdr, other, split),
            ]
        for title, ablation in ENCODERS.items():
            for system, own in (("gdr", gdr), ("dsi_clusters", dsi)):
                other = System(small(system, ablation=ablation, trained=False), own.name)
                table += [
                    _row(f"{name}, {own.name} on {title}", other, split, **budget),
                    _gap(f"{name}, {own.name} above {own.name} on {title}", own, other, split),
                ]
        few = System(small("gdr", *FEW, seeds=ONE), "GDR")
        table.append(_row(f"{name}, 100 clusters", few, split, **budget))
        for title in ("BM25 negatives", "random negatives"):
            ablation = ABLATIONS[title]
            other = System(small("gdr", f"{FEW[0]}_{ablation}", *FEW[1:], ablation=ablation, seeds=ONE), "GDR")
            table += [
                _row(f"{name}, 100 clusters, {title}", other, split, **budget),
                _gap(f"{name}, 100 clusters, above {title}", few, other, split),
            ]
        table.append(_row(f"{name}, GDR, five seeds", System(small("gdr", seeds=STABILITY), "GDR"), split))
    return table


def rows() -> list[harness.Row]:
    """The table, in the order in which it is measured."""
    return [*_headline_rows(), *_small_rows()]


if __name__ == "__main__":
    sys.exit(harness.main("gdr_quality", rows()))

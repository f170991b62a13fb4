"""Study `calibration` of `benchmarks.gr_vs_dr`: how sure a system is of its first document, and how often it is right.

p̂ is the softmax over the list that a system retrieves. Writers of whole docids have another one too, which needs no
list: the probability of the docid that was written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

import gr_jax
from benchmarks import (
    dense_quality,
    dgr,
    gdr_quality,
    generative_baselines,
    gr_vs_dr_codebook,
    harness,
    title_systems,
)
from benchmarks.recipe_runs import RecipeRun
from gr_jax import retrievers, storage
from gr_jax.corpus import Qrels, Run, read_beir
from gr_jax.evaluation import calibration, dot_plots, evaluate, plots, temperature

DATA, SPLIT = "nq_boolq_dev", "test"
QUESTIONS, DRAWS = 913, 2000
TITLES = ("GENRE*", "GENRE", "CGR", "CGR with copying", "Contra")
OWN = "index"  # a run's own index; the combination with another is made with the report
# Whose scores are logarithms of what a docid's probability is.
WRITERS = ("DSI", "DSI-QG", "DSI + DGR", "GR-codebook", "NCI")
Values = Mapping[str, float]


def systems() -> dict[str, tuple[RecipeRun, str]]:
    """Title → run, and where in it the index is."""
    dsi = RecipeRun("main_job", DATA, "dsi_centroids")
    taught = RecipeRun("main_job", DATA, "dgr_dsi", trained=dsi, teacher=dgr.teacher(DATA))
    expanded = RecipeRun("ngram", DATA, "bm25_doct5query")
    return {
        "BM25": (RecipeRun("ngram", DATA, "bm25"), OWN),
        "BM25 + docT5query": (expanded, OWN),
        "MiniLM": (dense_quality.ZERO_SHOT[DATA], OWN),
        "DPR": (dense_quality.DPR[DATA], OWN),
        "BM25 + DPR": (dense_quality.DPR[DATA], "hybrid/index"),
        "BM25 → cross-encoder": (dense_quality.CROSSED, OWN),
        "ColBERT": (dense_quality.small(DATA, "colbert")[0], OWN),
        "DSI": (dsi, OWN),
        "DSI-QG": (RecipeRun("main_job", DATA, "dsi_qg", trained=expanded), OWN),
        "DSI + DGR": (taught, OWN),
        "GR-codebook": (gr_vs_dr_codebook.runs(DATA)[0], OWN),
        "DSI on clusters": (gdr_quality.headline(DATA, "dsi_clusters"), OWN),
        **{name: (gdr_quality.headline(DATA, name.lower()), OWN) for name in ("GDR", "NCI")},
        **{name: (generative_baselines.trained(DATA, name), OWN) for name in ("SEAL", "MINDER")},
        **{name: (dgr.run_of(name, DATA), OWN) for name in ("LTRGR", "DGR")},
        **{name: (title_systems.run_of(DATA, title_systems.SYSTEMS[name]), OWN) for name in TITLES},
    }


def measured(run: RecipeRun, index: str, name: str) -> Values:
    """Brier score and calibration error on test, before and after the temperature of dev."""
    run.index() if index == OWN else run.make()  # a report would retrieve once more
    searcher, dataset = gr_jax.load(run.folder / index), read_beir(run.source)
    made = searcher.calibrate(dataset.split_queries("dev"), dataset.split("dev"), progress=True)
    asked, qrels = dataset.split_queries(SPLIT), dataset.split(SPLIT)
    found = retrievers.retrieve_run(searcher.retriever, asked, searcher.corpus, k=made.depth, progress=True)
    said = calibration.of_list(found, qrels, made.temperature).probability
    values = {
        "Success@1": evaluate(found, qrels, ["Success@1"])["Success@1"],
        **temperature.measured(found, qrels, made.temperature),
        **{f"{name}, by chance": value for name, value in by_chance(said).items()},
    }
    return {**values, **(of_docids(found, qrels) if name in WRITERS else {})}


def of_docids(found: Run, qrels: Qrels) -> Values:
    """The same of the probability of the docid."""
    said = calibration.of_log_probabilities(found, qrels)
    return {"Brier of docids": calibration.brier(said), "ECE of docids": calibration.reliability(said).error}


def by_chance(said: Float[np.ndarray, " questions"] | None = None) -> Values:
    """The calibration error of a system that is right as often as it says.

    Args:
      said: p̂ of each question; None: anything in 0..1. The surer p̂ is, the less chance shows.
    """
    random, errors = np.random.default_rng(0), []
    for _ in range(DRAWS):
        drawn = random.uniform(size=QUESTIONS) if said is None else said
        made = calibration.Confidences(drawn, random.uniform(size=len(drawn)) < drawn)
        errors.append(calibration.reliability(made).error)
    return {"ECE": float(np.mean(errors)), "ECE of one in twenty": float(np.quantile(errors, 0.95))}


def draw(current: Mapping[str, Values]) -> None:
    """The Brier score of each system before and after the temperature, of the rows that are recorded."""
    shown = {"Brier": "scores as they are", "Brier, calibrated": "after one temperature"}
    found = {row.name: current[row.name] for row in rows() if "temperature" in current.get(row.name, {})}
    best_first = sorted(found, key=lambda name: found[name]["Brier, calibrated"])
    prefix = f"calibration: {DATA} {SPLIT} "
    named = {name.removeprefix(prefix): {said: found[name][one] for one, said in shown.items()} for name in best_first}
    if named:
        figure = dot_plots.dots(named, title=f"Calibration, {DATA}, {SPLIT}", x="Brier score: 0 is best")
        storage.write_bytes(harness.RESULTS / "gr_vs_dr_calibration.svg", plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The study."""
    chance = harness.Row(
        name=f"calibration: by chance, {QUESTIONS} questions", config={"draws": DRAWS}, measure=by_chance, seeds=(0,)
    )
    return [chance] + [
        harness.Row(
            name=f"calibration: {DATA} {SPLIT} {name}",
            config={"split": SPLIT, "depth": temperature.DEPTH, "index": index},
            measure=functools.partial(measured, run, index, name),
            corpus=run.fingerprint,
            seeds=(0,),
            runs=[run],
        )
        for name, (run, index) in systems().items()
    ]

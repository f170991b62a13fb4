"""Negatives are looked for where a training will draw them: those rows are what mining every question gives."""

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest

from gr_jax.stages.contrastive import ContrastiveTraining, Draws
from gr_jax.stages.documents import corpus as corpus_of
from gr_jax.stages.graph import Place, Stage, in_order
from gr_jax.stages.negatives import Mining, mining_of, what_mining_took
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.stages.runner import Runner
from gr_jax.stages.sources import BeirFolder
from gr_jax.systems import DPR, DSI, GDR, BM25CrossEncoder, ColBERT, System
from gr_jax.systems.colbert import Interaction
from gr_jax.training.contrastive_batches import ContrastiveBatches
from gr_jax.training.negatives import Negatives
from tests.small_dsi import quiet
from tests.systems import small_pairs
from tests.systems.gdr import small_run

QUESTIONS = PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2})
MINING = Mining(shares={"bm25": 0.4, "model": 0.4, "random": 0.2}, kept=4, skip=1)


def training(batch_size: int = 4, **changes: Any) -> ContrastiveTraining:
    """A few steps of a few questions, of more than a hundred. Batches are of a size by which a training is known."""
    return ContrastiveTraining(**{
        "steps": 3, "batch_size": batch_size, "negatives": 2, "warmup_steps": 0, "evaluate_every": None,
        "dev_queries": None, "checkpoint_every": None, "held_out": 0.1, "seed": 3, "mesh": (1, 1), "keep_best": None,
        **changes,
    })  # fmt: skip


def dpr() -> DPR:
    return DPR(
        encoders=small_run.ENCODERS,
        pseudo_queries=QUESTIONS,
        mining=MINING,
        training=training(),
        query_training=training(8, rates={"query": 1.0}),
    )


def gdr() -> GDR:
    """With negatives that a search finds in all of its trainings."""
    mining = Mining(shares={"bm25": 0.5, "model": 0.25, "cluster": 0.25}, kept=4)
    learnt = {"encoder_training": training(), "training": training(6, steps=2), "joint": training(2)}
    mined = {"mining": mining, "encoder_mining": MINING}
    return GDR(**{**small_run.settings(), "pseudo_queries": QUESTIONS, **learnt, **mined})


def on_pairs(system: type[System], **settings: Any) -> System:
    common = {**small_pairs.COMMON, "pseudo_queries": QUESTIONS}
    return system(**common, training=training(rates={"query": 0.5, "pseudo": 0.5}), **settings)  # type: ignore[call-arg]


# What is trained, and by field of the system the stage of negatives that the training reads.
SYSTEMS = {
    "dpr": (dpr, dict.fromkeys(("training", "query_training"), "negatives")),
    "gdr": (gdr, {"encoder_training": "encoder_negatives", "training": "negatives", "joint": "negatives"}),
    "colbert": (lambda: on_pairs(ColBERT, interaction=Interaction(dimension=8)), {"training": "negatives"}),
    "cross_encoder": (lambda: on_pairs(BM25CrossEncoder), {"training": "negatives"}),
}


def stages_of(system: System, source: pathlib.Path) -> dict[str, Stage]:
    return {one.name: one for one in in_order(system.stages(corpus_of(BeirFolder(str(source)))))}


@pytest.mark.parametrize(
    "name",
    ["dpr", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cross_encoder", "gdr", "colbert"))],
)
def test_what_is_drawn_was_mined_as_if_every_question_was(name, beir, tmp_path, monkeypatch):
    """Rows are noted where batches are made, up to the last step; tables are compared with what the same stage finds
    without knowing what is drawn."""
    make, reads = SYSTEMS[name]
    system, drawn, batch = make(), {stage: set[int]() for stage in reads.values()}, ContrastiveBatches.batch
    of_size = {getattr(system, field).batch_size: field for field in reads}
    assert len(of_size) == len(reads)

    def noted(self: ContrastiveBatches, step: int, places: Any, rows: list[int]) -> Any:
        field = of_size[self.batch_size]
        if step < getattr(system, field).steps:  # more are laid out beforehand, and never used
            drawn[reads[field]] |= {row for row in rows if row >= 0}
        return batch(self, step, places, rows)

    monkeypatch.setattr(ContrastiveBatches, "batch", noted)
    system.run(beir, tmp_path / "run", until="index", say=quiet)
    runner, stages = Runner(tmp_path / "run"), stages_of(system, beir)
    assert {one.name for one in mining_of(stages["results"])} == {*drawn}
    for title, rows in drawn.items():
        stage, every = stages[title], Place(tmp_path / title, tmp_path / "work", {})
        every.folder.mkdir()
        inputs = {parameter: runner.folder(one) for parameter, one in stage.inputs.items()}
        stage.function.function(every, **inputs, **{**stage.settings, "draws": []})
        for kind in stage.settings["kinds"].kinds:
            found, expected = (
                np.array(Negatives.load(folder / kind).documents) for folder in (runner.folder(stage), every.folder)
            )
            np.testing.assert_array_equal(found[sorted(rows)], expected[sorted(rows)])
            there, given = (set(np.flatnonzero((one >= 0).any(axis=1)).tolist()) for one in (found, expected))
            assert there == (rows & given if kind in ("bm25", "model") else given)
            assert 2 * len(rows) < len(found) and 2 * len(given) > len(found)
    said = what_mining_took([runner.folder(stages[title]) for title in drawn])
    assert all(f"{len(rows)} of " in said for rows in drawn.values()) and said.count("minutes") == len(drawn)


def test_the_key_says_what_is_drawn_where_a_search_finds_negatives(beir):
    def key(system: DPR) -> str:
        return stages_of(system, beir)["negatives"].key

    first = dpr()
    assert key(first) == key(dataclasses.replace(first, training=training(learning_rate=1.0)))
    for changes in ({"steps": 5}, {"batch_size": 8}, {"rates": {"query": 1.0}}):
        assert key(first) != key(dataclasses.replace(first, training=training(**changes)))
    at_random = dataclasses.replace(first, mining=Mining(shares={"random": 1.0}))
    assert key(at_random) == key(dataclasses.replace(at_random, training=training(steps=9)))


def test_trainings_that_draw_alike_are_mined_for_once():
    one = Draws.of(training())
    assert one == Draws.of(training(learning_rate=1.0)) != Draws.of(training(seed=4))


def test_what_mines_nothing_says_nothing():
    assert mining_of(DSI().stages(corpus_of(BeirFolder("nowhere")))) == [] and what_mining_took([]) == ""

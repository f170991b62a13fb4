"""What 64 training questions teach: rows of `benchmarks.generative_baselines`.

Each system is trained on the first 64 training questions of `squad_dev` alone, among 256 documents, and is asked these
questions again. What cannot learn them by heart has a fault.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from benchmarks import harness, ngram_scoring
from benchmarks.docid_comparisons import WITHOUT_TREE
from benchmarks.recipe_runs import RecipeRun

GROUP, DATA, QUESTIONS = "ngram", "squad_dev", 64
Values = Mapping[str, float]

# As it is for other data, a writer is at .94 here after 200 updates, and its loss still falls.
_WRITER = (
    "NgramWriting.steps=500", "NgramWriting.evaluate_every=100", "NgramWriting.checkpoint_every=100",
    "NgramWriting.dropout=0.0", "NgramWriting.learning_rate=1e-3",
)  # fmt: skip
# Words that a document shares with the question stand in its neighbours too: of spans drawn by that alone, three
# questions of 64 find a neighbour first. So they are drawn from all of a document alike; MINDER has other views beside.
_UNIFORM = "NgramWriting.temperature=None"
# "1", "11" and "111" are naive docids: who writes them has to count. What alone tells how many equal tokens there were
# are the biases of relative positions, and at the rate of other parameters these hardly move. Then two questions of
# document 11 find document 1, after 400 updates too: the three get .83, .13 and .02.
_RATES = {
    "token_embedder": 0, "encoder/(position_embedder|token_type_embedder|embedding_layer_norm)": 0,
    "encoder/layers_[012]": 0, "encoder": 0.05, "decoder/logits_dense": 50, "decoder/relpos_bias": 50,
}  # fmt: skip
_ALSO = {"atomic": (), "naive": (f"Training.multipliers={_RATES}",)}
_GENERATOR = ("QueryGenerating.steps=60", "QueryGenerating.evaluate_every=60")


def _run(system: str, label: str = "", *flags: str) -> RecipeRun:
    before = ngram_scoring.BEFORE.get(system, ())
    return RecipeRun(GROUP, DATA, system, label, questions=QUESTIONS, flags=(*flags, *before))


# Name of the row → the run, and what its table calls the system.
SYSTEMS: Mapping[str, tuple[RecipeRun, str]] = {
    "SEAL": (_run("seal", "", *_WRITER, _UNIFORM), "SEAL"),
    "MINDER": (_run("minder", "", *_GENERATOR, *_WRITER), "MINDER"),
    "DSI-QG": (_run("dsi_qg", "", *_GENERATOR, "Training.steps=200"), "DSI-QG"),
    "DSI, semantic docids": (_run("dsi_centroids", "semantic"), "DSI"),
    **{
        f"DSI, {kind} docids": (_run("dsi_scratch", kind, *flags, "Training.steps=200", *_ALSO[kind]), "DSI")
        for kind, flags in WITHOUT_TREE.items()
    },
}


def learned(run: RecipeRun, name: str) -> Values:
    """What it answers to the questions that it was trained on."""
    run.make()
    return dict(run.evaluation("test", name))


def rows() -> list[harness.Row]:
    """A row for each system."""
    return [
        harness.Row(
            name=f"{QUESTIONS} training questions, {title}",
            config={"questions": QUESTIONS, "system": name},
            measure=functools.partial(learned, run, name),
            at_least={"Success@1": 1.0},
            corpus=run.fingerprint,
            seeds=(0,),
            runs=[run],
        )
        for title, (run, name) in SYSTEMS.items()
    ]

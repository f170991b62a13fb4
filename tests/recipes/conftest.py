"""The smallest recipe there is, and a folder of documents for it."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pathlib
from typing import Any

import pytest

from gr_jax import recipes
from gr_jax.retrievers import Searcher
from tests import small_data

COUNT = 24


def network(**changes: Any) -> recipes.Network:
    sizes = {"width": 16, "heads": 2, "mlp_width": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
    return recipes.Network(**{"encoder": "t5", "vocabulary": "byte", "outputs": "random", **sizes, **changes})


def training(**changes: Any) -> recipes.Training:
    return recipes.Training(
        **{
            "steps": 4, "warmup_steps": 0, "batch_size": 8, "checkpoint_every": 2, "keep_best": "", "evaluate_every": 0,
            "dev_queries": 0, "seed": 0, "mesh": (1, 1), **changes,
        }
    )  # fmt: skip


def settings(**changes: Any) -> dict[str, Any]:
    """Arguments of `recipes.dsi` besides the folders."""
    chosen = {
        "vectors": recipes.Vectors(encoder="lsa"),
        "identifiers": recipes.Identifiers(branching=4, leaf_capacity=4, tokens="position"),
        "pseudo_queries": recipes.PseudoQueries(kinds={"title": 1, "sentence": 1}),
        "network": network(),
        "training": training(),
        "decoding": recipes.Decoding(beams=10),
        "say": lambda line: None,
    }
    return chosen | changes


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> pathlib.Path:
    """A folder of 24 documents, with queries of every split."""
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "mine", count=COUNT)


@dataclasses.dataclass(frozen=True)
class Memorised:
    """A finished recipe: its documents, MODEL_DIR, settings, and what it returned."""

    corpus: pathlib.Path
    model_dir: pathlib.Path
    settings: dict[str, Any]
    searcher: Searcher


@pytest.fixture(scope="session")
def memorised(tmp_path_factory) -> Memorised:
    """64 documents, learnt by heart, with every stage of the recipe. One worker trains; for the others all is made."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "memorised"
    folder = root / "mine"
    chosen = settings(
        identifiers=recipes.Identifiers(branching=8, leaf_capacity=8, tokens="position"),
        network=network(width=48, heads=4, mlp_width=96, dropout=0.0),
        training=training(
            steps=150, batch_size=24, learning_rate=3e-3, warmup_steps=10, rates={"query": 1.0}, checkpoint_every=0,
            keep_best="dev/RR@10", evaluate_every=0, dev_queries=8,
        ),
    )  # fmt: skip
    root.mkdir(exist_ok=True)
    with open(root / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            small_data.write_beir(folder, count=64)
        searcher = recipes.dsi(folder, root / "runs" / "mine", **chosen)
    return Memorised(folder, root / "runs" / "mine", chosen, searcher)

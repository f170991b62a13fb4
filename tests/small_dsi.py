"""The smallest DSI there is, one that knows its documents by heart, and what a run says."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from gr_jax import systems
from gr_jax.retrievers import Searcher
from tests import shared, small_data

COUNT = 24


class Said(list):
    """Lines that a run says, sorted by what they are about."""

    def made(self) -> list[str]:
        return [line.split(":")[0][2:] for line in self if line.startswith("✓") and "already made" not in line]

    def why(self, stage: str) -> str:
        return next(line for line in self if line.startswith(f"! {stage}: "))


def quiet(line: str) -> None:
    """Says nothing."""


def network(**changes: Any) -> systems.Network:
    sizes = {"width": 16, "heads": 2, "mlp_width": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
    return systems.Network(**{"encoder": "t5", "vocabulary": "byte", "outputs": "random", **sizes, **changes})


def training(**changes: Any) -> systems.Training:
    return systems.Training(
        **{
            "steps": 4, "warmup_steps": 0, "batch_size": 8, "checkpoint_every": 2, "keep_best": None,
            "evaluate_every": None, "dev_queries": None, "seed": 0, "mesh": (1, 1), **changes,
        }
    )  # fmt: skip


def dsi(**changes: Any) -> systems.DSI:
    """With 24 documents; changes are of its fields."""
    chosen = {
        "vectors": systems.Vectors(encoder="lsa"),
        "identifiers": systems.Identifiers(branching=4, leaf_capacity=4, tokens="position"),
        "pseudo_queries": systems.PseudoQueries(kinds={"title": 1, "sentence": 1}),
        "network": network(),
        "training": training(),
        "decoding": systems.Decoding(beams=10),
    }
    return systems.DSI(**(chosen | changes))


@dataclasses.dataclass(frozen=True)
class Memorised:
    """A finished run: its documents, MODEL_DIR and system, and what it returned."""

    corpus: pathlib.Path
    model_dir: pathlib.Path
    system: systems.DSI
    searcher: Searcher


def memorise(tmp_path_factory: pytest.TempPathFactory) -> Memorised:
    """64 documents, learnt by heart, with every stage. One worker trains; for the others all is made."""
    system = dsi(
        identifiers=systems.Identifiers(branching=8, leaf_capacity=8, tokens="position"),
        network=network(width=48, heads=4, mlp_width=96, dropout=0.0),
        training=training(
            steps=150, batch_size=24, learning_rate=3e-3, warmup_steps=10, rates={"query": 1.0}, checkpoint_every=None,
            keep_best="dev/RR@10", dev_queries=8,
        ),
    )  # fmt: skip
    with shared.folder(tmp_path_factory, "memorised") as root:
        folder = root / "mine"
        if not folder.exists():
            small_data.write_beir(folder, count=64)
        searcher = system.run(folder, root / "runs" / "mine", say=quiet)
    assert searcher is not None
    return Memorised(folder, root / "runs" / "mine", system, searcher)

"""The smallest recipe there is, and a folder of documents for it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from gr_jax import recipes
from tests import small_data

COUNT = 24


def network(**changes: Any) -> recipes.Network:
    sizes = {"width": 16, "heads": 2, "mlp_width": 16, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.1}
    return recipes.Network(**{"encoder": "t5", "vocabulary": "byte", "outputs": "random", **sizes, **changes})


def training(**changes: Any) -> recipes.Training:
    return recipes.Training(
        **{
            "steps": 4, "warmup_steps": 0, "batch_size": 8, "checkpoint_every": 2, "keep_best": "", "evaluate_every": 0,
            "dev_queries": 0, "seed": 0, **changes,
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

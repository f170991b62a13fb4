"""A run of a small DSI whose codebooks were fitted together; one worker makes it, for the others all is made."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from benchmarks.recipe_runs import RecipeRun
from gr_jax import systems
from tests import shared, small_data, small_dsi

COUNT, BOOKS, BITS, TEMPERATURE, WIDTH = 24, 2, 2, 0.5, 128


@dataclasses.dataclass(frozen=True)
class SmallRun(RecipeRun):
    """A run that is made already."""

    root: str = ""

    @property
    def folder(self) -> pathlib.Path:
        return pathlib.Path(self.root) / "run"

    @property
    def source(self) -> pathlib.Path:
        return pathlib.Path(self.root) / "beir"

    def train(self) -> None:
        pass

    def index(self) -> None:
        pass


def of_codebooks(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Its table starts from the codewords, and its network is as wide as they are."""
    system = small_dsi.dsi(
        identifiers=systems.Identifiers(
            scheme="residual_quantization", codebooks=BOOKS, bits=BITS, refits=3, duplicates="reserved"
        ),
        network=small_dsi.network(outputs="centroid", temperature=TEMPERATURE, width=WIDTH),
    )
    with shared.folder(tmp_path_factory, "codebooks") as root:
        if not (root / "beir").exists():
            small_data.write_beir(root / "beir", count=COUNT)
        system.run(root / "beir", root / "run", shared_dir=root / "shared", say=small_dsi.quiet)
    return SmallRun("", "", "", root=str(root))

"""Settings with which what is trained on pairs trains in seconds, and how each such system is interrupted."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from gr_jax.stages import training as training_lib
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.systems import System

ENCODERS = Encoders(
    encoder="t5", vocabulary="byte", width=16, layers=1, heads=2, mlp_width=24, query_length=32, document_length=48
)
COMMON: dict[str, Any] = {
    "encoders": ENCODERS,
    "pseudo_queries": PseudoQueries(kinds={"title": 1}),
    "mining": Mining(shares={"bm25": 0.5, "random": 0.5}, kept=4),
}


def training(**changes: Any) -> ContrastiveTraining:
    """A short training that looks at dev at its beginning, after four steps, and so on."""
    return ContrastiveTraining(
        **{
            "steps": 4, "batch_size": 8, "negatives": 2, "warmup_steps": 0, "learning_rate": 1e-3, "evaluate_every": 4,
            "dev_queries": 8, "dev_documents": 16, "checkpoint_every": 4, "mesh": (1, 1), **changes,
        }
    )  # fmt: skip


def check_interrupted(
    system: System, folder: pathlib.Path, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at its third look at dev, behind the last checkpoint, a training of eight steps ends with the bits of
    one that never was."""

    def run(name: str) -> list[bytes]:
        system.run(folder, root / name, shared_dir=root / "shared", until="model", say=lambda line: None)
        return [file.read_bytes() for file in sorted((root / name / "model").rglob("*.safetensors"))]

    whole, judged, judge = run("whole"), list[int](), training_lib.DevEvaluation.__call__

    def interrupted(self: training_lib.DevEvaluation, params: Any, step: int) -> dict[str, float]:
        judged.append(step)
        if judged == [0, 4, 8]:
            raise KeyboardInterrupt
        return judge(self, params, step)

    monkeypatch.setattr(training_lib.DevEvaluation, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("cut")
    assert run("cut") == whole and whole and judged == [0, 4, 8, 8]

"""Settings with which what is trained on pairs trains in seconds, and how each such system is interrupted."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from gr_jax.models import BertConfig
from gr_jax.stages import contrastive
from gr_jax.stages import training as training_lib
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.systems import System
from gr_jax.training.optimizers import adamw
from gr_jax.training.train_state import flatten

ENCODERS = Encoders(
    encoder="t5", vocabulary="byte", width=16, layers=1, heads=2, mlp_width=24, query_length=32, document_length=48
)
COMMON: dict[str, Any] = {
    "encoders": ENCODERS,
    "pseudo_queries": PseudoQueries(kinds={"title": 1}),
    "mining": Mining(shares={"bm25": 0.5, "random": 0.5}, kept=4),
}


FOUR_LAYERS = BertConfig(vocab_size=30, emb_dim=8, num_heads=2, num_encoder_layers=4, mlp_dim=8, max_positions=32)


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


def check_multipliers(module: nn.Module, faster: Mapping[str, float]) -> None:
    """The lower half of a pretrained BERT of `FOUR_LAYERS` stands still, and what is new beside it moves faster.

    Args:
      module: a network around it.
      faster: multipliers of what is new.
    """
    tokens = np.ones((1, 4), np.int32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]
    found = contrastive.learning_rate_multipliers(shapes, shapes, faster)
    factors = adamw(1e-3, multipliers=found).factors(flatten(shapes))
    still = {path for path, factor in factors.items() if not factor}
    assert {path.split("/")[1] for path in still if path.startswith("encoder")} == {
        "position_embedder", "token_type_embedder", "embedding_layer_norm", "layers_0", "layers_1",
    }  # fmt: skip
    assert "token_embedder/embedding" in still
    new = {path.split("/")[0] for path, factor in factors.items() if factor > 1}
    assert new == set(shapes) - {"token_embedder", "encoder"} == set(faster)
    assert contrastive.learning_rate_multipliers(shapes, None, faster) == {}

"""The smallest runs of GDR and NCI there are."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from gr_jax import storage
from gr_jax.stages.clusters import Clusters
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.negatives import Mining
from gr_jax.stages.pseudo_queries import PseudoQueries
from gr_jax.systems.gdr import ClusterSearch, Matching
from tests.small_dsi import Said, network

ENCODERS = Encoders(
    encoder="t5", vocabulary="byte", width=16, heads=2, mlp_width=16, layers=1, query_length=24, document_length=32
)


def training(**changes: Any) -> ContrastiveTraining:
    chosen = {
        "steps": 4, "batch_size": 8, "negatives": 2, "warmup_steps": 0, "learning_rate": 1e-2, "evaluate_every": 2,
        "dev_queries": 8, "checkpoint_every": 2, "seed": 1,
    }  # fmt: skip
    return ContrastiveTraining(**(chosen | changes))


def settings(**changes: Any) -> dict[str, Any]:
    """Of `GDR`: both trainings, a vector a sentence, small enough for a test."""
    chosen = {
        "encoders": ENCODERS,
        "encoder_training": training(steps=2, document_length=12),
        "encoder_mining": Mining(shares={"bm25": 1.0}, kept=2),
        "pseudo_queries": PseudoQueries(kinds={"title": 1, "sentence": 1}),
        "clusters": Clusters(budget=6),
        "network": network(outputs="centroid", query_residual=True),
        "matching": Matching(alpha=2.0),
        "mining": Mining(shares={"cluster": 0.5, "model": 0.5, "random": 0.0}, kept=4),
        "training": training(document_length=12),
        "joint": training(steps=2, keep_best=None, dev_documents=20, document_length=12),
        "search": ClusterSearch(beams=6, betas=(0.1, 0.0), chosen=(1, 3, 6), most_share=1.0),
        "most_sentences": 2,
    }
    return chosen | changes


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run, and what it said."""

    source: pathlib.Path
    model_dir: pathlib.Path
    searcher: Any
    said: Said

    @property
    def shared(self) -> pathlib.Path:
        return self.model_dir.parent / "shared"

    def read_by(self, stage: str, name: str, kind: str) -> pathlib.Path:
        """The shared folder that a stage of this run read under this name."""
        return self.shared / f"{kind}-{storage.read_folder(self.model_dir / stage).meta['inputs'][name]}"

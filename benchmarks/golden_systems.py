"""The systems of `benchmarks.golden`, and how each is run: before the middle of the library was rebuilt, and since.

A row's settings are written once, under the old command's names. The new one takes the same under those of `renamed`.
Networks are from scratch and tiny, but for three of MiniLM. Trainings have a few steps, with several
checkpoints and looks at dev on the way.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

# What the old side has where the new one has None: off.
OFF: Mapping[str, Any] = {"keep_best": "", "held_out": 0.0, "rdrop": 0.0, "within": 0, "refresh_every": 0}
# What commands have in place of paths.
CORPUS, MODEL_DIR, OUTPUT = "{corpus}", "{model_dir}", "{output}"
SIDES = ("old", "new")


@dataclasses.dataclass(frozen=True)
class System:
    """One system with small settings.

    Attributes:
      name: of the row, and of its folder.
      old, new: gin files of either side, under `gin_configs/`, without their ending.
      settings: gin bindings, by the old side's names, with the new one's values: see `OFF`.
      renamed: beginnings of names → what the new side has instead.
      only_old, only_new: bindings of one side alone; they replace those of the same name.
      after: systems whose folders this one reads.
      trains: whether there is a training that can be killed.
    """

    name: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    only_old: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only_new: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    after: tuple[str, ...] = ()
    trains: bool = True

    def arguments(self, side: str) -> list[str]:
        """Of `python -m launch.recipe`; paths are `CORPUS`, `MODEL_DIR` and `OUTPUT`, the folder of all systems."""
        files = self.old if side == "old" else self.new
        if side == "old":
            bindings = {**{name: _old_value(name, value) for name, value in self.settings.items()}, **self.only_old}
        else:
            bindings = {**{self._new_name(name): value for name, value in self.settings.items()}, **self.only_new}
        bindings = {"CORPUS": CORPUS, "MODEL_DIR": MODEL_DIR, **bindings}
        return [
            *(f"--gin_file=gin_configs/{file}.gin" for file in files),
            *(f"--gin.{name}={value!r}" for name, value in bindings.items()),
        ]

    def _new_name(self, name: str) -> str:
        for beginning in sorted(self.renamed, key=len, reverse=True):
            if name.startswith(beginning):
                return self.renamed[beginning] + name[len(beginning) :]
        return name

    def digest(self) -> str:
        """Of both commands: another command is another comparison."""
        return hashlib.sha256(json.dumps([self.arguments(side) for side in SIDES]).encode()).hexdigest()[:16]


def _old_value(name: str, value: Any) -> Any:
    return OFF[name.rpartition(".")[2]] if value is None else value


def _bound(prefix: str, **settings: Any) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in settings.items()}


# Networks.
_SIZES = {"width": 32, "heads": 2, "mlp_width": 48}
_BYTES = {"encoder": "t5", "vocabulary": "byte"}
_PIECES = {"encoder": "t5", "vocabulary": "sentencepiece", "vocabulary_size": 500}
_LENGTHS = {"query_length": 32, "document_length": 64}
_MINILM_LENGTHS = _bound("Encoders", query_length=32, document_length=64)
_MINILM_STEPS: Mapping[str, Any] = {
    "steps": 6,
    "batch_size": 4,
    "negatives": 1,
    "evaluate_every": 3,
}


def _encoders(**changes: Any) -> dict[str, Any]:
    return _bound("Encoders", **{**_BYTES, **_SIZES, "layers": 1, **_LENGTHS, **changes})


def _network(**changes: Any) -> dict[str, Any]:
    sizes = {**_BYTES, **_SIZES, "encoder_layers": 1, "decoder_layers": 1, "outputs": "random"}
    return _bound("Network", **{**sizes, **changes})


# Trainings. Whatever is bound of one is bound of all: what is inherited from a name without a scope is never tried.
def _contrastive(scope: str = "", **changes: Any) -> dict[str, Any]:
    chosen = {
        "steps": 12, "batch_size": 8, "negatives": 2, "document_length": 48, "learning_rate": 3e-3, "warmup_steps": 2,
        "evaluate_every": 4, "checkpoint_every": 2, "dev_queries": 32, "dev_documents": 120, "held_out": 0.05,
        "seed": 3,
    }  # fmt: skip
    return _bound(f"{scope}ContrastiveTraining", **{**chosen, **changes})


def _writing(**changes: Any) -> dict[str, Any]:
    chosen = {
        "steps": 12, "batch_size": 8, "learning_rate": 3e-3, "warmup_steps": 2, "evaluate_every": 4,
        "checkpoint_every": 2, "dev_queries": 32, "rates": {"query": 0.6, "document": 0.1, "pseudo": 0.3},
        "seed": 3,
    }  # fmt: skip
    return _bound("Training", **{**chosen, **changes})


def _mining(scope: str = "", **changes: Any) -> dict[str, Any]:
    return _bound(f"{scope}Mining", **{"kept": 6, **changes})


_PSEUDO = {"PseudoQueries.kinds": {"title": 1, "sentence": 1, "cloze": 1}}
# Bytes are cut at a length that all queries have: each length is compiled.
_BEAMS = {"Decoding.beams": 20, "Decoding.max_query_length": 32}
_LSA = {"Vectors.encoder": "lsa"}
_TREE = {"Identifiers.branching": 6, "Identifiers.leaf_capacity": 8}
_CLUSTERS = {
    "Clusters.budget": 24,
    **_bound("ClusterSearch", beams=16, max_query_length=32, betas=[0.0, 0.1, 0.5], chosen=[2, 4, 8], most_share=0.5),
}
_EXPANSION = {
    **_bound(
        "QueryGenerating", **_BYTES, **_SIZES, encoder_layers=1, decoder_layers=1, words=64, document_tokens=64,
        query_tokens=32, row_targets=64, steps=12, warmup_steps=2, batch_size=8, learning_rate=3e-3, evaluate_every=4,
        checkpoint_every=2, seed=3,
    ),
    **_bound("GeneratedQueries", samples=4, top_k=8, within=None, most=3),
}  # fmt: skip

# What the new side calls them: a setting is bound in the scope of the system's field that takes it.
_OF_DSI = {"Training": "training/Training"}
_ONE_TRAINING = {"ContrastiveTraining": "training/ContrastiveTraining", "Mining": "mining/Mining"}
_OF_DPR = {
    **_ONE_TRAINING,
    "query_side/ContrastiveTraining": "query_training/ContrastiveTraining",
    "dpr.": "DPR.",
}
_OF_GDR = {
    **_ONE_TRAINING,
    "document_encoder/ContrastiveTraining": "encoder_training/ContrastiveTraining",
    "document_encoder/Mining": "encoder_mining/Mining",
    "gdr.": "GDR.",
}
_OF_NCI = {**_OF_GDR, **_OF_DSI, "nci.": "DSIClusters."}
# No second training, of queries alone.
_ONE_SIDED: Mapping[str, Any] = {
    "only_old": {"query_side/ContrastiveTraining.steps": 0},
    "only_new": {"DPR.query_training": None},
}


def _dsi(name: str, settings: Mapping[str, Any], *files: str) -> System:
    return System(name, ("recipes/dsi", *files), ("systems/dsi", *files), settings=settings, renamed=_OF_DSI)


def _gdr(name: str, settings: Mapping[str, Any], **changes: Any) -> System:
    """From scratch: a document encoder, then the network that reads queries and writes clusters."""
    chosen = {
        **_PSEUDO, **_CLUSTERS, **_encoders(), **_network(outputs="centroid"),
        **_contrastive("document_encoder/"), **_mining("document_encoder/", shares={"bm25": 0.5, "model": 0.5}),
        **_contrastive(), **_mining(shares={"cluster": 0.5, "model": 0.5}), **settings,
    }  # fmt: skip
    return System(name, ("recipes/gdr",), ("systems/gdr",), settings=chosen, renamed=_OF_GDR, **changes)


def _nci(name: str, settings: Mapping[str, Any]) -> System:
    chosen = {
        **_PSEUDO, **_BEAMS, "Clusters.budget": 24, **_encoders(), **_network(outputs="centroid"),
        **_contrastive("document_encoder/"), **_mining("document_encoder/", shares={"bm25": 0.5, "model": 0.5}),
        **_writing(rdrop=None), **settings,
    }  # fmt: skip
    return System(name, ("recipes/nci",), ("systems/dsi_clusters",), settings=chosen, renamed=_OF_NCI)


SYSTEMS: tuple[System, ...] = (
    System("bm25", ("recipes/bm25",), ("systems/bm25",), settings={"Lexical.k1": 1.2, "Lexical.b": 0.75}, trains=False),
    # MiniLM reads, and gives the documents' vectors.
    _dsi(
        "dsi_centroids",
        {
            **_PSEUDO,
            **_BEAMS,
            **_TREE,
            "Vectors.max_length": 64,
            "Vectors.encoder": "minilm",
            **_writing(steps=6, batch_size=4, evaluate_every=3),
        },
    ),
    _dsi(
        "dsi_codes",
        {
            **_PSEUDO,
            **_BEAMS,
            **_LSA,
            **_bound("Identifiers", codebooks=3, bits=4),
            **_network(width=128, outputs="centroid"),
            **_writing(),
        },
        "docids/residual_quantization",
    ),
    _dsi(
        "dsi_scratch",
        {
            **_PSEUDO,
            "Decoding.beams": 20,
            **_TREE,
            **_LSA,
            **_network(**_PIECES, width=64, encoder_layers=2),
            **_writing(optimizer="adafactor", microbatches=2),
        },
        "models/tiny",
    ),
    _dsi(
        "dsi_titles",
        {
            **_PSEUDO,
            "Decoding.beams": 20,
            **_LSA,
            **_network(**_PIECES),
            **_writing(row_targets=16),
            "Identifiers.title_tokens": 12,
        },
        "docids/titles",
    ),
    _dsi(
        "dsi_passages",
        {
            **_PSEUDO,
            **_BEAMS,
            **_TREE,
            "Identifiers.tokens": "position",
            **_network(),
            **_bound("Vectors", encoder="lsa", passages="sentences", most_sentences=3),
            **_writing(patience=2, label_smoothing=0.1),
        },
    ),
    # MiniLM, both sides, then queries alone; beside it the combination with BM25.
    System(
        "dpr",
        ("recipes/dpr",),
        ("systems/dpr",),
        settings={
            **_PSEUDO,
            **_MINILM_LENGTHS,
            **_mining(shares={"model": 0.5, "bm25": 0.5}),
            **_contrastive(**_MINILM_STEPS),
            **_contrastive("query_side/", negatives=4),
        },
        renamed=_OF_DPR,
    ),
    System(
        "dpr_passages",
        ("recipes/dpr_passages",),
        ("systems/dpr_passages",),
        settings={
            **_PSEUDO,
            **_LSA,
            **_encoders(shared=False),
            **_mining(shares={"cluster": 0.5, "model": 0.5}),
            **_contrastive(),
            **_contrastive("query_side/", negatives=4),
            "Search.most_sentences": 3,
        },
        renamed=_OF_DPR,
    ),
    System(
        "dpr_in_batch",
        ("recipes/dpr_in_batch",),
        ("systems/dpr_in_batch",),
        settings={
            **_PSEUDO,
            **_encoders(**_PIECES, projection=16, similarity="dot"),
            **_mining(shares={"random": 1.0}),
            **_contrastive(negatives=0, chunks=2, held_out=None, keep_best="dev/RR@10"),
            "dpr.name": "DPR in-batch",
        },
        renamed=_OF_DPR,
        **_ONE_SIDED,
    ),
    # Negatives of step 3 are used from step 6 on, those of step 6 from step 9 on.
    System(
        "ance",
        ("recipes/ance",),
        ("systems/ance",),
        settings={
            **_PSEUDO,
            **_encoders(),
            **_contrastive(evaluate_every=3),
            **_mining(shares={"ance": 0.5, "model": 0.25, "bm25": 0.25}, refresh_every=3),
        },
        renamed=_OF_DPR,
        **_ONE_SIDED,
    ),
    System(
        "colbert",
        ("recipes/colbert",),
        ("systems/colbert",),
        settings={
            **_PSEUDO,
            **_encoders(),
            **_mining(shares={"bm25": 1.0}),
            **_contrastive(keep_best="dev/RR@10"),
            **_bound("Interaction", dimension=8, precision="int8", augmentation=4, markers=True),
        },
        renamed=_ONE_TRAINING,
    ),
    System(
        "bm25_cross_encoder",
        ("recipes/bm25_cross_encoder",),
        ("systems/bm25_cross_encoder",),
        settings={
            **_PSEUDO,
            **_encoders(),
            **_mining(shares={"bm25": 1.0}),
            "Crossing.depth": 8,
            **_contrastive(rates={"query": 1.0}, keep_best="dev/RR@10", dev_documents=60),
        },
        renamed=_ONE_TRAINING,
    ),
    System("bm25_doct5query", ("recipes/bm25_doct5query",), ("systems/bm25_doct5query",), settings=_EXPANSION),
    # MiniLM reads queries and documents.
    System(
        "gdr",
        ("recipes/gdr",),
        ("systems/gdr",),
        settings={
            **_PSEUDO,
            **_CLUSTERS,
            **_MINILM_LENGTHS,
            **_contrastive("document_encoder/", **_MINILM_STEPS),
            **_mining("document_encoder/", shares={"bm25": 0.5, "model": 0.5}),
            **_contrastive(),
            **_mining(shares={"cluster": 1.0, "random": 0.0}),
        },
        renamed=_OF_GDR,
    ),
    _gdr(
        "gdr_joint",
        {**_contrastive("joint/", steps=6, evaluate_every=3), **_bound("Matching", rdrop=0.15, alpha=2.0)},
    ),
    _gdr("gdr_passages", {**_contrastive(), "gdr.most_sentences": 3}),
    _gdr(
        "gdr_ance",
        {
            **_contrastive(evaluate_every=3),
            **_mining(shares={"ance": 0.5, "model": 0.0, "cluster": 0.5}, refresh_every=3),
            "document_encoder/Mining.refresh_every": None,
        },
    ),
    # The document encoder is that of another system, and a third one generated the pseudo-queries.
    _gdr(
        "gdr_taken",
        {
            **_encoders(shared=False),
            "gdr.trained": f"{OUTPUT}/dpr_passages/run",
            "PseudoQueries.kinds": {"generated": 2, "title": 1},
            "PseudoQueries.generated": f"{OUTPUT}/bm25_doct5query/run/generated/pseudo_queries",
        },
        after=("dpr_passages", "bm25_doct5query"),
    ),
    _nci("nci", {}),
    _nci("nci_pawa", {**_writing(rdrop=0.15), "Network.pawa_layers": 1, "Clusters.tokens": "position"}),
)

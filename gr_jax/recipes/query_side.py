"""A second training of a bi-encoder, of its side of queries alone, against the vectors of its documents.

The vectors are there anyway, for the index, and stay as they are. A step reads queries only, so that batches can be
large and a query has many negatives: it costs a fraction of one that encodes documents.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gr_jax import dense, models, storage
from gr_jax.errors import InputError
from gr_jax.recipes import bindings, documents, encoders, mining, pair_training
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Mining
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.training.vector_batches import VectorBatches

NAME = "query_model"


def query_stage(
    corpus: Stage,
    model: Stage,
    embeddings: Stage,
    learning: Sequence[Stage],
    settings: Encoders,
    mined: Mining,
    before: ContrastiveTraining,
    training: ContrastiveTraining,
) -> Stage:
    """Goes on with the side of queries. Interrupted, it goes on from its latest checkpoint with the same result.

    Args:
      corpus: its stage.
      model, embeddings: what was trained, and its vectors of the documents.
      learning: pseudo-queries, pairs and negatives, as of the training before.
      settings, mined, before: the encoders, and settings of that training.
      training: settings of this one.

    Raises:
      InputError: it is to hold out other queries than the training before.
    """
    for name in ("held_out", "seed"):
        if getattr(training, name) != getattr(before, name):
            raise InputError(
                f"{name} of the second training differs from the first's, whose queries it reads",
                f"Set both to {getattr(before, name)}.",
                value=getattr(training, name),
            )

    def make(place: Workplace) -> None:
        earlier, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        encoder = _separate(DenseEncoder.load(place.inputs["model"] / "encoder"))
        vectors = _of_documents(place)
        queries, texts = mining.load_pairs(place.inputs["pairs"])
        known = mining.load_negatives(place.inputs["negatives"], mined)
        table = mining.first_table(known, mined, queries, len(texts))
        longest = int(texts.inputs.lengths.max(initial=1))
        batches = pair_training.make_batches(
            queries, texts, table, training, encoder.lengths["query"], longest, document_tokens=False
        )
        evaluate = None
        judged = pair_training.judged_queries(place, dataset, training)
        if judged is not None:
            evaluate = pair_training.evaluation(_Fixed(encoder, vectors), dataset, judged, training)
        multipliers = training.multipliers
        if multipliers is None:
            scratch = settings.encoder == "t5"
            multipliers = encoders.learning_rate_multipliers(
                encoder.config, None if scratch else encoder.params["query"]
            )
        # The other side's parameters are not in it, so nothing can move them.
        alone = dataclasses.replace(encoder.config, shared=True, document_encoder=None, document_pooling=None)
        model = pair_training.bi_encoder_model(alone, training)
        first = {"query": encoder.params["query"]}
        found = pair_training.run(
            place, model, first, VectorBatches(batches, vectors), training, multipliers, evaluate
        ).params  # fmt: skip
        encoder.with_parameters({**encoder.params, "query": found["query"]}).save(place.folder / "encoder")
        pair_training.finish(place, earlier, started)

    config: dict[str, Any] = {"training": training.as_config(), "mining": {"shares": dict(mined.shares)}}
    if training.multipliers is None:  # another default is another training
        config["training"]["multipliers"] = encoders.DEFAULT_MULTIPLIERS
    config |= bindings.of_training(models.BiEncoderConfig, models.BiEncoderModel)
    return Stage(NAME, config, (corpus, *learning, model, embeddings), make)


def last_stage(run: pathlib.Path) -> str:
    """The stage of a run of `dpr` that has its encoder; a folder that a run with other settings left behind has not."""
    if not (run / NAME / "manifest.json").is_file():
        return "model"
    built = run / "index"
    if (built / "manifest.json").is_file():
        return NAME if NAME in storage.read_folder(built, verify=False).meta.get("inputs", {}) else "model"
    own = storage.read_folder(run / NAME, verify=False).meta["inputs"]["model"]
    return NAME if own == storage.read_folder(run / "model", verify=False).made_from else "model"


def _of_documents(place: Workplace) -> np.ndarray:
    """Of each document the vector of all of it, which comes before those of its sentences."""
    folder = place.inputs["embeddings"]
    owner = storage.load_array(folder / "owner.npy")
    return np.asarray(models.load_embeddings(folder / "embeddings"))[np.unique(owner, return_index=True)[1]]


def _separate(encoder: DenseEncoder) -> DenseEncoder:
    """The same encoder with a tower for each side."""
    config = encoder.config
    params = {side: encoder.params[config.scope(side)] for side in ("query", "document")}
    return DenseEncoder(
        dataclasses.replace(config, shared=False),
        params,
        encoder.vocabulary,
        query_length=encoder.lengths["query"],
        document_length=encoder.lengths["document"],
        query_prefix=encoder.prefixes["query"],
        document_prefix=encoder.prefixes["document"],
        transform=encoder.transform,
    )


class _Fixed:
    """Dense retrieval with any parameters of the side of queries: the documents' vectors stay."""

    def __init__(self, encoder: DenseEncoder, vectors: np.ndarray):
        self._encoder, self._searcher = encoder, dense.make_searcher("exact", vectors)

    def with_parameters(self, params: Any) -> DenseRetriever:
        """A retriever around these parameters."""
        both = {"query": params["query"], "document": self._encoder.params["document"]}
        return DenseRetriever(self._encoder.with_parameters(both), self._searcher)

"""The encoder that documents are clustered and matched by, trained as a dense retriever or as it is; its vectors."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from gr_jax import models, storage
from gr_jax.errors import InputError
from gr_jax.models import corpus_encoding
from gr_jax.recipes import contrastive, documents, examples, mining, query_side
from gr_jax.recipes.dense_settings import ContrastiveTraining, Encoders, Lexical, Mining
from gr_jax.recipes.settings import Network, PseudoQueries, Vectors
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers.dense_encoder import DenseEncoder

NAME = "document_encoder"


@dataclasses.dataclass(frozen=True)
class EncodedDocuments:
    """The first stages of a recipe: from documents to the vectors of a document encoder.

    Attributes:
      corpus, vocabulary, bm25, pseudo_queries: their stages.
      learning: what only the document encoder's training reads.
      encoder: a `DenseEncoder`, in the folder `encoder`.
      vectors: of documents or passages, laid out as `documents.vectors_stage` does.
    """

    corpus: Stage
    vocabulary: Stage
    bm25: Stage
    pseudo_queries: Stage
    learning: tuple[Stage, ...]
    encoder: Stage
    vectors: Stage

    @property
    def stages(self) -> list[Stage]:
        """In the order in which they are made."""
        first = [self.corpus, self.vocabulary, self.bm25, self.pseudo_queries]
        return [*first, *self.learning, self.encoder, self.vectors]


def encoded_documents(
    corpus: Stage,
    encoders: Encoders,
    training: ContrastiveTraining,
    mined: Mining,
    pseudo_queries: PseudoQueries,
    lexical: Lexical,
    vectors: Vectors,
    trained: str | os.PathLike = "",
) -> EncodedDocuments:
    """The stages of the document encoder.

    Args:
      corpus: its stage.
      encoders: the network.
      training: how it is trained; 0 steps leave it as it is.
      mined: its hard negatives.
      pseudo_queries: that it is trained on beside the questions.
      lexical: BM25, by which some of them are mined.
      vectors: which parts of documents get one; the encoder is `encoders`'.
      trained: folder of a run of `dpr`, whose encoder is taken instead; `training` then counts for nothing.

    Raises:
      InputError: settings that do not go together, or `trained` is no such folder.
    """
    vocabulary = examples.vocabulary_stage(corpus, encoders)
    bm25 = mining.bm25_stage(corpus, lexical)
    made = documents.pseudo_queries_stage(corpus, pseudo_queries)
    learning: list[Stage] = []
    if trained:
        encoder = _taken_stage(pathlib.Path(trained), encoders, vocabulary)
    else:
        if "cluster" in mined.shares:
            raise InputError(
                "there are no clusters before the document encoder",
                "Take another kind of negatives for it: document_encoder/Mining.shares = {...}.",
                value=dict(mined.shares),
            )
        if training.steps:
            taught = training.taught(encoders)
            pairs = mining.examples_stage(corpus, made, vocabulary, taught, training)
            wrong = mining.negatives_stage(corpus, made, vocabulary, pairs, bm25, None, taught, mined, training)
            learning = [made, pairs, wrong]
        model = contrastive.model_stage(corpus, vocabulary, learning, encoders, mined, training)
        encoder = dataclasses.replace(model, name=NAME, shared=True)
    encoded = vectors_stage(corpus, encoder, vectors)
    return EncodedDocuments(corpus, vocabulary, bm25, made, tuple(learning[1:]), encoder, encoded)


def query_vocabulary(encoded: EncodedDocuments, network: Network, start: str) -> Stage:
    """The vocabulary that queries are read in: the document encoder's, or another, where the network has its own.

    Args:
      encoded: the document encoder's stages.
      network: what reads queries.
      start: what it starts from, "document_encoder" or "pretrained".
    """
    own = examples.vocabulary_stage(encoded.corpus, network)
    if start == "document_encoder" or own.key == encoded.vocabulary.key:
        return encoded.vocabulary
    return dataclasses.replace(own, name="query_vocabulary")


def _taken_stage(run: pathlib.Path, encoders: Encoders, vocabulary: Stage) -> Stage:
    """The encoder of a finished run, copied: after the training of its side of queries, where there was one."""
    model = run / query_side.last_stage(run)
    manifest = storage.read_folder(model, model.name)
    if not (model / "encoder").is_dir():
        raise InputError("a run that trained no bi-encoder", "Name the MODEL_DIR of a run of dpr.", file=run)

    found = DenseEncoder.load(model / "encoder", verify=False)
    its: dict[str, Any] = {"pooling": found.config.pooling, "similarity": found.config.similarity}
    its |= {f"{side}_prefix": prefix for side, prefix in found.prefixes.items()}
    its |= {"document_length": found.lengths["document"]}
    for name, value in its.items():
        if value != getattr(encoders, name):
            raise InputError(
                f"an encoder whose {name} is {value!r}",
                f"Set Encoders.{name} = {value!r}.",
                file=run,
                value=getattr(encoders, name),
            )

    def make(place: Workplace) -> None:
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        if words.fingerprint != found.vocabulary.fingerprint:
            raise InputError(
                "an encoder with another vocabulary than that of the settings",
                "Set Encoders.encoder and Encoders.vocabulary to those of the run that trained it.",
                file=run,
                value=(encoders.encoder, encoders.vocabulary),
            )
        shutil.copytree(model / "encoder", place.folder / "encoder")

    return Stage(NAME, {"trained": manifest.made_from}, (vocabulary,), make, shared=True)


def check_held_out(trained: str, training: ContrastiveTraining) -> None:
    """Raises InputError where questions that are to be held out are those that a taken encoder was trained with."""
    if not trained or not training.steps or not training.held_out:
        return
    run = pathlib.Path(trained)
    config = storage.read_folder(run / query_side.last_stage(run), verify=False).meta["config"]
    before = config.get("training", {})
    for name in ("held_out", "seed"):
        if before.get("steps") and before.get(name) != getattr(training, name):
            raise InputError(
                f"an encoder whose training held out other questions: its {name} was {before.get(name)}",
                f"Set ContrastiveTraining.{name} = {before.get(name)}, or held_out = 0.",
                file=run,
                value=getattr(training, name),
            )


def load_encoder(folder: pathlib.Path) -> DenseEncoder:
    """The encoder of a finished stage."""
    return DenseEncoder.load(folder / "encoder")


def vectors_stage(corpus: Stage, encoder: Stage, vectors: Vectors) -> Stage:
    """Vectors of documents or their passages by an encoder of a stage, laid out as of `documents.vectors_stage`."""

    def make(place: Workplace) -> None:
        network = load_encoder(place.inputs[encoder.name])
        texts, owner = documents.passages(documents.load_dataset(place.inputs["corpus"]), vectors)
        np.save(place.folder / "owner.npy", owner)
        embedded = place.folder / "embeddings"
        array = models.encode_corpus(
            network.of_documents,
            texts,
            embedded,
            work=place.work,
            max_length=network.lengths["document"],
            process=(0, 1),
            progress=True,
        )
        assert array is not None
        place.meta.update({"vectors": len(array), "dimension": array.shape[1]})
        os.replace(embedded / corpus_encoding.FILE, place.folder / "vectors.npy")
        shutil.rmtree(embedded)

    config: dict[str, Any] = {"passages": vectors.passages}
    if vectors.passages != "document":
        config["most_sentences"] = vectors.most_sentences
    return Stage("vectors", config, (corpus, encoder), make, shared=encoder.shared)

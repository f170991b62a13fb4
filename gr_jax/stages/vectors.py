"""The stages of document vectors: by an encoder as it is, or by one that a stage trained."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import storage, text
from gr_jax.corpus.passages import sentence_passages
from gr_jax.models import corpus_encoding, lsa
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import pretrained
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import Settings, setting
from gr_jax.training.partitioning import all_devices

LSA_DIMENSION = 128


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Vectors(Settings):
    """The document vectors that the identifiers are made from.

    Attributes:
      encoder: "minilm" (the packaged all-MiniLM-L6-v2), "lsa" (no pretrained weights needed), "auto" (minilm where it
        is installed, else lsa), or a Hugging Face folder of a BERT sentence encoder.
      max_length: tokens read of each document.
      passages: "document": one vector, and so one docid, for each document. "sentences": one more for each of its
        first sentences; a document is found by the best of its docids.
      most_sentences: of a document that get a docid.
    """

    encoder: str = setting("auto", identity=lambda name: pretrained.identity(pretrained.installed(name)))
    max_length: int = setting(128, at_least=3)
    passages: str = setting("document", choices=("document", "sentences"))
    most_sentences: int = setting(12, at_least=1)

    @property
    def sentences(self) -> int:
        """Sentences of a document that get a vector besides the document; 0 where none do."""
        return 0 if self.passages == "document" else self.most_sentences


def vectors_of(corpus: Stage, settings: Vectors) -> Stage:
    """The stage of the vectors that settings name."""
    encoder = pretrained.Encoder(pretrained.installed(settings.encoder))
    return vectors(corpus, encoder=encoder, max_length=settings.max_length, sentences=settings.sentences)


@stage(shared=True)
def vectors(
    place: Place, corpus: pathlib.Path, *, encoder: pretrained.Encoder, max_length: int, sentences: int
) -> None:
    """Vectors of documents or their passages, float32 [n, d], unit rows; `owner.npy` says whose each is.

    Args:
      encoder: "minilm", "lsa", or a folder.
      max_length: tokens read of each.
      sentences: of a document that get a vector besides the document.
    """
    texts, owner = passages(load_dataset(corpus), sentences)
    np.save(place.folder / "owner.npy", owner)
    if encoder.name == "lsa":
        array = lsa.latent_semantic_vectors(texts, dimension=LSA_DIMENSION)
        np.save(place.folder / "vectors.npy", array)
        place.notes.update({"vectors": len(array), "dimension": array.shape[1]})
        return
    from gr_jax.interop import huggingface

    network = huggingface.load_sentence_encoder(pretrained.pretrained_folder(encoder.name))
    _encode(place, network, texts, max_length)


@stage(shared=True)
def encoded(place: Place, corpus: pathlib.Path, encoder: pathlib.Path, *, sentences: int) -> None:
    """Vectors of documents or their passages by the encoder of a stage, laid out as those of `vectors`.

    Args:
      encoder: a stage whose folder has a `DenseEncoder` in `encoder`.
      sentences: see `vectors`.
    """
    network = DenseEncoder.load(encoder / "encoder", mesh=all_devices())
    texts, owner = passages(load_dataset(corpus), sentences)
    np.save(place.folder / "owner.npy", owner)
    _encode(place, network.of_documents, texts, network.lengths["document"])


def _encode(place: Place, network: Any, texts: Sequence[str], max_length: int) -> None:
    folder = place.folder / "embeddings"
    corpus_encoding.encode_corpus(
        network, texts, folder, work=place.work, max_length=max_length, process=(0, 1), progress=True
    )
    os.replace(folder / corpus_encoding.FILE, place.folder / "vectors.npy")
    shutil.rmtree(folder)
    array = load_vectors(place.folder)
    place.notes.update({"vectors": len(array), "dimension": array.shape[1]})


def passages(dataset: corpus_lib.Dataset, sentences: int) -> tuple[Sequence[str], np.ndarray]:
    """The texts that get a vector each, and the document that each belongs to, int32 [n], ascending."""
    if not sentences:
        whole = dataset.document_texts()
        return whole, np.arange(len(whole), dtype=np.int32)
    texts, owner = sentence_passages(dataset.corpus, sentences)
    return list(map(text.TRANSFORMS[dataset.transform], texts)), owner


def load_vectors(folder: pathlib.Path) -> np.ndarray:
    """The array of a finished stage of vectors, memory-mapped."""
    return storage.load_array(folder / "vectors.npy", mmap=True)


def load_owner(folder: pathlib.Path) -> np.ndarray:
    """Whose each vector of a finished stage of vectors is."""
    return storage.load_array(folder / "owner.npy")

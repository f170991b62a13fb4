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
from jaxtyping import Int

from gr_jax import corpus as corpus_lib
from gr_jax import processes, storage, text
from gr_jax.corpus.passages import sentence_passages
from gr_jax.corpus.pieces import text_pieces
from gr_jax.models import corpus_encoding, lsa
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import pretrained
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import Settings, setting
from gr_jax.training.partitioning import all_devices

LSA_DIMENSION = 128
# Documents are cut into pieces where more than this share of their tokens stands behind so many of a document: encoders
# that read fewer were told to, and long documents are no reason to give them several vectors.
UNREAD, LONG = 0.25, 256
_AT_ONCE = 4096  # texts that are tokenised at once


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


@stage(shared=True, together=True)
def vectors(
    place: Place, corpus: pathlib.Path, *, encoder: pretrained.Encoder, max_length: int, sentences: int
) -> None:
    """Vectors of documents or their passages, float32 [n, d], unit rows; `owner.npy` says whose each is.

    Args:
      encoder: "minilm", "lsa", or a folder.
      max_length: tokens read of each.
      sentences: of a document that get a vector besides the document.
    """
    dataset = load_dataset(corpus)
    texts, owner = passages(dataset, sentences)
    np.save(place.folder / "owner.npy", owner)
    if encoder.name == "lsa":
        if not processes.first():
            return  # it is not shared out
        array = lsa.latent_semantic_vectors(texts, dimension=LSA_DIMENSION)
        np.save(place.folder / "vectors.npy", array)
        place.notes.update({"vectors": len(array), "dimension": array.shape[1]})
        return
    from gr_jax.interop import huggingface

    network = huggingface.load_sentence_encoder(pretrained.pretrained_folder(encoder.name))
    counts = token_counts(network.vocabulary, dataset.document_texts())
    place.notes["read"] = how_much_is_read(counts, max_length, room_of(network.vocabulary, max_length))
    _encode(place, network, texts, max_length)


@stage(shared=True, together=True)
def encoded(place: Place, corpus: pathlib.Path, encoder: pathlib.Path, *, sentences: int) -> None:
    """Vectors of documents or their passages by the encoder of a stage, laid out as those of `vectors`.

    Args:
      encoder: a stage whose folder has a `DenseEncoder` in `encoder`.
      sentences: see `vectors`.
    """
    network = DenseEncoder.load(encoder / "encoder", mesh=all_devices())
    dataset = load_dataset(corpus)
    texts, owner = passages(dataset, sentences)
    np.save(place.folder / "owner.npy", owner)
    length = network.lengths["document"]
    counts = token_counts(network.vocabulary, dataset.document_texts())
    place.notes["read"] = how_much_is_read(counts, length, network.room)
    _encode(place, network.of_documents, texts, length)


@stage(shared=True, together=True)
def pieces(place: Place, corpus: pathlib.Path, encoder: pathlib.Path, *, above: float) -> None:
    """Vectors of documents' pieces, laid out as those of `vectors`, where a good part of the documents would not be
    read; an empty folder where it is. It is known before anything is encoded.

    Args:
      encoder: a stage whose folder has a `DenseEncoder` in `encoder`.
      above: share of the documents' tokens that may stay unread by an encoder that reads `LONG` of a document or more.
    """
    network, dataset = DenseEncoder.load(encoder / "encoder", mesh=all_devices()), load_dataset(corpus)
    length = network.lengths["document"]
    counts = token_counts(network.vocabulary, dataset.document_texts())
    read = how_much_is_read(counts, max(length, LONG), network.room + max(0, LONG - length))
    place.notes.update({"read": read, "vectors": 0})
    if read["tokens read"] >= (1 - above) * read["tokens"]:
        return
    texts, owner = text_pieces(dataset.corpus, network.token_counts, network.room, counts)
    np.save(place.folder / "owner.npy", owner)
    _encode(place, network.of_documents, network.rewritten(texts), length)


def token_counts(vocabulary: text.Vocabulary, texts: Sequence[str]) -> Int[np.ndarray, " texts"]:
    """Tokens of each text, without what is put around it."""
    counts = np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), _AT_ONCE):
        some = vocabulary.encode_batch(list(texts[start : start + _AT_ONCE]))
        counts[start : start + len(some)] = [len(ids) for ids in some]
    return counts


def room_of(vocabulary: text.Vocabulary, length: int) -> int:
    """What a length leaves to a text's own tokens."""
    return length - len(vocabulary.prefix) - len(vocabulary.suffix)


def how_much_is_read(counts: Int[np.ndarray, " texts"], length: int, room: int) -> dict[str, int]:
    """How many documents and tokens there are, how many documents are cut, and how many tokens are read.

    Args:
      counts: tokens of each document, see `token_counts`.
      length: tokens that are read of each, those that are put around a text included.
      room: without those.
    """
    return {
        "documents": len(counts),
        "cut": int((counts > room).sum()),
        "tokens": int(counts.sum()),
        "tokens read": int(np.minimum(counts, room).sum()),
        "length": length,
    }


def what_is_read(reader: pathlib.Path, in_pieces: pathlib.Path | None = None) -> str:
    """What a report says of how much of the documents is read; "" where nothing was counted.

    Args:
      reader: a finished stage whose notes have `how_much_is_read` as "read".
      in_pieces: of the vectors of the documents' pieces, if there is one.
    """
    read = storage.read_folder(reader, verify=False).meta.get("read")
    if read is None:  # by LSA, which reads all, or by a version that did not count
        return ""
    share = read["tokens read"] / max(read["tokens"], 1)
    cut = f"{read['cut'] / read['documents']:.1%} of {read['documents']:,} are cut at {read['length']} tokens"
    said = f"{cut}, {share:.1%} of their tokens are read"
    count = 0 if in_pieces is None else storage.read_folder(in_pieces, verify=False).meta["vectors"]
    return f"{said}; so they are searched in {count:,} pieces, which have all of them" if count else said


def _encode(place: Place, network: Any, texts: Sequence[str], max_length: int) -> None:
    """Of several processes each encodes a share, and process 0 joins them."""
    folder = place.folder / "embeddings"
    corpus_encoding.encode_corpus(network, texts, folder, work=place.common, max_length=max_length, progress=True)
    if not processes.first():
        return
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


def searched(
    vectors: pathlib.Path, in_pieces: pathlib.Path | None, most_sentences: int
) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """What an index searches: vectors, the document of each, None where every document has one, and whether they are of
    pieces.

    Args:
      vectors: a finished stage of vectors of documents, or of their sentences too.
      in_pieces: of their pieces, if there is one.
      most_sentences: of a document that have vectors in the first.
    """
    if in_pieces is not None and (in_pieces / "owner.npy").is_file():
        return load_vectors(in_pieces), load_owner(in_pieces), True
    return load_vectors(vectors), load_owner(vectors) if most_sentences else None, False


def load_owner(folder: pathlib.Path) -> np.ndarray:
    """Whose each vector of a finished stage of vectors is."""
    return storage.load_array(folder / "owner.npy")

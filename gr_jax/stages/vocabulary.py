"""The stage of the vocabulary that texts are read in."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Protocol

import gr_jax.text as text_lib
from gr_jax.errors import InputError
from gr_jax.stages import pretrained
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage

KINDS = ("pretrained", "sentencepiece", "byte")
_TOKENIZER, _PIECES = "tokenizer.json", "spiece.model"  # what a pretrained folder has its vocabulary in


class Reads(Protocol):
    """Settings of whatever reads text: what its encoder is, and which vocabulary that has."""

    @property
    def encoder(self) -> str: ...
    @property
    def vocabulary(self) -> str: ...
    @property
    def vocabulary_size(self) -> int: ...


def check_vocabulary(settings: str, reads: Reads) -> None:
    """Raises InputError for another vocabulary than that of a pretrained encoder, whose table has a row for each of its
    own tokens. A folder that has none may be one of bytes, as ByT5 is."""
    if reads.vocabulary == "pretrained" or reads.encoder == "t5":
        return
    folder = pathlib.Path(reads.encoder)
    if reads.encoder == "minilm" or (folder / _TOKENIZER).is_file() or (folder / _PIECES).is_file():
        raise InputError(
            f"{settings}.vocabulary is not that of its pretrained encoder, which would take its tokens for others",
            f'Set {settings}.vocabulary = "pretrained", or {settings}.encoder = "t5", which starts from scratch.',
            value=reads.vocabulary,
        )


@dataclasses.dataclass(frozen=True)
class Words:
    """A vocabulary.

    Attributes:
      kind: one of `KINDS`.
      encoder: whose own it is, for "pretrained"; else "".
      size: of a trained one, for "sentencepiece"; else 0.
    """

    kind: str
    encoder: str = ""
    size: int = 0

    def identity(self) -> dict[str, Any]:
        """With the encoder's content."""
        found: dict[str, Any] = {"kind": self.kind}
        if self.encoder:
            found["encoder"] = pretrained.identity(self.encoder)
        return found | ({"size": self.size} if self.size else {})


def words_of(reads: Reads) -> Words:
    """The vocabulary that settings name, without what another kind would need."""
    if reads.vocabulary == "pretrained":
        return Words("pretrained", encoder=reads.encoder)
    return Words(reads.vocabulary, size=reads.vocabulary_size if reads.vocabulary == "sentencepiece" else 0)


def vocabulary_of(corpus: Stage, reads: Reads) -> Stage:
    """The stage of the vocabulary that settings name; the documents are read for a trained one only."""
    words = words_of(reads)
    return vocabulary(corpus if words.kind == "sentencepiece" else None, words)


@stage(shared=True)
def vocabulary(place: Place, corpus: pathlib.Path | None, words: Words) -> None:
    """The pretrained encoder's vocabulary, bytes, or pieces trained on the documents.

    A pretrained one is the folder's `tokenizer.json`, or its `spiece.model` where it has no other.
    """
    if words.kind == "byte":
        made: text_lib.Vocabulary = text_lib.ByteVocabulary()
    elif words.kind == "sentencepiece":
        assert corpus is not None
        made = text_lib.SentencePieceVocabulary.train(load_dataset(corpus).document_texts(), words.size)
    else:
        made = _pretrained(pretrained.pretrained_folder(words.encoder))
    made.save(place.folder / "vocabulary")
    place.notes["size"] = made.size


def _pretrained(folder: pathlib.Path) -> text_lib.Vocabulary:
    tokenizer, pieces = folder / _TOKENIZER, folder / _PIECES
    if pieces.is_file() and not tokenizer.is_file():
        return text_lib.SentencePieceVocabulary(pieces)
    return text_lib.HuggingFaceVocabulary(tokenizer)


def load_vocabulary(folder: pathlib.Path) -> text_lib.Vocabulary:
    """The vocabulary of a finished vocabulary stage."""
    return text_lib.load_vocabulary(folder / "vocabulary")

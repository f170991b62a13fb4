"""Vocabularies of any type, from their folders."""

from __future__ import annotations

import json
import os
import pathlib

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.text.huggingface import HuggingFaceVocabulary
from gr_jax.text.sentencepiece import SentencePieceVocabulary
from gr_jax.text.vocabulary import KIND, ByteVocabulary, Vocabulary


def load_vocabulary(folder: str | os.PathLike) -> Vocabulary:
    """Reads what a vocabulary's `save` wrote.

    Raises:
      InputError: `folder` is no vocabulary, or a truncated or altered one, or the package that its type needs is not
        installed.
    """
    storage.read_folder(folder, KIND)
    folder = pathlib.Path(folder)
    config = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    if config["type"] == "byte":
        return ByteVocabulary(config["extra_ids"])
    if config["type"] == "sentencepiece":
        return SentencePieceVocabulary(folder / SentencePieceVocabulary.FILE)
    if config["type"] == "huggingface":
        return HuggingFaceVocabulary(folder / HuggingFaceVocabulary.FILE)
    raise InputError("a vocabulary of an unknown type", "Use a newer gr_jax.", file=folder, value=config["type"])

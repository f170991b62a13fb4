"""SentencePiece vocabularies with T5's special ids: read from a model file, or trained on a corpus."""

from __future__ import annotations

import functools
import importlib.util
import io
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gr_jax.errors import InputError
from gr_jax.text import vocabulary

# Longer lines than this are cut before training: the trainer would leave them out.
_MAX_TRAINING_BYTES = 4000


class SentencePieceVocabulary:
    """A SentencePiece model.

    Args:
      model: a `.model` file, or its content.

    Raises:
      InputError: the file is no SentencePiece model, it has no pad, end or unknown id, or the package sentencepiece is
        not installed.
    """

    FILE = "sentencepiece.model"
    prefix: tuple[int, ...] = ()

    def __init__(self, model: str | os.PathLike | bytes):
        library = _library()
        file = None if isinstance(model, bytes) else model
        try:
            self._model = model if isinstance(model, bytes) else pathlib.Path(model).read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", "Name a SentencePiece model.", file=file) from error
        try:
            self._processor: Any = library.SentencePieceProcessor(model_proto=self._model)
            size = self._processor.vocab_size()
        except Exception as error:  # the binding raises RuntimeError and others
            raise InputError("not a SentencePiece model", "Name a file that SentencePiece wrote.", file=file) from error
        if size == 0:
            raise InputError("an empty SentencePiece model", "Name a file that SentencePiece wrote.", file=file)
        self.size: int = size
        self.pad_id: int = self._processor.pad_id()
        self.eos_id: int = self._processor.eos_id()
        self.unk_id: int = self._processor.unk_id()
        for name, special in (("pad", self.pad_id), ("eos", self.eos_id), ("unk", self.unk_id)):
            if special < 0:
                raise InputError(
                    f"a SentencePiece model without {name} id", f"Train it with --{name}_id, as T5 does.", file=file
                )
        self.suffix: tuple[int, ...] = (self.eos_id,)

    @classmethod
    def train(
        cls, texts: Iterable[str], size: int, *, byte_fallback: bool = True, max_texts: int = 1_000_000
    ) -> SentencePieceVocabulary:
        """Trains a unigram model with T5's special ids: pad 0, end of sequence 1, unknown 2, no beginning.

        The result depends only on the texts, their order and `size`.

        Args:
          texts: read once.
          size: of the vocabulary; a small corpus may give fewer pieces.
          byte_fallback: keep 256 pieces for the bytes of rare characters, so that nothing is unknown.
          max_texts: how many of `texts` are read.

        Raises:
          InputError: no text, or too small a `size` for the characters that occur.
        """
        library = _library()
        written = io.BytesIO()
        pieces = _training_lines(itertools.islice(texts, max_texts))
        first = next(pieces, None)
        if first is None:
            raise InputError("no text to train a vocabulary on", "Give texts that are not blank.")
        try:
            library.SentencePieceTrainer.train(
                sentence_iterator=itertools.chain([first], pieces),
                model_writer=written,
                model_type="unigram",
                vocab_size=size,
                hard_vocab_limit=False,
                # T5's: 0.9995 covers Latin scripts whole and leaves rare Han characters to the bytes.
                character_coverage=0.9995,
                byte_fallback=byte_fallback,
                pad_id=0,
                eos_id=1,
                unk_id=2,
                bos_id=-1,
                num_threads=2,
                minloglevel=2,
            )
        except Exception as error:  # RuntimeError, OSError, by what is wrong
            raise InputError(
                f"SentencePiece cannot train: {str(error).splitlines()[0] if str(error) else error!r}",
                "Choose another vocabulary size (300 bytes and special ids, then the pieces), or give more text.",
                value=size,
            ) from error
        return cls(written.getvalue())

    @functools.cached_property
    def fingerprint(self) -> str:
        return vocabulary.fingerprint("sentencepiece", self._model)

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(_valid(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._processor.encode([_valid(text) for text in texts], num_threads=os.cpu_count() or 1)

    def decode(self, ids: Sequence[int]) -> str:
        kept = [token for token in vocabulary.until_eos(ids, self.eos_id) if 0 <= token < self.size]
        return self._processor.decode([token for token in kept if token != self.pad_id])

    def token(self, number: int) -> str:
        """What an id stands for, special tokens included."""
        return self._processor.id_to_piece(number)

    def save(self, folder: str | os.PathLike) -> None:
        vocabulary.save(folder, self, {"type": "sentencepiece"}, {self.FILE: self._model})


def _valid(text: str) -> str:
    """`text` without half surrogate pairs, which no UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


def _training_lines(texts: Iterable[str]) -> Iterator[str]:
    """Lines that the trainer takes: not blank, no null bytes, cut at white space where too long."""
    for text in texts:
        for line in _valid(text).replace("\0", " ").splitlines():
            words: list[str] = []
            length = 0
            for word in line.split():
                cost = len(word.encode("utf-8")) + 1
                if length + cost > _MAX_TRAINING_BYTES and words:
                    yield " ".join(words)
                    words, length = [], 0
                words.append(word[: _MAX_TRAINING_BYTES // 4])
                length += cost
            if words:
                yield " ".join(words)


def _library() -> Any:
    if importlib.util.find_spec("sentencepiece") is None:
        raise InputError("SentencePiece vocabularies need the package sentencepiece", "pip install 'gr_jax[data]'")
    import sentencepiece

    return sentencepiece

"""Texts to vectors of a bi-encoder: queries through the one side, documents through the other."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from gr_jax import processes, sharing, storage, text
from gr_jax.corpus.columns import MappedColumn
from gr_jax.errors import InputError
from gr_jax.models import BiEncoderConfig, SentenceEncoder
from gr_jax.models.bi_encoder import SIDES, load_bi_encoder, save_bi_encoder

KIND = "dense_encoder"
_PART = 1024  # documents that a process encodes at a time
_SHARED_BYTES = 1 << 28


class DenseEncoder:
    """A bi-encoder with its vocabulary, lengths and prefixes.

    Args:
      config, params: of the `BiEncoder`.
      vocabulary: of both sides; its `prefix` and `suffix` are put around every text.
      query_length, document_length: tokens read of a text, prefix and suffix included.
      query_prefix, document_prefix: words put before every text, as in training ("query: ", "passage: ").
      transform: name of the text transform that the network was trained with.
      mesh: devices with an axis "data", over which batches are split; None uses one device.

    Raises:
      InputError: a length leaves no room for text, the vocabulary is another network's, or there is no such transform.
    """

    def __init__(
        self,
        config: BiEncoderConfig,
        params: Mapping[str, Any],
        vocabulary: text.Vocabulary,
        *,
        query_length: int = 64,
        document_length: int = 128,
        query_prefix: str = "",
        document_prefix: str = "",
        transform: str = "none",
        mesh: Mesh | None = None,
    ):
        shortest = len(vocabulary.prefix) + len(vocabulary.suffix) + 1
        self.lengths = {"query": query_length, "document": document_length}
        for side, length in self.lengths.items():
            stack = config.tower(side).config
            longest = getattr(stack, "max_positions", length)
            if length < shortest:
                raise InputError(
                    f"the length of a {side} leaves no room for text", f"Give {shortest} or more.", value=length
                )
            if length > longest:
                raise InputError(
                    f"the encoder of {side} texts reads {longest} tokens", f"Give {longest} or less.", value=length
                )
            words = stack.vocab_size
            if vocabulary.size > words:
                raise InputError(
                    f"the vocabulary has {vocabulary.size} tokens, the encoder of {side} texts reads {words}",
                    "Use the vocabulary that the network was trained with.",
                )
        self.config, self.vocabulary, self.transform = config, vocabulary, transform
        self.prefixes = {"query": query_prefix, "document": document_prefix}
        self._rewrite, self._mesh = text.get_transform(transform), mesh
        self._set(params)

    def _set(self, params: Mapping[str, Any]) -> None:
        self.params = params
        self._encoders = {
            side: SentenceEncoder(
                self.config.tower(side),
                params[self.config.scope(side)],
                self.vocabulary,
                pooling=None,
                prompt=self.prefixes[side],
                mesh=self._mesh,
            )
            for side in SIDES
        }

    def with_parameters(self, params: Mapping[str, Any]) -> DenseEncoder:
        """The same around other parameters, as evaluation during training needs it; nothing is compiled again."""
        other = copy.copy(self)
        other._set(params)
        return other

    def reading(self, *, document_length: int) -> DenseEncoder:
        """The same that reads so many tokens of a document, of those that it could at most."""
        other = copy.copy(self)
        other.lengths = {**self.lengths, "document": min(document_length, self.lengths["document"])}
        return other

    def documents_alone(self) -> DenseEncoder:
        """The side of documents for both: what is left of an encoder whose queries another network reads."""
        if self.config.shared and self.config.tower("query") == self.config.tower("document"):
            return self
        tower = self.config.tower("document")
        config = dataclasses.replace(
            self.config, shared=True, encoder=tower.config, document_encoder=None, pooling=tower.pooling,
            document_pooling=None,
        )  # fmt: skip
        return DenseEncoder(
            config,
            {config.scope("document"): self.params[self.config.scope("document")]},
            self.vocabulary,
            query_length=self.lengths["document"],
            document_length=self.lengths["document"],
            query_prefix=self.prefixes["document"],
            document_prefix=self.prefixes["document"],
            transform=self.transform,
            mesh=self._mesh,
        )

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self._encoders["query"].dimension

    def encode(self, texts: Sequence[str], side: str, *, progress: bool = False) -> Float[np.ndarray, "n d"]:
        """Embeds texts, as they stand in the corpus or were asked.

        Args:
          texts: any number.
          side: "query" or "document".
          progress: show a bar.
        """
        rewritten = self.rewritten(texts)
        return self._encoders[side].encode(rewritten, max_length=self.lengths[side], progress=progress)

    def encode_documents(self, texts: Sequence[str]) -> Float[np.ndarray, "n d"]:
        """Embeds a corpus as it stands into memory, in parts, which processes share out unless the vectors are too many
        for the way that they take; see `sharing.in_parts`."""

        def encode(part: int) -> dict[str, np.ndarray]:
            return {"vectors": self.encode(texts[part * _PART : (part + 1) * _PART], "document")}

        few = 4 * len(texts) * self.dimension <= _SHARED_BYTES
        with contextlib.nullcontext() if few else processes.alone():
            parts = list(sharing.in_parts("encoding documents", -(-len(texts) // _PART), encode))
        return np.concatenate([part["vectors"] for part in parts]) if parts else self.encode(texts, "document")

    def token_counts(self, texts: Sequence[str]) -> Int[np.ndarray, " texts"]:
        """Tokens of documents' texts as they stand in the corpus, without what is put around them."""
        return np.array([len(ids) for ids in self.vocabulary.encode_batch(list(self.rewritten(texts)))], np.int64)

    @property
    def room(self) -> int:
        """Tokens of a document's own text that are read."""
        around = [*self.vocabulary.prefix, *self.vocabulary.suffix, *self.vocabulary.encode(self.prefixes["document"])]
        return max(1, self.lengths["document"] - len(around))

    def rewritten(self, texts: Sequence[str]) -> Sequence[str]:
        """The texts after the transform, lazily."""
        return texts if self.transform == "none" else MappedColumn(self._rewrite, texts)

    @property
    def of_documents(self) -> SentenceEncoder:
        """What embeds documents' texts once they are rewritten, as `models.encode_corpus` takes it."""
        return self._encoders["document"]

    def save(self, folder: str | os.PathLike) -> None:
        """Writes network, vocabulary and settings as an artefact of kind "dense_encoder"."""
        meta: dict[str, Any] = {f"{side}_length": length for side, length in self.lengths.items()}
        meta |= {f"{side}_prefix": prefix for side, prefix in self.prefixes.items()}
        with storage.write_folder(folder, KIND, meta={**meta, "transform": self.transform}) as new:
            save_bi_encoder(new, self.config, self.params)
            self.vocabulary.save(new / "vocabulary")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True, mesh: Mesh | None = None) -> DenseEncoder:
        """Reads what `save` wrote.

        Args:
          folder: the artefact.
          verify: check the checksums.
          mesh: see the class.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        storage.check_counts(folder, meta, "query_length", "document_length")
        config, params = load_bi_encoder(folder)
        return cls(config, params, text.load_vocabulary(folder / "vocabulary"), **meta, mesh=mesh)

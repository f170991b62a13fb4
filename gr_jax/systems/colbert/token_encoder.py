"""Texts to one vector a token: queries and documents through a late-interaction network."""

from __future__ import annotations

import copy
import functools
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gr_jax import processes, storage, text
from gr_jax import progress as progress_lib
from gr_jax.dense import token_vectors
from gr_jax.dense.token_vectors import TokenRows, TokenVectors
from gr_jax.errors import InputError
from gr_jax.models.sentence_encoder import LENGTHS, network_fingerprint, plan_batches
from gr_jax.models.shards import Advance, encode_in_shards
from gr_jax.systems.colbert import network

KIND = "token_encoder"
_TOKENIZED_AT_ONCE = 4096
_QUERIES_AT_ONCE = 64


class TokenEncoder:
    """A late-interaction network with its vocabulary and lengths.

    Args:
      module, params: the network.
      vocabulary: of both sides; its `prefix` and `suffix` are put around every text.
      query_length, document_length: tokens read of a text, prefix and suffix included, marker excluded.
      transform: name of the text transform that the network was trained with.
      batch_size: texts of 64 tokens in a batch; shorter ones are batched in larger numbers, longer in smaller.

    Raises:
      InputError: a length leaves no room for text, or the vocabulary's prefix is not the network's.
    """

    def __init__(
        self,
        module: network.LateInteraction,
        params: Any,
        vocabulary: text.Vocabulary,
        *,
        query_length: int = 32,
        document_length: int = 128,
        transform: str = "none",
        batch_size: int = 64,
    ):
        self.module, self.vocabulary, self.transform, self.batch_size = module, vocabulary, transform, batch_size
        self.params = jax.tree.map(jnp.asarray, params)
        self.lengths = {"query": query_length, "document": document_length}
        self._rewrite = text.get_transform(transform)
        if len(vocabulary.prefix) != module.config.prefix_length:
            raise InputError(
                f"the vocabulary puts {len(vocabulary.prefix)} tokens before a text, the network expects "
                f"{module.config.prefix_length}",
                "Use the vocabulary that the network was trained with.",
            )
        shortest = len(vocabulary.prefix) + len(vocabulary.suffix) + 1
        longest = getattr(module.config.encoder, "max_positions", 1 << 30) - 1
        for side, length in self.lengths.items():
            if not shortest <= length <= longest:
                raise InputError(
                    f"the length of a {side} lies between {shortest} and {longest}", "Change it.", value=length
                )

    def with_parameters(self, params: Any) -> TokenEncoder:
        """The same around other parameters, as evaluation during training needs it; nothing is compiled again."""
        other = copy.copy(self)
        other.params = params
        return other

    def with_lengths(self, query_length: int, document_length: int) -> TokenEncoder:
        """The same for texts of other lengths."""
        other = copy.copy(self)
        other.lengths = {"query": query_length, "document": document_length}
        return other

    @property
    def dimension(self) -> int:
        """Width of a vector."""
        return self.module.config.dimension

    def tokenize(self, texts: Sequence[str], side: str) -> list[Int[np.ndarray, " length"]]:
        """Each text's tokens, cut so that the vocabulary's prefix and suffix stay."""
        prefix, suffix = self.vocabulary.prefix, self.vocabulary.suffix
        kept, rows = self.lengths[side] - len(prefix) - len(suffix), []
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            chunk = [self._rewrite(one) for one in texts[start : start + _TOKENIZED_AT_ONCE]]
            rows += [np.array([*prefix, *ids[:kept], *suffix], np.int32) for ids in self.vocabulary.encode_batch(chunk)]
        return rows

    def encode_queries(self, texts: Sequence[str]) -> tuple[Float[np.ndarray, "n Q d"], Float[np.ndarray, "n Q"]]:
        """Vectors of queries and the weight of each, 0 where a query has fewer."""
        rows = self.tokenize(texts, "query")
        longest = max(map(len, rows), default=1)
        width = min(next((length for length in LENGTHS if length >= longest), longest), self.lengths["query"])
        parts = []
        for start in range(0, len(rows), _QUERIES_AT_ONCE):
            chosen = rows[start : start + _QUERIES_AT_ONCE]
            # Powers of two, so that few heights are compiled.
            height = 1 << (len(chosen) - 1).bit_length()
            found = _encode(self.module, "query", self.params, _padded(chosen, width, height))
            parts.append([np.asarray(array)[: len(chosen)] for array in found])
        if not parts:
            return np.zeros((0, 1, self.dimension), np.float32), np.zeros((0, 1), np.float32)
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    @property
    def fingerprint(self) -> str:
        """16 hex digits over everything that decides documents' vectors."""
        about = [repr(self.module), self.vocabulary.fingerprint, self.lengths["document"], self.transform]
        return network_fingerprint([*about, self.batch_size], self.params)

    def encode_documents(
        self,
        texts: Sequence[str],
        folder: str | os.PathLike | None = None,
        *,
        precision: str = "float16",
        corpus: str = "",
        work: str | os.PathLike | None = None,
        shard_size: int = 1024,
        progress: bool = False,
    ) -> TokenVectors:
        """Vectors of documents.

        Into a folder they are encoded shard by shard; killed at any moment, the same call goes on behind the last shard
        that was finished, and ends with the same bytes. See `models.shards.encode_in_shards`.

        Args:
          texts: any number from 1.
          folder: where they go, and are mapped from; None keeps them in memory.
          precision: "float32", "float16" or "int8".
          corpus: fingerprint of the corpus, for the artefact.
          work: where shards are kept; None: beside `folder`, until it is there.
          shard_size: documents of a shard.
          progress: show a bar.

        Raises:
          InputError: no texts, settings out of their range, files of others where shards are to be kept, a full disk,
            or vectors that are not finite.
        """
        token_vectors.check_precision(precision)
        if folder is None:
            if not len(texts):
                raise InputError("there is nothing to encode", "Give at least one text.")
            with progress_lib.bar("Embedding tokens", len(texts), enabled=progress) as bar:
                return TokenVectors(self._rows(texts, precision, bar.advance))
        with processes.alone():
            self.write_vectors(
                texts, folder, precision=precision, corpus=corpus, work=work, shard_size=shard_size, progress=progress
            )
        return TokenVectors.load(folder, verify=False)

    def write_vectors(
        self,
        texts: Sequence[str],
        folder: str | os.PathLike,
        *,
        precision: str,
        corpus: str = "",
        work: str | os.PathLike | None = None,
        shard_size: int = 1024,
        progress: bool = False,
    ) -> bool:
        """`encode_documents` into a folder, which processes share out: see `models.shards.encode_in_shards`, which says
        whether the folder is there."""
        token_vectors.check_precision(precision)
        return encode_in_shards(
            texts,
            folder,
            kind=token_vectors.KIND,
            settings={"encoder": self.fingerprint, "precision": precision},
            encode=lambda shard, advance: self._rows(shard, precision, advance).arrays,
            join=lambda shards, new: token_vectors.write_rows(new, token_vectors.StoredRows(shards)),
            corpus=corpus,
            work=work,
            shard_size=shard_size,
            progress=progress,
        )

    def _rows(self, texts: Sequence[str], precision: str, advance: Advance) -> TokenRows:
        """Vectors of documents that fit in memory, similar lengths encoded together."""
        rows = self.tokenize(texts, "document")
        vectors: list[Any] = [None] * len(rows)
        pending: list[tuple[np.ndarray, tuple[Array, Array]]] = []

        def collect() -> None:
            chosen, found = pending.pop(0)
            states, mask = (np.asarray(array) for array in found)
            for place, number in enumerate(chosen.tolist()):
                vectors[number] = states[place][mask[place]]
            advance(len(chosen))

        plan = plan_batches([len(row) for row in rows], self.batch_size, self.lengths["document"])
        for chosen, length, height in plan:
            tokens = _padded([rows[number] for number in chosen], length, height)
            pending.append((chosen, _encode(self.module, "document", self.params, tokens)))
            if len(pending) > 1:  # one batch computes while the next is laid out
                collect()
        while pending:
            collect()
        kept = [network.kept_tokens(self.module.config, row) for row in rows]
        return TokenRows.of(vectors, tokens=kept, precision=precision)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes network, vocabulary and settings as an artefact of kind "token_encoder"."""
        meta = {
            "query_length": self.lengths["query"],
            "document_length": self.lengths["document"],
            "transform": self.transform,
        }
        with storage.write_folder(folder, KIND, meta=meta) as new:
            network.save_late_interaction(new, self.module, self.params)
            self.vocabulary.save(new / "vocabulary")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> TokenEncoder:
        """Reads what `save` wrote.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        storage.check_counts(folder, meta, "query_length", "document_length")
        module, params = network.load_late_interaction(folder)
        settings = {name: meta[name] for name in ("query_length", "document_length", "transform")}
        return cls(module, params, text.load_vocabulary(folder / "vocabulary"), **settings)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _encode(
    module: Any, side: str, params: Any, tokens: Int[Array, "rows length"]
) -> tuple[Float[Array, "rows S d"], Array]:
    return module.apply({"params": params}, tokens, method=f"encode_{side}")


def _padded(rows: Sequence[np.ndarray], width: int, height: int) -> Int[np.ndarray, "height width"]:
    tokens = np.zeros((height, width), np.int32)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = row
    tokens[len(rows) :, 0] = tokens[0, 0]  # rows of padding alone would have nothing to attend to
    return tokens

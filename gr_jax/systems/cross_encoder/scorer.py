"""A cross-encoder as a scorer of (query, document) pairs: reranks what another retriever found, and teaches."""

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

from gr_jax import progress as progress_lib
from gr_jax import storage, text
from gr_jax.errors import InputError
from gr_jax.models.sentence_encoder import plan_batches
from gr_jax.systems.cross_encoder import network

KIND = "cross_encoder"


class CrossEncoderScorer:
    """A cross-encoder with its vocabulary; called with pairs of texts it scores them, as `RerankRetriever` wants it.

    Args:
      module, params: the network.
      vocabulary: of both texts.
      query_length: tokens of a query at most, prefix and suffix included; the rest is cut.
      max_length: tokens of a pair at most; what a query leaves is the document's.
      batch_size: pairs of 64 tokens in a batch; shorter ones are batched in larger numbers, longer in smaller.
      progress: show a bar.

    Raises:
      InputError: the lengths leave no room for a document, or the vocabulary's prefix is not the network's.
    """

    def __init__(
        self,
        module: network.CrossEncoder,
        params: Any,
        vocabulary: text.Vocabulary,
        *,
        query_length: int = 32,
        max_length: int = 160,
        batch_size: int = 64,
        progress: bool = False,
    ):
        config = module.config
        if len(vocabulary.prefix) != config.prefix_length:
            raise InputError(
                f"the vocabulary puts {len(vocabulary.prefix)} tokens before a text, the network expects "
                f"{config.prefix_length}",
                "Use the vocabulary that the network was trained with.",
            )
        around = len(vocabulary.prefix) + len(vocabulary.suffix)
        longest = getattr(config.encoder, "max_positions", max_length)
        if query_length <= around or not query_length + around < max_length <= longest:
            raise InputError(
                f"queries of {query_length} tokens in pairs of {max_length} leave no room, or more than there is",
                f"Give query_length > {around} and a longer max_length, of at most {longest}.",
            )
        if config.similarity and query_length > config.query_length:
            raise InputError(
                f"the network reads queries of {config.query_length} tokens", "Give no longer ones.", value=query_length
            )
        self.module, self.vocabulary = module, vocabulary
        self.params = jax.tree.map(jnp.asarray, params)
        self.query_length, self.max_length = query_length, max_length
        self.batch_size, self.progress = batch_size, progress

    def with_parameters(self, params: Any) -> CrossEncoderScorer:
        """The same around other parameters; nothing is compiled again."""
        other = copy.copy(self)
        other.params = params
        return other

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " pairs"]:
        """A score for each (query, document); higher is better. Texts that come often are tokenised once."""
        scores = np.zeros(len(pairs), np.float32)
        rows = self.tokenize(pairs)
        pending: list[tuple[np.ndarray, Array]] = []

        def collect() -> None:
            chosen, found = pending.pop(0)
            scores[chosen] = np.asarray(found)[: len(chosen)]

        with progress_lib.bar("Scoring pairs", len(pairs), enabled=self.progress) as bar:
            plan = plan_batches([len(tokens) for tokens, _ in rows], self.batch_size, self.max_length)
            for chosen, length, height in plan:
                tokens, segments = np.zeros((2, height, length), np.int32)
                for place in range(height):  # what is left over repeats the last pair
                    row, kinds = rows[chosen[min(place, len(chosen) - 1)]]
                    tokens[place, : len(row)], segments[place, : len(row)] = row, kinds
                pending.append((chosen, _score(self.module, self.params, tokens, segments)))
                if len(pending) > 1:  # one batch computes while the next is laid out
                    collect()
                bar.advance(len(chosen))
            while pending:
                collect()
        return scores

    def score_pairs(self, queries: Sequence[str], documents: Sequence[str]) -> Float[np.ndarray, " pairs"]:
        """The same of two lists of equal length."""
        return self(list(zip(queries, documents, strict=True)))

    def tokenize(
        self, pairs: Sequence[tuple[str, str]]
    ) -> list[tuple[Int[np.ndarray, " length"], Int[np.ndarray, " length"]]]:
        """Tokens and segments of each pair, as `CrossEncoder` reads them."""
        ids: list[dict[str, list[int]]] = []
        for side in (0, 1):
            texts = list(dict.fromkeys(pair[side] for pair in pairs))
            ids.append(dict(zip(texts, self.vocabulary.encode_batch(texts), strict=True)))
        prefix, suffix = self.vocabulary.prefix, self.vocabulary.suffix
        kept, rows = self.query_length - len(prefix) - len(suffix), []
        for query, document in pairs:
            first = [*prefix, *ids[0][query][:kept], *suffix]
            second = [*ids[1][document][: self.max_length - len(first) - len(suffix)], *suffix]
            segments = np.repeat(np.array([1, 2], np.int32), [len(first), len(second)])
            rows.append((np.array([*first, *second], np.int32), segments))
        return rows

    def save(self, folder: str | os.PathLike) -> None:
        """Writes network, vocabulary and settings as an artefact of kind "cross_encoder"."""
        meta = {"query_length": self.query_length, "max_length": self.max_length}
        with storage.write_folder(folder, KIND, meta=meta) as new:
            network.save_cross_encoder(new, self.module, self.params)
            self.vocabulary.save(new / "vocabulary")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> CrossEncoderScorer:
        """Reads what `save` wrote.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        meta = storage.read_folder(folder, KIND, verify=verify).meta
        storage.check_counts(folder, meta, "query_length", "max_length")
        module, params = network.load_cross_encoder(folder)
        settings = {name: meta[name] for name in ("query_length", "max_length")}
        return cls(module, params, text.load_vocabulary(folder / "vocabulary"), **settings)


@functools.partial(jax.jit, static_argnums=0)
def _score(
    module: Any, params: Any, tokens: Int[Array, "rows length"], segments: Int[Array, "rows length"]
) -> Float[Array, " rows"]:
    return module.apply({"params": params}, tokens, segments)

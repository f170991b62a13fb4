"""Queries to padded rows of tokens, in batches of few shapes so that little is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from gr_jax import text
from gr_jax.errors import InputError, InputWarning

# Lengths that queries are padded to; each is compiled once.
QUERY_LENGTHS = (16, 32, 64, 128, 256, 512)


class QueryReader:
    """What a network that decodes reads of queries.

    Args:
      vocabulary: of the queries.
      transform: name of the text transform that the network was trained with.
      max_length: tokens read of a query; the rest is cut, with a warning.
      batch_size: queries that are decoded at a time.
    """

    def __init__(self, vocabulary: text.Vocabulary, transform: str, max_length: int, batch_size: int):
        self.vocabulary, self.transform = vocabulary, transform
        self.max_length, self.batch_size = max_length, batch_size

    def read(self, queries: Sequence[str]) -> tuple[Int[np.ndarray, "batch length"], Int[np.ndarray, " batch"]]:
        """Tokens and lengths of queries.

        Raises:
          InputError: one of them is empty.
        """
        for number, query in enumerate(queries):
            if not query.strip():
                raise InputError(f"query {number} is empty", "Leave it out, or ask something in words.", value=query)
        rewrite = text.TRANSFORMS[self.transform]
        tokens, lengths = text.encode_texts(self.vocabulary, [rewrite(q) for q in queries], self.max_length)
        if full := int(np.sum(lengths >= self.max_length)):
            warnings.warn(
                f"{full} of {len(queries)} queries fill the {self.max_length} tokens that are read; "
                "what is longer was cut",
                InputWarning,
                stacklevel=3,
            )
        return tokens, lengths

    def batches(self, lengths: Int[np.ndarray, " batch"]) -> Iterator[Int[np.ndarray, " rows"]]:
        """Places of queries that are decoded together, as those of one length are."""
        order = np.argsort(lengths, kind="stable")
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]

    def padded(self, tokens: Int[np.ndarray, "rows length"], longest: int) -> Int[np.ndarray, "padded_rows padded"]:
        """The rows of a batch, in one of few shapes.

        Args:
          tokens: of the queries.
          longest: the most tokens that one of them has.
        """
        length = next((n for n in QUERY_LENGTHS if n >= longest), tokens.shape[1])
        rows = len(tokens)
        padded = np.zeros((self.batch_size if rows > 1 else 1, length), np.int32)
        padded[:rows, :longest] = tokens[:, :longest]
        padded[rows:, 0] = padded[0, 0]  # a row of padding alone would have nothing to attend to
        return padded

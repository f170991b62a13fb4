"""Queries to padded rows of tokens, in batches of few shapes so that little is compiled."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int

from gr_jax import text
from gr_jax.errors import InputError, InputWarning
from gr_jax.retrievers.views import View

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

    def read(
        self, queries: Sequence[str], views: Sequence[View] = (View(),)
    ) -> tuple[Int[np.ndarray, "rows length"], Int[np.ndarray, " rows"]]:
        """Tokens and lengths of queries, each asked in every view, query by query; 0 behind their lengths.

        Raises:
          InputError: one of them is empty.
        """
        for number, query in enumerate(queries):
            if not query.strip():
                raise InputError(f"query {number} is empty", "Leave it out, or ask something in words.", value=query)
        rewrite = text.TRANSFORMS[self.transform]
        asked = [view.ask(rewritten) for rewritten in map(rewrite, queries) for view in views]
        tokens, lengths = text.encode_texts(self.vocabulary, asked, self.max_length)
        tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = 0
        if full := int(np.sum(lengths >= self.max_length)):
            warnings.warn(
                f"{full} of {len(asked)} queries fill the {self.max_length} tokens that are read; "
                "what is longer was cut",
                InputWarning,
                stacklevel=3,
            )
        return tokens, lengths

    def batches(self, lengths: Int[np.ndarray, " batch"], views: int = 1) -> Iterator[Int[np.ndarray, " rows"]]:
        """Places of queries that are decoded together, as those of one length are.

        Args:
          lengths: of the queries; of several views the longest.
          views: rows that each query takes of a batch.
        """
        order = np.argsort(lengths, kind="stable")
        size = self._queries(views)
        for start in range(0, len(order), size):
            yield order[start : start + size]

    def _queries(self, views: int) -> int:
        return max(1, self.batch_size // views)

    def padded(
        self, tokens: Int[np.ndarray, "rows length"], longest: int, views: int = 1
    ) -> Int[np.ndarray, "padded_rows padded"]:
        """The rows of a batch, in one of few shapes.

        Args:
          tokens: of the queries.
          longest: the most tokens that one of them has.
          views: rows of each query.
        """
        length = next((n for n in QUERY_LENGTHS if n >= longest), tokens.shape[1])
        length = max(longest, min(length, self.max_length))  # a network may have positions for no more
        rows = len(tokens)
        padded = np.zeros((views * (self._queries(views) if rows > views else 1), length), np.int32)
        padded[:rows, :longest] = tokens[:, :longest]
        padded[rows:, 0] = padded[0, 0]  # a row of padding alone would have nothing to attend to
        return padded

"""Texts to padded rows of ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from gr_jax.errors import InputError
from gr_jax.text.vocabulary import Vocabulary


def encode_texts(
    vocabulary: Vocabulary, texts: Sequence[str], max_length: int
) -> tuple[Int32[np.ndarray, "n max_length"], Int32[np.ndarray, " n"]]:
    """Encodes texts with the vocabulary's prefix and suffix around each.

    Args:
      vocabulary: of the model that will read the rows.
      texts: the texts.
      max_length: columns, in tokens. A longer text is cut so that prefix and suffix stay.

    Returns:
      The rows, padded on the right with `pad_id`, and how many ids of each row count.

    Raises:
      InputError: `max_length` leaves no room for text.
    """
    prefix, suffix = list(vocabulary.prefix), list(vocabulary.suffix)
    room = max_length - len(prefix) - len(suffix)
    if room < 1:
        raise InputError(
            "the length leaves no room for text", f"Give at least {max_length - room + 1} tokens.", value=max_length
        )
    rows = np.full((len(texts), max_length), vocabulary.pad_id, np.int32)
    lengths = np.zeros(len(texts), np.int32)
    for i, ids in enumerate(vocabulary.encode_batch(texts)):
        row = prefix + ids[:room] + suffix
        rows[i, : len(row)] = row
        lengths[i] = len(row)
    return rows, lengths

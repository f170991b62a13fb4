"""Texts as rows of one length, and several texts in a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, Int32

from gr_jax.errors import InputError
from gr_jax.training.token_store import Ragged

_STEP = 16  # tokens; rows are filled up to a multiple, for each width is compiled


def pad_texts(
    texts: Ragged, numbers: Int[np.ndarray, "B k"], lengths: Sequence[int], local: range
) -> Int32[np.ndarray, "B k length"]:
    """Tokens of some texts, padded with 0 to the smallest length that holds all of them.

    Args:
      texts: all texts.
      numbers: which; −1 is none.
      lengths: what there may be, ascending.
      local: rows of this process; texts of the others only decide the length.
    """
    there = np.maximum(numbers, 0)
    sizes = np.where(numbers >= 0, texts.offsets[there + 1] - texts.offsets[there], 0)
    length = next(limit for limit in lengths if limit >= sizes.max(initial=0))
    tokens = np.zeros((*numbers.shape, length), np.int32)
    for i in local:
        for k, number in enumerate(numbers[i].tolist()):
            if number >= 0:
                tokens[i, k, : sizes[i, k]] = texts[number]
    return tokens


def pack_evenly(lengths: Int[np.ndarray, " texts"], parts: int, rows: int) -> Int32[np.ndarray, "parts rows width"]:
    """Where each text lies when all are put into rows that are about equally full: n + 1 for the tokens of text n, 0
    for padding. The longest text comes first, and each goes where most is free.

    Args:
      lengths: tokens of each text.
      parts: of the texts, one behind the other and equally many: each has rows of its own.
      rows: of each part.
    """
    used = np.zeros((parts, rows), np.int64)
    placed = []
    for text in np.argsort(-lengths, kind="stable").tolist():
        part = text * parts // len(lengths)
        row = int(used[part].argmin())
        placed.append((text, part, row, int(used[part, row])))
        used[part, row] += lengths[text]
    width = max(1, -(-int(used.max()) // _STEP)) * _STEP
    found = np.zeros((*used.shape, width), np.int32)
    for text, part, row, start in placed:
        found[part, row, start : start + lengths[text]] = text + 1
    return found


def lengths_of_texts(side: str, lengths: int | Sequence[int], texts: Ragged) -> tuple[int, ...]:
    """The lengths of rows, ascending.

    Args:
      side: of what, as the argument is called.
      lengths: one or several.
      texts: what they must hold.

    Raises:
      InputError: they make no sense, or a text is longer.
    """
    values = (lengths,) if isinstance(lengths, int) else tuple(lengths)
    if not values or sorted(set(values)) != list(values) or values[0] < 1:
        raise InputError(f"{side}_lengths must be one length or ascending ones", "Give 64, or (32, 64).", value=lengths)
    longest = int(texts.lengths.max(initial=0))
    if longest > values[-1]:
        raise InputError(
            f"{side} {int(texts.lengths.argmax())} has {longest} tokens, and the longest row of a batch {values[-1]}",
            f"Give {side}_lengths ≥ {longest}, or tokenise with a smaller maximum length.",
            value=lengths,
        )
    return values

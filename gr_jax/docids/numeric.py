"""Docids that know nothing of the documents: decimal numbers, or one token each (DSI, Tay et al. 2022, 3.2)."""

from __future__ import annotations

import numpy as np

from gr_jax.docids.docids import Docids
from gr_jax.errors import InputError


def naive_numeric(num_documents: int, *, fixed_width: bool = False, first_token: int = 2, eos_id: int = 1) -> Docids:
    """Document n is called by the decimal digits of n ("naively structured string identifiers").

    Args:
      num_documents: documents of the corpus.
      fixed_width: pad with leading zeros to one width, so that no EOS is needed; else numbers have no leading zeros
        and end in `eos_id`.
      first_token: the token of the digit 0; digit c is first_token + c, at every position.
      eos_id: where numbers differ in length.

    Raises:
      InputError: no documents; digits that collide with padding or EOS.
    """
    _check_count(num_documents, first_token)
    numbers = np.arange(num_documents)
    width = len(str(num_documents - 1))
    powers = 10 ** np.arange(width)[::-1]
    digits = numbers[:, None] // powers % 10 + first_token  # --> [n, width]
    if not fixed_width:
        digits_of = np.maximum(1, (numbers[:, None] >= powers).sum(axis=1))
        matrix = np.zeros((num_documents, width), np.int64)
        for length in range(1, width + 1):
            matrix[digits_of == length, :length] = digits[digits_of == length, width - length :]
        digits = matrix
    return Docids.build(
        digits,
        vocab_size=max(first_token + 10, eos_id + 1),
        eos_id=None if fixed_width else eos_id,
        scheme="naive_numeric",
        meta={"fixed_width": fixed_width, "first_token": first_token},
    )


def atomic(num_documents: int, *, first_token: int = 2) -> Docids:
    """Document n is the one token first_token + n ("unstructured atomic identifiers").

    Raises:
      InputError: no documents; first_token < 1.
    """
    _check_count(num_documents, first_token)
    return Docids.build(
        np.arange(num_documents)[:, None] + first_token,
        vocab_size=first_token + num_documents,
        levels=[(first_token, num_documents)],
        scheme="atomic",
        meta={"first_token": first_token},
    )


def _check_count(num_documents: int, first_token: int) -> None:
    if num_documents < 1:
        raise InputError("there are no documents", "Give at least one document.", value=num_documents)
    if first_token < 1:
        raise InputError("0 is padding, not a docid token", "Give first_token ≥ 1.", value=first_token)

"""Suffix arrays of token streams (host, NumPy and the package pydivsufsort)."""

from __future__ import annotations

import importlib.util

import numpy as np
from jaxtyping import Int, UInt

from gr_jax.errors import InputError


def suffix_array(symbols: UInt[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Where the suffixes of a stream start, in their order; a suffix comes before what it is a prefix of.

    The stream is sorted as big-endian bytes: suffixes of bytes that start at whole symbols have the order of suffixes
    of symbols.

    Args:
      symbols: unsigned integers, at least one.

    Raises:
      InputError: the package pydivsufsort is not installed.
    """
    if importlib.util.find_spec("pydivsufsort") is None:
        raise InputError("suffix arrays need the package pydivsufsort", "pip install 'gr_jax[ngrams]'")
    import pydivsufsort

    width = symbols.dtype.itemsize
    stream = np.ascontiguousarray(symbols, dtype=symbols.dtype.newbyteorder(">")).view(np.uint8)
    starts = pydivsufsort.divsufsort(stream)
    if width == 1:
        return starts
    return starts[starts % width == 0] // width

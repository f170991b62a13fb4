"""NumPy files of an artefact: read or memory-mapped, never unpickled."""

from __future__ import annotations

import os

import numpy as np

from gr_jax.errors import InputError


def load_array(path: str | os.PathLike, *, mmap: bool = False) -> np.ndarray:
    """Loads one `.npy`.

    Args:
      path: the file.
      mmap: map it read-only instead of reading it.

    Raises:
      InputError: the file is not there or is no whole `.npy` of plain numbers.
    """
    try:
        if mmap:
            return np.lib.format.open_memmap(path, mode="r")
        with open(path, "rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError("more bytes follow the array")
            return array
    # A header of altered bytes makes NumPy raise nearly anything.
    except Exception as error:
        raise InputError(
            f"not a readable .npy array: {error}", "Copy the artefact again whole, or make it again.", file=path
        ) from error

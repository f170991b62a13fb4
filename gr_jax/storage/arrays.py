"""NumPy files of an artefact: read or memory-mapped, never unpickled, and mapped to be filled."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gr_jax.errors import InputError

_BLOCK = 1 << 20  # zeros that are written at once
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}


def load_array(
    path: str | os.PathLike, *, mmap: bool = False, dtype: npt.DTypeLike | None = None, ndim: int | None = None
) -> np.ndarray:
    """Loads one `.npy`.

    Args:
      path: the file.
      mmap: map it read-only instead of reading it.
      dtype, ndim: what it must have; None takes any.

    Raises:
      InputError: the file is not there, is no whole `.npy` of plain numbers, or is of another type or rank.
    """
    array = _load(path, mmap)
    if dtype not in (None, array.dtype) or ndim not in (None, array.ndim):
        raise InputError(
            f"an array of another type than {np.dtype(dtype)} in {ndim} dimensions",
            "Copy the artefact again whole, or make it again.",
            file=path,
            value=(str(array.dtype), array.shape),
        )
    return array


def _load(path: str | os.PathLike, mmap: bool) -> np.ndarray:
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


def new_array(path: str | os.PathLike, dtype: npt.DTypeLike, shape: Sequence[int]) -> np.memmap:
    """A new `.npy` of zeros, mapped to be filled; who fills it calls `flush` at the end.

    All of its space is taken at once. A mapped file that is begun as a hole gets its space page by page, and where the
    disk is full by then, the system ends the process instead of reporting an error.

    Args:
      path: the file.
      dtype, shape: of the array.

    Returns:
      The array; one of no bytes is written already, and mapped nowhere.

    Raises:
      OSError: the disk is full, or `path` may not be written. `write_folder` makes an `InputError` of it.
    """
    dtype, shape = np.dtype(dtype), tuple(shape)
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        _reserve(file.fileno(), file.tell(), int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    if 0 in shape:
        return np.empty(shape, dtype).view(np.memmap)
    return np.lib.format.open_memmap(path, mode="r+")


def _reserve(handle: int, start: int, size: int) -> None:
    """Lets a file have `size` bytes of zeros from `start` on, for which the disk has taken the space."""
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, start, size)
            return
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
    for done in range(0, size, _BLOCK):
        left = memoryview(bytes(min(_BLOCK, size - done)))
        while left:
            left = left[os.write(handle, left) :]

"""The vectors of all documents in the order of their positions: those that were there when the search was built, those
added since, and which have been removed."""

from __future__ import annotations

import os
import pathlib

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import storage
from gr_jax.dense.base import check_positions, check_vectors, held
from gr_jax.errors import InputError


class StoredVectors:
    """Vectors by position. What was given as float32 is not copied before `merge`, so it may be a memory-mapped file.

    Attributes:
      main: float32[n, d], the documents that are laid out for search.
      live: bool[num_documents], False where a document was removed.
    """

    def __init__(self, main: Float[np.ndarray, "n d"], live: Bool[np.ndarray, " n"] | None = None):
        self.main = check_vectors(main) if live is None else main  # read back: checked when it was written
        self.live = np.ones(len(self.main), bool) if live is None else live
        self._tail = np.zeros((0, self.width), np.float32)
        self._tail_length = 0

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self.main.shape[1]

    @property
    def num_documents(self) -> int:
        """Positions that have been given out."""
        return len(self.main) + self._tail_length

    @property
    def tail(self) -> Float[np.ndarray, "n d"]:
        """The documents added since `main` was laid out."""
        return self._tail[: self._tail_length]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return held(self.main, self._tail, self.live)

    def add(self, vectors: Float[np.ndarray, "n d"]) -> None:
        """Appends documents to the tail, whose room doubles when it is full."""
        vectors = check_vectors(vectors, self.width)
        length = self._tail_length + len(vectors)
        if length > len(self._tail):
            roomier = np.empty((max(length, 2 * len(self._tail)), self.width), np.float32)
            roomier[: self._tail_length] = self.tail
            self._tail = roomier
        self._tail[self._tail_length : length] = vectors
        self._tail_length = length
        self.live = np.concatenate([self.live, np.ones(len(vectors), bool)])

    def remove(self, positions: Int[np.ndarray, " n"]) -> None:
        """Marks documents as removed; doing so twice changes nothing."""
        live = self.live.copy()  # devices may still read the old one
        live[check_positions(positions, self.num_documents)] = False
        self.live = live

    def rows(self, start: int, stop: int) -> Float[np.ndarray, "n d"]:
        """The vectors of the positions from `start` to `stop`, a view where they are all on one side."""
        border = len(self.main)
        if stop <= border:
            return self.main[start:stop]
        if start >= border:
            return self.tail[start - border : stop - border]
        return np.concatenate([self.main[start:], self.tail[: stop - border]])

    def merge(self) -> None:
        """Makes the tail a part of `main`, which is then a new array in memory, whatever was mapped before."""
        if self._tail_length:
            self.main = np.concatenate([self.main, self.tail])
            self._tail, self._tail_length = np.zeros((0, self.width), np.float32), 0

    def split(self, main: int) -> None:
        """Makes a tail of all documents but the first `main`; the tail's vectors are copied into memory."""
        tail, live = np.array(self.main[main:]), self.live
        self.main, self.live = self.main[:main], live[:main]
        if len(tail):
            self.add(tail)
            self.live = live

    def write(self, folder: pathlib.Path) -> None:
        """Writes `vectors.npy` and `live.npy`, without a second copy of the vectors in memory."""
        file = storage.new_array(folder / "vectors.npy", np.float32, (self.num_documents, self.width))
        file[: len(self.main)] = self.main
        file[len(self.main) :] = self.tail
        file.flush()
        np.save(folder / "live.npy", self.live)

    @classmethod
    def read(cls, folder: str | os.PathLike, *, mmap: bool) -> StoredVectors:
        """Reads what `write` wrote."""
        folder = pathlib.Path(folder)
        vectors = storage.load_array(folder / "vectors.npy", mmap=mmap)
        live = storage.load_array(folder / "live.npy")
        if live.dtype != bool or live.shape != (len(vectors),):
            raise InputError(
                "the list of removed documents does not fit the vectors", "Make it again.", file=folder / "live.npy"
            )
        return cls(vectors, live)

"""Columns of strings: one UTF-8 blob and int64 offsets, in memory or memory-mapped."""

from __future__ import annotations

import array
import io
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, overload

import numpy as np
from jaxtyping import Int, UInt8

from gr_jax import storage
from gr_jax.errors import InputError


class TextColumn(Sequence[str]):
    """A read-only sequence of strings that are decoded when they are asked for.

    Attributes:
      blob: all strings, UTF-8, one after the other; uint8[bytes].
      offsets: string i is `blob[offsets[i]:offsets[i + 1]]`; int64[n + 1].
    """

    def __init__(
        self, blob: UInt8[np.ndarray, " bytes"], offsets: Int[np.ndarray, " n_plus_1"], file: pathlib.Path | None = None
    ):
        # A view, as every access to a `memmap` makes another object of it.
        self.blob, self.offsets, self._file = blob, np.asarray(offsets), file
        self._bytes = memoryview(blob) if len(blob) else memoryview(b"")  # type: ignore[arg-type]

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextColumn:
        """The column of `texts`, in memory."""
        writer = ColumnWriter()
        for text in texts:
            writer.append(text.encode("utf-8"))
        return writer.column()

    @classmethod
    def load(cls, folder: pathlib.Path, name: str, *, mmap: bool = False) -> TextColumn:
        """Reads `<name>.blob` and `<name>.offsets.npy` of an artefact's folder."""
        offsets = storage.load_array(folder / f"{name}.offsets.npy", mmap=mmap)
        file = folder / f"{name}.blob"
        try:
            # An empty file cannot be memory-mapped.
            mapped = mmap and os.path.getsize(file) > 0
            blob = np.memmap(file, np.uint8, mode="r") if mapped else np.fromfile(file, np.uint8)
        except OSError as error:
            raise InputError(
                f"a column cannot be read: {error.strerror}",
                "Copy the artefact again whole, or make it again.",
                file=file,
            ) from error
        if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets) or offsets[-1] != len(blob):
            raise InputError(
                "a column's offsets do not fit its text", "Copy the artefact again whole, or make it again.", file=file
            )
        return cls(np.asarray(blob) if not mapped else blob, offsets, file)

    def save(self, folder: pathlib.Path, name: str) -> None:
        """Writes what `load` reads."""
        with open(folder / f"{name}.blob", "wb") as file:
            file.write(self._bytes)
        np.save(folder / f"{name}.offsets.npy", np.asarray(self.offsets))

    def encoded(self, index: int) -> bytes:
        """String `index` (≥ 0) as UTF-8."""
        return bytes(self._bytes[self.offsets[index] : self.offsets[index + 1]])

    def iter_encoded(self) -> Iterator[bytes]:
        """All strings as UTF-8, read in order."""
        start = 0
        # .tolist(): Python integers are several times faster than NumPy scalars here.
        for chunk in range(1, len(self.offsets), 65536):
            for end in self.offsets[chunk : chunk + 65536].tolist():
                yield bytes(self._bytes[start:end])
                start = end

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[str]:
        return map(self._decode, self.iter_encoded())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._decode(self.encoded(i)) for i in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} in a column of {size}")
        return self._decode(self.encoded(index % size))

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"not UTF-8: {error.reason}", "Copy the artefact again whole, or make it again.", file=self._file,
                value=text,
            ) from error  # fmt: skip

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TextColumn):
            return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.blob, other.blob)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TextColumn({len(self)} strings, {len(self.blob)} bytes)"


class MappedColumn(Sequence[str]):
    """`function` of each string of another sequence, computed when it is asked for."""

    def __init__(self, function: Callable[[str], str], source: Sequence[str]):
        self._function, self._source = function, source

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[str]:
        return map(self._function, self._source)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._function(text) for text in self._source[index]]
        return self._function(self._source[index])


class ColumnWriter:
    """Collects strings one by one, in memory or straight into the files that `TextColumn.load` reads.

    Args:
      folder, name: where to write; None keeps the text in memory.
    """

    def __init__(self, folder: pathlib.Path | None = None, name: str = ""):
        self._folder, self._name = folder, name
        self._file: BinaryIO = io.BytesIO() if folder is None else open(folder / f"{name}.blob", "wb")
        self._offsets = array.array("q", [0])

    def append(self, text: bytes) -> None:
        self._file.write(text)
        self._offsets.append(self._offsets[-1] + len(text))

    def close(self) -> None:
        """Writes what is left; only for writers into files."""
        assert self._folder is not None
        self._file.close()
        np.save(self._folder / f"{self._name}.offsets.npy", np.frombuffer(self._offsets, np.int64))

    def column(self) -> TextColumn:
        """What was collected; only for writers in memory."""
        assert isinstance(self._file, io.BytesIO)
        return TextColumn(np.frombuffer(self._file.getvalue(), np.uint8), np.frombuffer(self._offsets, np.int64))

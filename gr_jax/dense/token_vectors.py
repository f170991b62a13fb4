"""One vector a token: documents as ragged arrays that are memory-mapped, in 32, 16 or 8 bits a number."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from gr_jax import storage
from gr_jax.dense.base import check_positions, is_mapped
from gr_jax.errors import InputError

KIND = "token_vectors"
PRECISIONS = ("float32", "float16", "int8")
_AGAIN = "Make the token vectors again."


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """The token vectors of documents that stand one after the other.

    Attributes:
      vectors: float32, float16 or int8 [total, d]; int8 is to be multiplied by `scales`.
      offsets: int64 [documents + 1]; document i has the rows `offsets[i]:offsets[i + 1]`, at least one.
      tokens: int32 [total], the vocabulary's id of each vector's token; −1 where it stands for no single token.
      scales: float32 [total] beside int8, else None.

    Raises:
      InputError: the arrays do not fit together, or a value is not finite. Of mapped vectors this is not looked at, as
        it would read them all: they were looked at when they were written.
    """

    vectors: np.ndarray
    offsets: Int[np.ndarray, " documents_plus_one"]
    tokens: Int[np.ndarray, " total"]
    scales: Float[np.ndarray, " total"] | None = None

    def __post_init__(self):
        check_precision(str(self.vectors.dtype))
        wanted = len(self.vectors) if self.vectors.dtype == np.int8 else None
        if wanted != (None if self.scales is None else len(self.scales)):
            raise InputError("a scale for each vector belongs to int8, and to nothing else", _AGAIN)
        ends = int(self.offsets[0]), int(self.offsets[-1])
        if ends != (0, len(self.vectors)) or len(self.tokens) != len(self.vectors):
            raise InputError(
                f"offsets from {ends[0]} to {ends[1]} for {len(self.vectors)} vectors of {len(self.tokens)} tokens",
                _AGAIN,
            )
        empty = np.flatnonzero(np.diff(self.offsets) < 1)
        if len(empty):
            raise InputError("a document without a single vector", "Give it one at least.", value=int(empty[0]))
        numbers = self.vectors if self.scales is None else self.scales
        if not is_mapped(numbers):
            _check_finite(numbers, self.offsets)

    @classmethod
    def of(
        cls,
        documents: Sequence[Float[np.ndarray, "tokens d"]],
        *,
        tokens: Sequence[Int[np.ndarray, " tokens"]] | None = None,
        precision: str = "float32",
    ) -> TokenRows:
        """From one array a document.

        Args:
          documents: their vectors.
          tokens: their token ids; None where they are not known.
          precision: "float32", "float16" or "int8".

        Raises:
          InputError: no documents, no such precision, a document without a vector, or a value that is not finite or,
            as float16, would not be.
        """
        if not len(documents):
            raise InputError("vectors of no documents", "Give at least one document.", value=0)
        vectors = np.concatenate([np.asarray(rows, np.float32) for rows in documents])
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        _check_finite(vectors, offsets)
        ids = np.full(len(vectors), -1, np.int32) if tokens is None else np.concatenate(tokens).astype(np.int32)
        stored, scales = quantize(vectors, precision)
        return cls(stored, offsets, ids, scales)

    @classmethod
    def joined(cls, parts: Sequence[TokenRows]) -> TokenRows:
        """The documents of all parts, in memory."""
        scales = None if parts[0].scales is None else np.concatenate([part.scales for part in parts])  # type: ignore
        return cls(
            np.concatenate([part.vectors for part in parts]),
            _joined_offsets(parts),
            np.concatenate([part.tokens for part in parts]),
            scales,
        )

    @classmethod
    def read(cls, folder: str | os.PathLike, *, mmap: bool = True) -> TokenRows:
        """What `write_rows` wrote; whoever owns the folder has checked it."""
        folder = pathlib.Path(folder)
        scales = folder / "scales.npy"
        return cls(
            storage.load_array(folder / "vectors.npy", mmap=mmap),
            storage.load_array(folder / "offsets.npy", dtype=np.int64, ndim=1),
            storage.load_array(folder / "tokens.npy", mmap=mmap, dtype=np.int32, ndim=1),
            storage.load_array(scales, mmap=mmap) if scales.exists() else None,
        )

    @property
    def num_documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Of everything that is stored."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """By the names of their files."""
        arrays = {"vectors": self.vectors, "offsets": self.offsets, "tokens": self.tokens}
        return arrays if self.scales is None else {**arrays, "scales": self.scales}

    def first(self, count: int) -> TokenRows:
        """The first documents, as a view."""
        end = int(self.offsets[count])
        scales = None if self.scales is None else self.scales[:end]
        return TokenRows(self.vectors[:end], self.offsets[: count + 1], self.tokens[:end], scales)

    def rows(self, document: int) -> slice:
        """Where a document stands."""
        return slice(int(self.offsets[document]), int(self.offsets[document + 1]))

    def padded(
        self, documents: Int[np.ndarray, " n"], length: int
    ) -> tuple[np.ndarray, Float[np.ndarray, "n length"] | None]:
        """See `TokenVectors.padded`."""
        first, last = self.offsets[documents], self.offsets[documents + 1] - 1
        rows = np.minimum(first[:, None] + np.arange(length), last[:, None])  # [n, length]
        return self.vectors[rows], None if self.scales is None else self.scales[rows]


class StoredRows(Sequence[TokenRows]):
    """The rows of several folders. Each is opened when it is asked for and closed when nobody holds it: of a large
    corpus there are more folders than files that a process may have open.

    Args:
      folders: what `write_rows` wrote, one part after the other.
    """

    def __init__(self, folders: Sequence[str | os.PathLike]):
        self._folders = folders

    def __len__(self) -> int:
        return len(self._folders)

    def __getitem__(self, number: Any) -> Any:
        chosen = self._folders[number]
        return StoredRows(chosen) if isinstance(number, slice) else TokenRows.read(chosen)


class TokenVectors:
    """The token vectors of a corpus: those that were made first, usually memory-mapped, those of documents added since,
    and which documents were removed. Nothing of the first is copied or computed again by either.

    Args:
      rows: the documents, in the corpus' order.
      live: False where a document was removed; None where none was.

    Attributes:
      live: the same for all documents, those added included. Replaced, never written to.
      lengths: how many vectors each document has.
    """

    def __init__(self, rows: TokenRows, live: Bool[np.ndarray, " documents"] | None = None):
        self._main, self._added = rows, []  # type: TokenRows, list[TokenRows]
        self._tail: TokenRows | None = None  # what was added, as one
        self.live = np.ones(rows.num_documents, bool) if live is None else live
        self.lengths: Int[np.ndarray, " documents"] = np.diff(rows.offsets)
        if self.live.dtype != bool or self.live.shape != self.lengths.shape:
            raise InputError("the list of removed documents does not fit the token vectors", _AGAIN)

    @classmethod
    def of(
        cls,
        documents: Sequence[Float[np.ndarray, "tokens d"]],
        *,
        tokens: Sequence[Int[np.ndarray, " tokens"]] | None = None,
        precision: str = "float32",
    ) -> TokenVectors:
        """From one array a document; see `TokenRows.of`."""
        return cls(TokenRows.of(documents, tokens=tokens, precision=precision))

    @property
    def num_documents(self) -> int:
        """Positions that have been given out, those of removed documents included."""
        return len(self.lengths)

    @property
    def num_vectors(self) -> int:
        """Of all documents."""
        return int(self.lengths.sum())

    @property
    def dimension(self) -> int:
        return self._main.vectors.shape[1]

    @property
    def precision(self) -> str:
        """How numbers are stored."""
        return str(self._main.vectors.dtype)

    @property
    def nbytes(self) -> int:
        """Of everything that is stored."""
        return sum(rows.nbytes for rows in self._parts()) + self.live.nbytes

    def document(self, index: int) -> Float[np.ndarray, "tokens d"]:
        """One document's vectors as float32."""
        part, index = self._place(index)
        rows = part.rows(index)
        vectors = np.asarray(part.vectors[rows], np.float32)
        return vectors if part.scales is None else vectors * part.scales[rows, None]

    def tokens(self, index: int) -> Int32[np.ndarray, " tokens"]:
        """The token that each of a document's vectors stands for; −1 where it is no single one."""
        part, index = self._place(index)
        return part.tokens[part.rows(index)]

    def padded(
        self, documents: Int[np.ndarray, " n"], length: int
    ) -> tuple[np.ndarray, Float[np.ndarray, "n length"] | None]:
        """Documents as one array `[n, length, d]`, as stored, and its scales.

        What a shorter document lacks is filled with its own last vector, which changes no maximum: whoever looks for
        the best of a document's vectors needs no mask. Of a longer one only the first vectors are there.
        """
        border = self._main.num_documents
        late = documents >= border
        if not late.any():
            return self._main.padded(documents, length)
        tail = self._joined_tail()
        if late.all():
            return tail.padded(documents - border, length)
        vectors = np.empty((len(documents), length, self.dimension), self._main.vectors.dtype)
        scales = None if self._main.scales is None else np.empty((len(documents), length), np.float32)
        for here, part, chosen in ((~late, self._main, documents), (late, tail, documents - border)):
            vectors[here], found = part.padded(chosen[here], length)
            if scales is not None:
                scales[here] = found
        return vectors, scales

    def add(self, more: TokenVectors) -> None:
        """Puts documents behind the others; they get the next positions.

        Raises:
          InputError: their vectors have another width or precision.
        """
        mine, theirs = ((one.dimension, one.precision) for one in (self, more))
        if mine != theirs:
            raise InputError(
                f"token vectors of {theirs[0]} numbers in {theirs[1]} cannot stand behind those of {mine[0]} in "
                f"{mine[1]}",
                "Encode them with the same network and precision.",
            )
        self._added += more._parts()
        self._tail = None
        self.live = np.concatenate([self.live, more.live])
        self.lengths = np.concatenate([self.lengths, more.lengths])

    def remove(self, positions: Int[np.ndarray, " n"]) -> None:
        """Marks documents as removed; the others keep their positions. Doing so twice changes nothing.

        Raises:
          InputError: no document has such a position.
        """
        live = self.live.copy()
        live[check_positions(positions, self.num_documents)] = False
        self.live = live

    def save(self, folder: str | os.PathLike, *, corpus: str = "") -> None:
        """Writes an artefact of kind "token_vectors", without a second copy of the vectors in memory."""
        with storage.write_folder(folder, KIND, corpus=corpus) as new:
            write_rows(new, self._parts())
            if not self.live.all():
                np.save(new / "live.npy", self.live)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True, mmap: bool = True) -> TokenVectors:
        """Reads what `save` wrote, or `TokenEncoder.encode_documents`.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        storage.read_folder(folder, KIND, verify=verify)
        live = folder / "live.npy"
        return cls(TokenRows.read(folder, mmap=mmap), storage.load_array(live) if live.exists() else None)

    def _parts(self) -> list[TokenRows]:
        return [self._main, *self._added]

    def _joined_tail(self) -> TokenRows:
        if self._tail is None:
            self._tail = TokenRows.joined(self._added)
            self._added = [self._tail]
        return self._tail

    def _place(self, index: int) -> tuple[TokenRows, int]:
        """Which rows a document is of, and its number there."""
        border = self._main.num_documents
        return (self._main, index) if index < border else (self._joined_tail(), index - border)


def write_rows(folder: pathlib.Path, parts: Sequence[TokenRows]) -> None:
    """Writes `vectors.npy`, `offsets.npy`, `tokens.npy` and, for int8, `scales.npy`: the documents of all parts, one
    part after the other. Of `StoredRows` two are open at a time."""
    offsets = _joined_offsets(parts)
    np.save(folder / "offsets.npy", offsets)
    formats = {name: (array.dtype, array.shape[1:]) for name, array in parts[0].arrays.items() if name != "offsets"}
    files = {
        name: storage.new_array(folder / f"{name}.npy", dtype, (int(offsets[-1]), *shape))
        for name, (dtype, shape) in formats.items()
    }
    start = 0
    for part in parts:
        end = start + len(part.vectors)
        for name, file in files.items():
            file[start:end] = part.arrays[name]
        start = end
    for file in files.values():
        file.flush()


def _joined_offsets(parts: Sequence[TokenRows]) -> Int[np.ndarray, " documents_plus_one"]:
    return np.cumsum(np.concatenate([[0], *(np.diff(part.offsets) for part in parts)]), dtype=np.int64)


def _check_finite(
    numbers: np.ndarray, offsets: Int[np.ndarray, " documents_plus_one"], *, block: int = 1 << 16
) -> None:
    """InputError where a number of a vector, or its scale, is not finite, which names the document."""
    for start in range(0, len(numbers), block):
        part = numbers[start : start + block]
        finite = np.isfinite(part).reshape(len(part), -1).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise InputError(
                f"a token vector has a value that is not finite as {numbers.dtype}",
                "Find out how its text was encoded; numbers beyond 65,504 need float32 or int8.",
                value=f"document {int(np.searchsorted(offsets, row, side='right')) - 1}, vector {row}",
            )


def check_precision(precision: str) -> None:
    """InputError where token vectors cannot be stored so."""
    if precision not in PRECISIONS:
        raise InputError("no such precision", f"Choose one of {', '.join(PRECISIONS)}.", value=precision)


def quantize(vectors: Float[np.ndarray, "n d"], precision: str) -> tuple[np.ndarray, Float[np.ndarray, " n"] | None]:
    """The vectors as they are stored; for int8 each is divided by its largest number, which becomes 127 scales."""
    check_precision(precision)
    if precision != "int8":
        with np.errstate(over="ignore"):  # of what becomes infinite `TokenRows` says which it is
            return vectors.astype(precision), None
    largest = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float32)
    scales = np.maximum(largest, np.float32(1e-12)) / np.float32(127)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales

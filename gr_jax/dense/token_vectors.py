"""One vector a token: documents as ragged arrays that are memory-mapped, in 32, 16 or 8 bits a number."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from gr_jax import storage
from gr_jax.errors import InputError

KIND = "token_vectors"
PRECISIONS = ("float32", "float16", "int8")


@dataclasses.dataclass(frozen=True)
class TokenVectors:
    """The token vectors of documents, one document after the other.

    Attributes:
      vectors: float32, float16 or int8 [total, d]; int8 is to be multiplied by `scales`.
      offsets: int64 [documents + 1]; document i has the rows `offsets[i]:offsets[i + 1]`, at least one.
      tokens: int32 [total], the vocabulary's id of each vector's token; −1 where it stands for no single token.
      scales: float32 [total] beside int8, else None.
    """

    vectors: np.ndarray
    offsets: Int[np.ndarray, " documents_plus_one"]
    tokens: Int[np.ndarray, " total"]
    scales: Float[np.ndarray, " total"] | None = None

    def __post_init__(self):
        if str(self.vectors.dtype) not in PRECISIONS or (self.scales is not None) != (self.vectors.dtype == np.int8):
            raise InputError(
                "token vectors are float32, float16, or int8 with scales", "Store them so.", value=self.vectors.dtype
            )
        ends = int(self.offsets[0]), int(self.offsets[-1])
        if ends != (0, len(self.vectors)) or len(self.tokens) != len(self.vectors):
            raise InputError(
                f"offsets from {ends[0]} to {ends[1]} for {len(self.vectors)} vectors of {len(self.tokens)} tokens",
                "Make the token vectors again.",
            )
        empty = np.flatnonzero(np.diff(self.offsets) < 1)
        if len(empty):
            raise InputError("a document without a single vector", "Give it one at least.", value=int(empty[0]))

    @classmethod
    def of(
        cls,
        documents: Sequence[Float[np.ndarray, "tokens d"]],
        *,
        tokens: Sequence[Int[np.ndarray, " tokens"]] | None = None,
        precision: str = "float32",
    ) -> TokenVectors:
        """From one array a document, in memory.

        Args:
          documents: their vectors.
          tokens: their token ids; None where they are not known.
          precision: "float32", "float16" or "int8".
        """
        vectors = np.concatenate([np.asarray(rows, np.float32) for rows in documents])
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids = np.full(len(vectors), -1, np.int32) if tokens is None else np.concatenate(tokens).astype(np.int32)
        stored, scales = quantize(vectors, precision)
        return cls(stored, offsets, ids, scales)

    @property
    def num_documents(self) -> int:
        return len(self.offsets) - 1

    @property
    def dimension(self) -> int:
        return self.vectors.shape[1]

    @property
    def lengths(self) -> Int[np.ndarray, " documents"]:
        """How many vectors each document has."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Of everything that is stored."""
        arrays = (self.vectors, self.offsets, self.tokens, self.scales)
        return sum(array.nbytes for array in arrays if array is not None)

    def document(self, index: int) -> Float[np.ndarray, "tokens d"]:
        """One document's vectors as float32."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        vectors = np.asarray(self.vectors[rows], np.float32)
        return vectors if self.scales is None else vectors * self.scales[rows, None]

    def padded(
        self, documents: Int[np.ndarray, " n"], length: int
    ) -> tuple[np.ndarray, Float[np.ndarray, "n length"] | None]:
        """Documents as one array `[n, length, d]`, as stored, and its scales.

        What a shorter document lacks is filled with its own last vector, which changes no maximum: whoever looks for
        the best of a document's vectors needs no mask.
        """
        last = self.lengths[documents] - 1
        rows = self.offsets[documents][:, None] + np.minimum(np.arange(length)[None], last[:, None])  # [n, length]
        return self.vectors[rows], None if self.scales is None else self.scales[rows]

    def save(self, folder: str | os.PathLike, *, corpus: str = "") -> None:
        """Writes an artefact of kind "token_vectors"."""
        with storage.write_folder(folder, KIND, corpus=corpus) as new:
            for name, array in self._arrays().items():
                np.save(new / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True, mmap: bool = True) -> TokenVectors:
        """Reads what `save` or `write_token_vectors` wrote.

        Raises:
          InputError: it is not such a folder, or was truncated or altered.
        """
        folder = pathlib.Path(folder)
        storage.read_folder(folder, KIND, verify=verify)
        scales = folder / "scales.npy"
        return cls(
            storage.load_array(folder / "vectors.npy", mmap=mmap),
            storage.load_array(folder / "offsets.npy"),
            storage.load_array(folder / "tokens.npy", mmap=mmap),
            storage.load_array(scales, mmap=mmap) if scales.exists() else None,
        )

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"vectors": self.vectors, "offsets": self.offsets, "tokens": self.tokens}
        return arrays if self.scales is None else {**arrays, "scales": self.scales}


class TokenVectorsFile:
    """Token vectors that are being written; documents may come in any order.

    Args:
      folder: an open artefact's folder.
      lengths: vectors of each document, at least one.
      dimension: of a vector.
      precision: "float32", "float16" or "int8".
    """

    def __init__(self, folder: pathlib.Path, lengths: Int[np.ndarray, " documents"], dimension: int, precision: str):
        check_precision(precision)
        self._precision = precision
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
        total = int(self._offsets[-1])
        np.save(folder / "offsets.npy", self._offsets)

        def mapped(name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
            return np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)

        self._vectors = mapped("vectors", precision, (total, int(dimension)))
        self._tokens = mapped("tokens", "int32", (total,))
        self._scales = mapped("scales", "float32", (total,)) if precision == "int8" else None

    def put(self, document: int, vectors: Float[np.ndarray, "tokens d"], tokens: Int[np.ndarray, " tokens"]) -> None:
        """Writes one document."""
        rows = slice(int(self._offsets[document]), int(self._offsets[document + 1]))
        self._vectors[rows], scales = quantize(vectors, self._precision)
        self._tokens[rows] = tokens
        if self._scales is not None:
            self._scales[rows] = scales

    def flush(self) -> None:
        """Hands everything to the file system."""
        for array in (self._vectors, self._tokens, self._scales):
            if isinstance(array, np.memmap):
                array.flush()


@contextlib.contextmanager
def write_token_vectors(
    folder: str | os.PathLike,
    lengths: Int[np.ndarray, " documents"],
    dimension: int,
    *,
    precision: str = "float16",
    corpus: str = "",
) -> Iterator[TokenVectorsFile]:
    """Opens an artefact that `TokenVectors.load` reads, to be filled by `put` document by document.

    Memory stays constant: the file has its full size from the start.

    Args:
      folder: takes its place when the body ends.
      lengths: vectors of each document, at least one.
      dimension: of a vector.
      precision: "float32", "float16" or "int8" (a byte a number and one scale a vector).
      corpus: fingerprint of the corpus.
    """
    check_precision(precision)
    with storage.write_folder(folder, KIND, corpus=corpus) as new:
        file = TokenVectorsFile(new, lengths, dimension, precision)
        yield file
        file.flush()


def check_precision(precision: str) -> None:
    """InputError where token vectors cannot be stored so."""
    if precision not in PRECISIONS:
        raise InputError("no such precision", f"Choose one of {', '.join(PRECISIONS)}.", value=precision)


def quantize(vectors: Float[np.ndarray, "n d"], precision: str) -> tuple[np.ndarray, Float[np.ndarray, " n"] | None]:
    """The vectors as they are stored; for int8 each is divided by its largest number, which becomes 127 scales."""
    check_precision(precision)
    if precision != "int8":
        return vectors.astype(precision), None
    largest = np.abs(vectors).max(axis=1, initial=0.0).astype(np.float32)
    scales = np.maximum(largest, np.float32(1e-12)) / np.float32(127)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales

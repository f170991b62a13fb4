"""Training examples as tokens on disk: ragged columns, memory-mapped, whole or not there at all.

Each ragged column is two plain arrays: `NAME.tokens.npy` int32, all rows one after the other, and `NAME.offsets.npy`
int64[rows + 1]. `source.npy` int8[rows] says what kind of example a row is (`gr_jax.training.example_sources`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int8, Int32, Int64

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.training.example_sources import BUILT_IN, renumbered, source_names
from gr_jax.training.features import Pair, PairFeatures

KIND = "tokens"
_CHUNK = 2048  # pairs that are tokenised at once


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Rows of different lengths, one after the other.

    Attributes:
      tokens: all rows.
      offsets: row i is `tokens[offsets[i]:offsets[i + 1]]`.
    """

    tokens: Int32[np.ndarray, " total"]
    offsets: Int64[np.ndarray, " rows_plus_one"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Int32[np.ndarray, " n"]:
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> Int64[np.ndarray, " rows"]:
        return np.diff(self.offsets)


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Tokenised training pairs.

    Attributes:
      inputs: what the encoder reads, prefix and suffix included.
      targets: what the decoder shall write, EOS included where there is one.
      source: kind of each row, see `example_sources`.
      fingerprint: of the content; equal fingerprints mean equal rows in the same order.
      meta: how the rows were made.
    """

    inputs: Ragged
    targets: Ragged
    source: Int8[np.ndarray, " rows"]
    fingerprint: str
    meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> TokenStore:
        """Memory-maps a store; `verify` reads it once to check every checksum.

        Raises:
          InputError: there is none, it is truncated, altered, or its columns do not fit together.
        """
        folder = pathlib.Path(folder)
        manifest = storage.read_folder(folder, KIND, verify=verify)
        inputs, targets = (
            Ragged(
                storage.load_array(folder / f"{name}.tokens.npy", mmap=True),
                storage.load_array(folder / f"{name}.offsets.npy", mmap=True),
            )
            for name in ("inputs", "targets")
        )
        names = manifest.meta.get("sources", BUILT_IN)
        source = renumbered(storage.load_array(folder / "source.npy", mmap=True), names)
        for name, column in (("inputs", inputs), ("targets", targets)):
            whole = len(column) == len(source) and column.offsets[0] == 0 and column.offsets[-1] == len(column.tokens)
            if not whole:
                raise InputError(
                    f"the offsets of {name!r} do not fit its tokens", "Write the token store again.", file=folder
                )
        return cls(inputs, targets, source, _fingerprint(manifest.files), manifest.meta)

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, Any]]) -> TokenStore:
        """A store in memory, of rows as `PairFeatures.row` gives them."""
        rows = list(rows)
        columns = []
        for name in ("inputs", "targets"):
            values = [np.asarray(row[name], np.int32) for row in rows]
            offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
            columns.append(Ragged(np.concatenate([np.zeros(0, np.int32), *values]), offsets))
        source = np.array([row.get("source", 0) for row in rows], np.int8)
        digest = hashlib.sha256()
        for array in (columns[0].tokens, columns[0].offsets, columns[1].tokens, columns[1].offsets, source):
            digest.update(array.tobytes())
        return cls(columns[0], columns[1], source, digest.hexdigest()[:16])

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"inputs": self.inputs[row], "targets": self.targets[row], "source": self.source[row]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def lengths(self, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "n 2"]:
        """Lengths of inputs and targets; reads offsets only."""
        columns = (self.inputs, self.targets)
        return np.stack([column.offsets[rows + 1] - column.offsets[rows] for column in columns], axis=1)

    def read(self, row: int, step: int = 0) -> tuple[Int32[np.ndarray, " n"], Int32[np.ndarray, " m"]]:
        """Inputs and targets of one row, at every step the same."""
        del step
        return self.inputs[row], self.targets[row]

    def counts(self) -> dict[str, int]:
        """How many rows there are of each source that occurs."""
        counts = np.bincount(self.source)
        return {name: int(count) for name, count in zip(source_names(), counts, strict=False) if count}

    def summary(self) -> str:
        """One line: counts and mean lengths."""
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.counts().items())
        means = [column.lengths.mean() if len(self) else 0.0 for column in (self.inputs, self.targets)]
        return f"{len(self):,} pairs ({kinds}), {means[0]:.1f} → {means[1]:.1f} tokens on average"


def write_token_store(
    folder: str | os.PathLike,
    pairs: Iterable[Pair],
    features: PairFeatures,
    *,
    corpus: str = "",
    made_from: str = "",
    gin: str = "",
    progress: bool = False,
    total: int = 0,
) -> TokenStore:
    """Tokenises pairs once and writes them; memory stays constant.

    Args:
      folder: takes the place of `folder` when it is complete.
      pairs: the examples, in the order they shall have.
      features: how they become tokens.
      corpus: fingerprint of the corpus they were made from.
      made_from: content key of inputs and configuration.
      gin: the full resolved configuration.
      progress: show a bar; `total` is how many pairs it expects.

    Returns:
      The store, memory-mapped.

    Raises:
      InputError: a pair is malformed, there is none at all, or the disk is full; nothing is written then.
    """

    def rows() -> Iterator[Mapping[str, Any]]:
        with progress_lib.bar("Tokenising", total, enabled=progress) as bar:
            for chunk in _chunks(pairs):
                yield from features.rows(chunk)
                bar.advance(len(chunk))

    meta = {"features": features.fingerprint}
    return write_rows(folder, rows(), corpus=corpus, made_from=made_from, gin=gin, meta=meta)


def write_rows(
    folder: str | os.PathLike,
    rows: Iterable[Mapping[str, Any]],
    *,
    corpus: str = "",
    made_from: str = "",
    gin: str = "",
    meta: dict[str, Any] | None = None,
) -> TokenStore:
    """Writes rows that are tokenised already: {"inputs", "targets", "source"} each."""
    meta = dict(meta or {})
    with storage.write_folder(folder, KIND, corpus=corpus, made_from=made_from, meta=meta, gin=gin) as new:
        with contextlib.ExitStack() as stack:
            columns = {
                name: (
                    stack.enter_context(_GrowingArray(new / f"{name}.tokens.npy", np.int32)),
                    stack.enter_context(_GrowingArray(new / f"{name}.offsets.npy", np.int64)),
                )
                for name in ("inputs", "targets")
            }
            source = stack.enter_context(_GrowingArray(new / "source.npy", np.int8))
            for _, offsets in columns.values():
                offsets.append([0])
            for chunk in _chunks(rows):
                for name, (tokens, offsets) in columns.items():
                    values = [np.asarray(row[name], np.int32) for row in chunk]
                    offsets.append(tokens.length + np.cumsum([len(value) for value in values], dtype=np.int64))
                    tokens.append(np.concatenate(values))
                source.append(np.array([row.get("source", 0) for row in chunk], np.int8))
            if not source.length:
                raise InputError("there is not a single training pair", "Give at least one.", file=folder)
            meta["rows"] = source.length
            if source_names() != BUILT_IN:
                meta["sources"] = list(source_names())
    return TokenStore.load(folder, verify=False)


class _GrowingArray:
    """A `.npy` file that grows by appending; its header, written first, has room for the final length."""

    def __init__(self, path: pathlib.Path, dtype: Any):
        self.length, self._dtype, self._file = 0, np.dtype(dtype), open(path, "wb")
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: Any) -> None:
        values = np.asarray(values, self._dtype)
        self._file.write(values.tobytes())
        self.length += len(values)

    def __enter__(self) -> _GrowingArray:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.seek(0)
            self._write_header()
        finally:
            self._file.close()


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, _CHUNK)):
        yield chunk


def _fingerprint(files: Mapping[str, Mapping[str, Any]]) -> str:
    joined = "\n".join(f"{name} {entry['sha256']}" for name, entry in sorted(files.items()))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]

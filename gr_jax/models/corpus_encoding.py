"""A corpus to vectors, at any size: shard by shard, each written whole, so that a killed run goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import numpy as np
from jaxtyping import Float

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.errors import InputError

KIND, SHARD_KIND = "embeddings", "embeddings_shard"
FILE = "vectors.npy"
DTYPES = ("float32", "float16")


class Encoder(Protocol):
    """What turns texts into vectors; `SentenceEncoder` is one.

    Attributes:
      dimension: width of the vectors.
      fingerprint: of everything that decides them.
    """

    @property
    def dimension(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...

    def encode(
        self, texts: Sequence[str], *, batch_size: int, max_length: int, advance: Callable[[int], None]
    ) -> Float[np.ndarray, "n d"]:
        """One row per text; `advance` is told how many more are done. See `SentenceEncoder.encode`."""
        ...


def encode_corpus(
    encoder: Encoder,
    texts: Sequence[str],
    folder: str | os.PathLike,
    *,
    work: str | os.PathLike | None = None,
    shard_size: int = 4096,
    batch_size: int = 64,
    max_length: int = 128,
    dtype: str = "float32",
    process: tuple[int, int] | None = None,
    progress: bool = False,
) -> Float[np.ndarray, "n d"] | None:
    """Embeds texts into one memory-mapped array.

    Shards are written one by one, each whole or not at all. Killed at any moment, the same call goes on behind the last
    shard that was finished, and ends with the same bytes: what is in a batch depends on its shard alone. A shard is
    known by its texts, so of a corpus that changed only the shards that did are encoded again, where `work` was given.

    With several processes (hosts that share a disk) process i of n takes every n-th shard, on its own devices, and the
    one that finds the last shard finished joins them.

    Args:
      encoder: what embeds; one that was made with a mesh splits every batch over its data axis.
      texts: any number from 1; read in slices, never all at once.
      folder: where the artefact goes: kind "embeddings", with `vectors.npy` [n, d].
      work: where shards are kept; they stay, and are the caller's to remove. None: beside `folder`, until it is there.
      shard_size: texts of a shard.
      batch_size, max_length: of `SentenceEncoder.encode`.
      dtype: "float32" or "float16", of what is stored.
      process: (index, count) of this one; None asks JAX.
      progress: show a bar with documents a second.

    Returns:
      The array, mapped read-only; None where shards of other processes are missing yet.

    Raises:
      InputError: no texts, settings out of their range, or a full disk.
    """
    folder = pathlib.Path(folder)
    index, count = process or (jax.process_index(), jax.process_count())
    if not len(texts):
        raise InputError("there is nothing to encode", "Give at least one text.", file=folder)
    if shard_size < 1:
        raise InputError("a shard needs at least one text", "Give shard_size ≥ 1.", value=shard_size)
    if dtype not in DTYPES:
        raise InputError("vectors are not stored so", f"Choose one of {', '.join(DTYPES)}.", value=dtype)
    if not 0 <= index < count:
        raise InputError(f"no process of {count} has this number", "Number them from 0.", value=index)

    shards = _Shards(pathlib.Path(work) if work else folder.with_name(f"{folder.name}.shards"), texts, shard_size)
    keys = shards.keys({"encoder": encoder.fingerprint, "batch": batch_size, "length": max_length, "dtype": dtype})
    whole = _digest(*keys)
    if storage.is_complete(folder, KIND, whole):
        return load_embeddings(folder)
    mine = range(index, len(keys), count)
    left = [number for number in mine if not shards.finished(number, keys[number])]
    total, todo = (sum(map(shards.size, numbers)) for numbers in (mine, left))
    with progress_lib.bar("Encoding documents", total, enabled=progress) as bar:
        if todo < total:
            bar.advance(total - todo, note="done before")
        started, before = time.monotonic(), bar.done

        def advance(texts_done: int) -> None:
            speed = (bar.done + texts_done - before) / max(time.monotonic() - started, 1e-9)
            bar.advance(texts_done, note=f"{speed:.0f} documents/s")

        for number in left:
            vectors = encoder.encode(
                shards.texts(number), batch_size=batch_size, max_length=max_length, advance=advance
            )
            shards.write(number, keys[number], vectors.astype(dtype))
    others = [number for number in range(len(keys)) if number % count != index]
    if not all(shards.finished(number, keys[number]) for number in others):
        return load_embeddings(folder) if storage.is_complete(folder, KIND, whole) else None
    meta = {"vectors": len(texts), "dimension": encoder.dimension, "dtype": dtype, "encoder": encoder.fingerprint}
    try:
        with storage.write_folder(folder, KIND, made_from=whole, meta=meta) as new:
            shards.join(new / FILE, dtype, encoder.dimension)
    except InputError:
        # Two processes may find the last shard at the same time: one joins, and takes the shards away from the other.
        if not storage.is_complete(folder, KIND, whole):
            raise
    if work is None:
        shutil.rmtree(shards.folder, ignore_errors=True)
    return load_embeddings(folder)


def load_embeddings(folder: str | os.PathLike, *, verify: bool = False) -> Float[np.ndarray, "n d"]:
    """The vectors of a finished artefact, memory-mapped.

    Args:
      folder: what `encode_corpus` wrote.
      verify: check the checksum, which reads every byte once.

    Raises:
      InputError: no such artefact, or a truncated or altered one.
    """
    storage.read_folder(folder, KIND, verify=verify)
    return storage.load_array(pathlib.Path(folder) / FILE, mmap=True)


class _Shards:
    """The pieces of a corpus, and their folders `00000`, `00001`, …"""

    def __init__(self, folder: pathlib.Path, texts: Sequence[str], size: int):
        self.folder, self._texts, self._size = folder, texts, size

    def __len__(self) -> int:
        return -(-len(self._texts) // self._size)

    def size(self, number: int) -> int:
        """How many texts it has."""
        return min(self._size, len(self._texts) - number * self._size)

    def texts(self, number: int) -> Sequence[str]:
        return self._texts[number * self._size : (number + 1) * self._size]

    def keys(self, settings: dict) -> list[str]:
        """What each shard is made from: its texts and the settings."""
        common = json.dumps(settings, sort_keys=True)
        return [_digest(common, *self.texts(number)) for number in range(len(self))]

    def finished(self, number: int, key: str) -> bool:
        """Whether it is there, made from the same, and no byte of it altered."""
        with contextlib.suppress(InputError):
            return storage.read_folder(self._path(number), SHARD_KIND).made_from == key
        return False

    def write(self, number: int, key: str, vectors: np.ndarray) -> None:
        with storage.write_folder(self._path(number), SHARD_KIND, made_from=key, meta={"vectors": len(vectors)}) as new:
            np.save(new / FILE, vectors)

    def join(self, file: pathlib.Path, dtype: str, dimension: int) -> None:
        """Copies all of them into one array."""
        joined = np.lib.format.open_memmap(file, "w+", np.dtype(dtype), (len(self._texts), dimension))
        for number in range(len(self)):
            start = number * self._size
            joined[start : start + self.size(number)] = storage.load_array(self._path(number) / FILE, mmap=True)
        joined.flush()

    def _path(self, number: int) -> pathlib.Path:
        return self.folder / f"{number:05d}"


def _digest(*parts: str) -> str:
    """16 hex digits over texts and the borders between them."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]

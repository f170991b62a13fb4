"""A corpus to vectors, at any size: shard by shard, each written whole, so that a killed run goes on where it was."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from jaxtyping import Float

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.models.shards import Advance, encode_in_shards

KIND = "embeddings"
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
    """Embeds texts into one memory-mapped array; see `encode_in_shards` for restarts and processes.

    A restarted call ends with the same bytes: what is in a batch depends on its shard alone.

    Args:
      encoder: what embeds; one that was made with a mesh splits every batch over its data axis.
      texts: any number from 1; read in slices, never all at once.
      folder: where the artefact goes: kind "embeddings", with `vectors.npy` [n, d].
      work: where shards are kept; they stay, and are the caller's to remove. None: see `encode_in_shards`.
      shard_size: texts of a shard.
      batch_size, max_length: of `SentenceEncoder.encode`.
      dtype: "float32" or "float16", of what is stored.
      process: (index, count) of this one; None: see `encode_in_shards`.
      progress: show a bar with documents a second.

    Returns:
      The array, mapped read-only; None where shards of other processes are missing yet, or process 0 has it.

    Raises:
      InputError: no texts, settings out of their range, an encoder whose vectors have not the shape that it promises,
        files of others where shards are to be kept, or a full disk.
    """
    if dtype not in DTYPES:
        raise InputError("unknown type to store vectors in", f"Choose one of {', '.join(DTYPES)}.", value=dtype)

    def encode(shard: Sequence[str], advance: Advance) -> dict[str, np.ndarray]:
        vectors = encoder.encode(shard, batch_size=batch_size, max_length=max_length, advance=advance)
        if vectors.shape != (len(shard), encoder.dimension):
            raise InputError(
                f"the encoder gave vectors of shape {vectors.shape} for {len(shard)} texts",
                f"It must give one row of {encoder.dimension} numbers for each text.",
            )
        return {"vectors": vectors.astype(dtype)}

    def join(shards: Sequence[pathlib.Path], new: pathlib.Path) -> None:
        shape = (len(texts), encoder.dimension)
        joined = storage.new_array(new / FILE, dtype, shape)
        start = 0
        for shard in shards:
            vectors = storage.load_array(shard / FILE, mmap=True)
            joined[start : start + len(vectors)] = vectors
            start += len(vectors)
        joined.flush()

    there = encode_in_shards(
        texts,
        folder,
        kind=KIND,
        settings={"encoder": encoder.fingerprint, "batch": batch_size, "length": max_length, "dtype": dtype},
        encode=encode,
        join=join,
        meta={"vectors": len(texts), "dimension": encoder.dimension, "dtype": dtype, "encoder": encoder.fingerprint},
        work=work,
        shard_size=shard_size,
        process=process,
        progress=progress,
    )
    return load_embeddings(folder) if there else None


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

"""Long encodings shard by shard, each written whole, so that a killed run goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.errors import InputError

Advance = Callable[[int], None]


def encode_in_shards(
    texts: Sequence[str],
    folder: str | os.PathLike,
    *,
    kind: str,
    settings: Mapping[str, Any],
    encode: Callable[[Sequence[str], Advance], Mapping[str, np.ndarray]],
    join: Callable[[Sequence[pathlib.Path], pathlib.Path], None],
    meta: Mapping[str, Any] | None = None,
    corpus: str = "",
    work: str | os.PathLike | None = None,
    shard_size: int = 4096,
    process: tuple[int, int] | None = None,
    progress: bool = False,
) -> bool:
    """Encodes texts into one artefact.

    Shards are written one by one, each whole or not at all. Killed at any moment, the same call goes on behind the last
    shard that was finished. A shard is known by its texts, so of a corpus that changed only the shards that did are
    encoded again, where `work` was given.

    With several processes (hosts that share a disk) process i of n takes every n-th shard, and the one that finds the
    last shard finished joins them.

    Args:
      texts: any number from 1; read in slices, never all at once.
      folder: where the artefact goes.
      kind: of the artefact; its shards are of kind `{kind}_shard`.
      settings: JSON, everything beside a shard's texts that decides its bytes.
      encode: a shard's texts → its arrays by name, each written as `{name}.npy`; told how to say that texts are done.
      join: the shards' folders in order and an empty folder → writes the artefact's files into that.
      meta: of the artefact.
      corpus: fingerprint of the corpus, for the artefact.
      work: where shards are kept; they stay, and are the caller's to remove. None: beside `folder`, until it is there.
      shard_size: texts of a shard.
      process: (index, count) of this one; None asks JAX.
      progress: show a bar with documents a second.

    Returns:
      Whether the artefact is there; False where shards of other processes are missing yet.

    Raises:
      InputError: no texts, settings out of their range, or a full disk.
    """
    folder = pathlib.Path(folder)
    index, count = process or (jax.process_index(), jax.process_count())
    if not len(texts):
        raise InputError("there is nothing to encode", "Give at least one text.", file=folder)
    if shard_size < 1:
        raise InputError("a shard needs at least one text", "Give shard_size ≥ 1.", value=shard_size)
    if not 0 <= index < count:
        raise InputError(f"no process of {count} has this number", "Number them from 0.", value=index)
    storage.refuse_to_replace_others(folder)  # before hours of work

    own_folder = pathlib.Path(work) if work else folder.with_name(f"{folder.name}.shards")
    shards = _Shards(own_folder, f"{kind}_shard", texts, shard_size)
    keys = shards.keys(settings)
    whole = _digest(*keys)
    if storage.is_complete(folder, kind, whole):
        return True
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
            shards.write(number, keys[number], encode(shards.texts(number), advance))
    others = [number for number in range(len(keys)) if number % count != index]
    if not all(shards.finished(number, keys[number]) for number in others):
        return storage.is_complete(folder, kind, whole)
    try:
        with storage.write_folder(folder, kind, corpus=corpus, made_from=whole, meta=dict(meta or {})) as new:
            join(shards.paths, new)
    except InputError:
        # Two processes may find the last shard at the same time: one joins, and takes the shards away from the other.
        if not storage.is_complete(folder, kind, whole):
            raise
    if work is None:
        shutil.rmtree(shards.folder, ignore_errors=True)
    return True


class _Shards:
    """The pieces of a corpus, and their folders `00000`, `00001`, …"""

    def __init__(self, folder: pathlib.Path, kind: str, texts: Sequence[str], size: int):
        self.folder, self._kind, self._texts, self._size = folder, kind, texts, size

    def __len__(self) -> int:
        return -(-len(self._texts) // self._size)

    @property
    def paths(self) -> list[pathlib.Path]:
        return [self._path(number) for number in range(len(self))]

    def size(self, number: int) -> int:
        """How many texts it has."""
        return min(self._size, len(self._texts) - number * self._size)

    def texts(self, number: int) -> Sequence[str]:
        return self._texts[number * self._size : (number + 1) * self._size]

    def keys(self, settings: Mapping[str, Any]) -> list[str]:
        """What each shard is made from: its texts and the settings."""
        common = json.dumps(settings, sort_keys=True)
        return [_digest(common, *self.texts(number)) for number in range(len(self))]

    def finished(self, number: int, key: str) -> bool:
        """Whether it is there, made from the same, and no byte of it altered."""
        with contextlib.suppress(InputError):
            return storage.read_folder(self._path(number), self._kind).made_from == key
        return False

    def write(self, number: int, key: str, arrays: Mapping[str, np.ndarray]) -> None:
        meta = {"texts": self.size(number)}
        with storage.write_folder(self._path(number), self._kind, made_from=key, meta=meta) as new:
            for name, array in arrays.items():
                np.save(new / f"{name}.npy", array)

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

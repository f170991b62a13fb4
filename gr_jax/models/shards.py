"""Long encodings shard by shard, each written whole, so that a killed run goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gr_jax import processes, sharing, storage
from gr_jax import progress as progress_lib
from gr_jax.errors import InputError
from gr_jax.storage.folder import MANIFEST

Advance = Callable[[int], None]
_SHARD = "_shard"  # how the kinds of shards end


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

    With several processes (hosts that share a disk) process i of n takes every n-th shard. Within `processes.together`
    process 0 joins them when all have come; elsewhere the one does that finds the last shard finished.

    Args:
      texts: any number from 1; read in slices, never all at once.
      folder: where the artefact goes.
      kind: of the artefact; its shards are of kind `{kind}_shard`.
      settings: JSON, everything beside a shard's texts that decides its bytes.
      encode: a shard's texts → its arrays by name, each written as `{name}.npy`; told how to say that texts are done.
      join: the shards' folders in order and an empty folder → writes the artefact's files into that.
      meta: of the artefact.
      corpus: fingerprint of the corpus, for the artefact.
      work: where shards are kept; they stay, and are the caller's to remove. None: in `{folder}.shards`, which may hold
        nothing else, until `folder` is there.
      shard_size: texts of a shard.
      process: (index, count) of this one; None: those that do this together, or else what JAX says.
      progress: show a bar with documents a second.

    Returns:
      Whether the artefact is there; False where shards of other processes are missing yet, or process 0 has it.

    Raises:
      InputError: no texts, settings out of their range, a full disk, or files of others where the shards are to go.
      Stopped: behind a shard, where all processes were asked to end.
    """
    folder = pathlib.Path(folder)
    together = process is None and processes.share() != (0, 1)
    if process is None:
        known = together or processes.is_alone()
        process = processes.share() if known else (jax.process_index(), jax.process_count())
    index, count = process
    if not len(texts):
        raise InputError("there is nothing to encode", "Give at least one text.", file=folder)
    if shard_size < 1:
        raise InputError("a shard needs at least one text", "Give shard_size ≥ 1.", value=shard_size)
    if not 0 <= index < count:
        raise InputError(f"no process of {count} has this number", "Number them from 0.", value=index)
    storage.refuse_to_replace_others(folder)  # before hours of work

    own_folder = pathlib.Path(work) if work else folder.with_name(f"{folder.name}.shards")
    shards = _Shards(own_folder, f"{kind}{_SHARD}", texts, shard_size)
    keys = shards.keys(settings)
    whole = _digest(*keys)
    if not together and storage.is_complete(folder, kind, whole):
        if work is None:  # a run that was killed at its end has left them
            shards.discard(made_from=keys)
        return True
    if work is None:
        shards.refuse_others()  # before hours of work: at its end the shards are removed
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

        wanted = set(left)
        for number in sharing.rounds(len(keys), "while encoding", (index, count)):
            if number in wanted:
                shards.write(number, keys[number], encode(shards.texts(number), advance))
    others = [number for number in range(len(keys)) if number % count != index]
    if together:
        processes.gather("shares of an encoding", None)
        if index:
            return False
        for number in others:  # one that came damaged over the common disk
            if not shards.finished(number, keys[number]):
                shards.write(number, keys[number], encode(shards.texts(number), lambda texts_done: None))
    elif not all(shards.finished(number, keys[number]) for number in others):
        return storage.is_complete(folder, kind, whole)
    try:
        with storage.write_folder(folder, kind, corpus=corpus, made_from=whole, meta=dict(meta or {})) as new:
            join(shards.paths, new)
    except InputError:
        # Two processes may find the last shard at the same time: one joins, and takes the shards away from the other.
        if not storage.is_complete(folder, kind, whole):
            raise
    if work is None:
        shards.discard()
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

    def refuse_others(self) -> None:
        """What is removed at the end must have been written here.

        Raises:
          InputError: something else than shards is in the folder, or a file has its name.
        """
        for path in _entries(self.folder):
            if not _is_shard(path) and not _is_partial(path):
                raise InputError(
                    "this folder would be used for pieces of the encoding, and holds something else",
                    "Move it away, or name another folder for the encoding or for its pieces.",
                    file=self.folder,
                    value=path.name,
                )

    def discard(self, made_from: Collection[str] | None = None) -> None:
        """Removes shards and what killed writers left of some, and the folder where nothing else is in it.

        Args:
          made_from: the keys of those that go; None removes all.
        """
        if not self.folder.is_dir():
            return
        for path in _entries(self.folder):
            if _is_partial(path):
                shutil.rmtree(path, ignore_errors=True)
            elif _is_shard(path) and (made_from is None or _manifest(path).get("made_from", "") in made_from):
                with contextlib.suppress(OSError):  # another process may be removing them too
                    _remove_shard(path)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, number: int) -> pathlib.Path:
        return self.folder / f"{number:05d}"


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    """What is in a folder; nothing where there is none.

    Raises:
      InputError: it is a file.
    """
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        raise InputError(
            "a file stands where pieces of the encoding are to be kept", "Move it away.", file=folder
        ) from error


def _is_partial(path: pathlib.Path) -> bool:
    """Whether it is a shard that was being written, under the name that it has until then."""
    return re.fullmatch(r"\.\d{5,}\.[0-9a-f]{8}\.(partial|replaced)", path.name) is not None


def _is_shard(path: pathlib.Path) -> bool:
    """Whether it is a numbered artefact of a shard, whole or damaged, or an empty folder of such a name."""
    if not re.fullmatch(r"\d{5,}", path.name) or path.is_file() or path.is_symlink():
        return False
    about = _manifest(path)
    return str(about.get("kind", _SHARD)).endswith(_SHARD) if about or _has_manifest(path) else not _entries(path)


def _has_manifest(path: pathlib.Path) -> bool:
    return (path / MANIFEST).is_file()


def _manifest(path: pathlib.Path) -> dict[str, Any]:
    """What a shard's manifest says; nothing where there is none or a damaged one."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        about = json.loads((path / MANIFEST).read_bytes())
        return about if isinstance(about, dict) else {}
    return {}


def _remove_shard(path: pathlib.Path) -> None:
    """Its manifest goes last: a removal that is killed leaves what is still known for a shard."""
    for file in sorted(path.iterdir(), key=lambda file: file.name == MANIFEST):
        file.unlink(missing_ok=True)
    path.rmdir()


def _digest(*parts: str) -> str:
    """16 hex digits over texts and the borders between them."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]

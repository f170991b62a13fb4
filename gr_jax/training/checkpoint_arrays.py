"""The arrays of a checkpoint on disk: a file of bytes for each process that wrote, and beside it what lies where.

`process_00001.arrays` holds pieces of arrays one after the other, `process_00001.json` says of each its array, its
place in that array, its place in the file and its checksum. Every piece of an array is written once, by one of the
processes that have it. Whoever reads takes the pieces that it needs, from whichever files, and checks each one as it is
read.

Checksums are made of the bytes in memory while they are written, so nothing is read a second time.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from gr_jax import processes, storage
from gr_jax.errors import DamagedError, InputError
from gr_jax.training.train_state import Flat

Bounds = tuple[tuple[int, int], ...]  # (start, stop) of every dimension
_CHUNK = 1 << 20
_COPY_AGAIN = "Restore the folder from a copy."


def _crc32c() -> Callable[[Any], int] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    if google_crc32c.implementation != "c":
        return None

    def make(data: memoryview) -> int:
        found, read = 0, np.asarray(memoryview(data))  # it takes no memoryview
        for start in range(0, len(read), _CHUNK):  # between them others have Python's lock
            found = google_crc32c.extend(found, read[start : start + _CHUNK])
        return found

    return make


CHECKSUMS: Mapping[str, Callable[[Any], int] | None] = {"crc32c": _crc32c(), "crc32": zlib.crc32}
CHECKSUM = next(name for name, make in CHECKSUMS.items() if make is not None)


class Piece(NamedTuple):
    """A part of an array, on the host.

    Attributes:
      group, path: of the array.
      bounds: where it lies in the array.
      data: its values.
    """

    group: str
    path: str
    bounds: Bounds
    data: np.ndarray


def own_pieces(arrays: Mapping[str, Flat]) -> list[Piece]:
    """Copies of the pieces that this process is to write, so that every piece is written by one process.

    Of those that several processes have, each writes about as many bytes. An array that is not JAX's is in all of them,
    and process 0 writes it.

    Args:
      arrays: group → path → array, of any sharding.
    """
    index, written = processes.index(), dict.fromkeys(range(processes.count()), 0)
    pieces = []
    for group, flat in arrays.items():
        for path, array in sorted(flat.items()):
            for bounds, owners in _owners(array).items():
                owner = min(owners, key=lambda process: (written[process], process))
                written[owner] += _bytes_of(bounds, array.dtype)
                if owner == index:
                    # Copied, not viewed: on CPU the view would be the very buffer that the next step writes into.
                    pieces.append(Piece(group, path, bounds, np.array(_part(array, bounds), copy=True)))
    return pieces


def write(folder: pathlib.Path, pieces: Sequence[Piece]) -> None:
    """Writes this process's files into a folder, and flushes them to the disk."""
    make = CHECKSUMS[CHECKSUM]
    assert make is not None
    listed: list[list[Any]] = []
    offset = 0
    path = folder / f"{_name(processes.index())}.arrays"
    # The checksum of a piece is made by another thread while the piece is written.
    with concurrent.futures.ThreadPoolExecutor(1, "checksum") as pool, open(path, "wb", buffering=0) as file:
        sums = []
        for piece in pieces:
            data = np.ascontiguousarray(piece.data).reshape(-1).view(np.uint8).data
            sums.append(pool.submit(make, data))
            _write_all(file, data)
            listed.append([piece.group, piece.path, [list(one) for one in piece.bounds], offset, len(data)])
            offset += len(data)
        os.fsync(file.fileno())
        listed = [[*line, one.result()] for line, one in zip(listed, sums, strict=True)]
    storage.write_json(path.with_suffix(".json"), {"checksum": CHECKSUM, "bytes": offset, "pieces": listed})


def unlisted(count: int) -> list[str]:
    """The files of `write` by so many processes whose checksums stand piece by piece in the others."""
    return [f"{_name(process)}.arrays" for process in range(count)]


class Arrays:
    """What is in a checkpoint's folder. The manifest has vouched for the files that say what lies where.

    Args:
      folder: of `write`.
      count: how many processes wrote.
      described: group → path → [shape, dtype].

    Raises:
      DamagedError: a file is missing or cut short, or pieces are missing.
      InputError: the checksums are of a kind that cannot be made here.
    """

    def __init__(self, folder: pathlib.Path, count: int, described: Mapping[str, Any]):
        self._folder, self._described = folder, described
        self._pieces: dict[tuple[str, str], list[tuple[Bounds, pathlib.Path, Callable, int, int, int]]] = {}
        for process in range(count):
            listing = json.loads((folder / f"{_name(process)}.json").read_text("utf-8"))
            make = CHECKSUMS.get(listing["checksum"])  # another host may have made another kind
            if make is None:
                raise InputError(
                    "this checkpoint has checksums that need another package",
                    "pip install google-crc32c.",
                    file=folder,
                    value=listing["checksum"],
                )
            file = folder / f"{_name(process)}.arrays"
            size = file.stat().st_size if file.is_file() else None
            if size != listing["bytes"]:
                found = "is missing" if size is None else f"truncated or altered: {size} bytes"
                raise DamagedError(f"{found} where {listing['bytes']} bytes were written", _COPY_AGAIN, file=file)
            for group, path, bounds, *where in listing["pieces"]:
                place = tuple((int(start), int(stop)) for start, stop in bounds)
                self._pieces.setdefault((group, path), []).append((place, file, make, *where))

    def read(self, group: str, path: str, wanted: Iterable[Bounds] | None = None) -> dict[Bounds, np.ndarray]:
        """Parts of an array, checked.

        Args:
          group, path: of the array.
          wanted: the parts; None is the whole.

        Raises:
          DamagedError: bytes are not those that were written.
        """
        shape, dtype = self._described[group][path]
        whole: Bounds = tuple((0, size) for size in shape)
        found: dict[Bounds, np.ndarray] = {}
        held: dict[Bounds, np.ndarray] = {}
        for part in dict.fromkeys([whole] if wanted is None else wanted):
            filled, target = 0, None
            for bounds, file, make, offset, size, checksum in self._pieces.get((group, path), ()):
                common = _overlap(part, bounds)
                if common is None:
                    continue
                if bounds not in held:
                    held[bounds] = _piece(
                        file, make, offset, size, checksum, bounds, np.dtype(dtype), f"{group} {path}"
                    )
                if common == part == bounds:
                    target, filled = held[bounds], held[bounds].size
                    break
                if target is None:
                    target = np.empty([stop - start for start, stop in part], dtype)
                target[_slices(common, part)] = held[bounds][_slices(common, bounds)]
                filled += int(np.prod([stop - start for start, stop in common], dtype=np.int64))
            if target is None or filled != target.size:
                raise DamagedError(f"pieces of {group} {path} are missing", _COPY_AGAIN, file=self._folder)
            found[part] = target
        return found

    def placed(self, group: str, path: str, sharding: jax.sharding.Sharding | None) -> Any:
        """An array on the devices of a sharding, of which each process reads its own parts; None gives NumPy's."""
        shape, _ = self._described[group][path]
        if sharding is None:
            return next(iter(self.read(group, path).values()))
        needed = {_bounds(where, shape) for where in sharding.addressable_devices_indices_map(tuple(shape)).values()}
        parts = self.read(group, path, sorted(needed))
        return jax.make_array_from_callback(tuple(shape), sharding, lambda where: parts[_bounds(where, shape)])


def _piece(
    file: pathlib.Path,
    make: Callable[[Any], int],
    offset: int,
    size: int,
    checksum: int,
    bounds: Bounds,
    dtype: np.dtype,
    name: str,
) -> np.ndarray:
    data = np.fromfile(file, np.uint8, size, offset=offset)
    if len(data) != size or make(data.data) != checksum:
        raise DamagedError(f"altered: the checksum of {name} is not the one that was written", _COPY_AGAIN, file=file)
    return data.view(dtype).reshape([stop - start for start, stop in bounds])


def _name(process: int) -> str:
    return f"process_{process:05d}"


def _owners(array: Any) -> dict[Bounds, list[int]]:
    """The pieces of an array, and for each the processes that have it."""
    shape = np.shape(array)
    if not isinstance(array, jax.Array):
        return {tuple((0, size) for size in shape): [0]}
    owners: dict[Bounds, set[int]] = {}
    for device, where in array.sharding.devices_indices_map(shape).items():
        owners.setdefault(_bounds(where, shape), set()).add(device.process_index)  # type: ignore[attr-defined]
    return {bounds: sorted(owners[bounds]) for bounds in sorted(owners)}


def _part(array: Any, bounds: Bounds) -> Any:
    if not isinstance(array, jax.Array):
        return array
    return next(one.data for one in array.addressable_shards if _bounds(one.index, array.shape) == bounds)


def _bounds(where: Any, shape: Sequence[int]) -> Bounds:
    """A tuple of slices as starts and stops."""
    return tuple(one.indices(size)[:2] for one, size in zip(where, shape, strict=True))


def _overlap(left: Bounds, right: Bounds) -> Bounds | None:
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return None if any(start > stop or (start == stop and left != right) for start, stop in common) else common


def _slices(part: Bounds, inside: Bounds) -> tuple[slice, ...]:
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in zip(part, inside, strict=True))


def _bytes_of(bounds: Bounds, dtype: Any) -> int:
    return int(np.prod([stop - start for start, stop in bounds], dtype=np.int64)) * np.dtype(dtype).itemsize


def _write_all(file: Any, data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]

"""Exact search on the devices of a mesh."""

from __future__ import annotations

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int

from gr_jax import storage
from gr_jax.dense import streaming
from gr_jax.dense.base import Allowed, Found, check_search, merge, nothing_found
from gr_jax.dense.stored import StoredVectors
from gr_jax.errors import InputError

KIND = "exact_search"
_SMALLEST_BLOCK = 128
_TAIL = 4096  # an added tail shorter than this is not worth laying out everything anew


class ExactSearch:
    """All documents are scored, a block at a time, each device its share.

    As many documents as `device_bytes` allow stay on the devices; the others are sent there block by block with every
    batch of queries, the next block while this one is scored.

    Args:
      vectors: float32[n, d]; may be a memory-mapped file, which stays one until a tail is merged; see `add`.
      mesh: devices that share the documents; None takes this process's.
      block: documents whose scores are held at once, on each device.
      max_batch: queries that are searched at once; more are searched in turns.
      device_bytes: bytes of vectors that may stay on each device; None takes half of what is free, or everything where
        the device does not say.

    Raises:
      InputError: no matrix, values that are not finite, settings below 1.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        *,
        mesh: Mesh | None = None,
        block: int = 1 << 16,
        max_batch: int = 256,
        device_bytes: int | None = None,
    ):
        self._start(StoredVectors(vectors), mesh, block, max_batch, device_bytes)

    def _start(self, stored, mesh, block, max_batch, device_bytes) -> None:
        if min(block, max_batch) < 1 or (device_bytes or 0) < 0:
            raise InputError(
                "a block and a batch need at least one row, and room cannot be negative",
                "Give block ≥ 1, max_batch ≥ 1 and device_bytes ≥ 0.",
                value=(block, max_batch, device_bytes),
            )
        self._stored, self._block, self._max_batch = stored, block, max_batch
        self._mesh = mesh or Mesh(np.array(jax.local_devices()), ("documents",))
        self._device_bytes = device_bytes
        self._resident: list[list] = []  # each: [first position, rows, live, number of documents]
        self._lay_out()

    @property
    def num_documents(self) -> int:
        """Positions that have been given out."""
        return self._stored.num_documents

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self._stored.width

    @property
    def nbytes(self) -> int:
        """Bytes of vectors in memory, the host's and the devices' together."""
        return self._stored.nbytes + sum(part[1].nbytes for part in self._resident)

    def search(self, queries: Float[np.ndarray, "batch d"], k: int, *, allowed: Allowed | None = None) -> Found:
        """See `VectorSearch.search`."""
        queries, allowed = check_search(queries, k, allowed, width=self.width, documents=self.num_documents)
        found = nothing_found(len(queries), k)
        for start in range(0, len(queries), self._max_batch):
            stop = min(start + self._max_batch, len(queries))
            filters = allowed if allowed is None or len(allowed) == 1 else allowed[start:stop]
            for whole, part in zip(found, self._search_batch(queries[start:stop], k, filters), strict=True):
                whole[start:stop] = part
        return found

    def add(self, vectors: Float[np.ndarray, "n d"]) -> None:
        """See `VectorSearch.add`. The tail is searched by itself until it is a quarter of the rest; then all vectors
        are copied into one array in memory, mapped ones too. Until then it stays on the devices, whatever
        `device_bytes` says."""
        self._stored.add(vectors)
        if len(self._stored.tail) > max(_TAIL, len(self._stored.main) // 4):
            self._stored.merge()
            self._lay_out()
        else:
            tail = self._part(len(self._stored.main), self.num_documents)  # before the one that it replaces goes
            self._resident = [*(part for part in self._resident if part[0] < len(self._stored.main)), tail]

    def remove(self, positions: Int[np.ndarray, " n"]) -> None:
        """See `VectorSearch.remove`."""
        self._stored.remove(positions)
        for part in self._resident:
            part[2] = self._shard(self._padded(self._stored.live[part[0] : part[0] + part[3]], len(part[1])))

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the vectors; how they are spread over devices is decided where they are loaded."""
        with storage.write_folder(folder, KIND, meta={"documents": self.num_documents, "width": self.width}) as new:
            self._stored.write(new)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike,
        *,
        mmap: bool = True,
        verify: bool = True,
        mesh: Mesh | None = None,
        block: int = 1 << 16,
        max_batch: int = 256,
        device_bytes: int | None = None,
    ) -> ExactSearch:
        """Reads what `save` wrote.

        Args:
          folder: the artefact.
          mmap: leave the vectors on disk, until a tail is merged; what is not on a device is read from there when it is
            needed.
          verify: check the checksums.
          mesh, block, max_batch, device_bytes: as of the constructor.

        Raises:
          InputError: not such a folder, or altered.
        """
        storage.read_folder(folder, KIND, verify=verify)
        search = cls.__new__(cls)
        search._start(StoredVectors.read(pathlib.Path(folder), mmap=mmap), mesh, block, max_batch, device_bytes)
        return search

    def _lay_out(self) -> None:
        """Sends to the devices what may stay there."""
        self._resident = []
        documents = len(self._stored.main)
        fitting = self._fitting(documents)
        self._send(0, fitting)
        self._streamed = range(fitting, documents, self._per_round())
        self._send(documents, self.num_documents)

    def _fitting(self, documents: int) -> int:
        """How many documents stay on the devices."""
        room = self._device_bytes
        if room is None:
            statistics = self._mesh.devices.flat[0].memory_stats() or {}
            if "bytes_limit" not in statistics:
                return documents
            room = (statistics["bytes_limit"] - statistics.get("bytes_in_use", 0)) // 2
        fitting = room // (4 * self.width) * self._mesh.size
        return documents if fitting >= documents else fitting // self._per_round() * self._per_round()

    def _per_round(self) -> int:
        return self._block * self._mesh.size

    def _send(self, start: int, stop: int) -> None:
        if stop > start:
            self._resident.append(self._part(start, stop))

    def _part(self, start: int, stop: int) -> list:
        """Documents on the devices, padded so that every device has the same number of whole blocks; small parts to a
        power of two, so that few shapes are compiled."""
        share = -(-(stop - start) // self._mesh.size)
        block = self._block_of(share)
        padded = -(-share // block) * block * self._mesh.size
        rows = self._shard(self._padded(self._stored.rows(start, stop), padded))
        return [start, rows, self._shard(self._padded(self._stored.live[start:stop], padded)), stop - start]

    def _block_of(self, share: int) -> int:
        return min(self._block, max(_SMALLEST_BLOCK, 1 << max(share - 1, 0).bit_length()))

    @staticmethod
    def _padded(array: np.ndarray, length: int) -> np.ndarray:
        """`array` with zeros behind it, up to `length`. It is itself where it is that long already; else a copy in
        memory, of mapped vectors too, which goes when the devices have theirs."""
        if len(array) == length:
            return array
        padded = np.zeros((length, *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        return padded

    def _shard(self, array: np.ndarray, axis: int = 0) -> jax.Array:
        return jax.device_put(array, NamedSharding(self._mesh, PartitionSpec(*[None] * axis, self._mesh.axis_names)))

    def _search_batch(self, queries, k: int, allowed: Bool[np.ndarray, "filters n"] | None) -> Found:
        batch = len(queries)
        if not batch or not self.num_documents:
            return nothing_found(batch, k)
        size = 1 << (batch - 1).bit_length()  # few shapes, few compilations
        on_devices = jax.device_put(self._padded(queries, size), NamedSharding(self._mesh, PartitionSpec()))
        best = streaming.nothing(size, min(k, self.num_documents))
        in_flight: list = []
        for first, rows, live, count in self._parts():
            filters = None
            if allowed is not None:
                cut = np.zeros((1 if len(allowed) == 1 else size, len(rows)), bool)
                cut[: len(allowed), :count] = allowed[:, first : first + count]
                filters = self._shard(cut, axis=1)
            block = self._block_of(len(rows) // self._mesh.size)
            best = streaming.search_part(
                on_devices, rows, live, filters, jnp.int32(first), best, block=block, mesh=self._mesh
            )
            in_flight.append(best[0])
            if len(in_flight) > 2:  # so that no more than the next part waits on the device
                jax.block_until_ready(in_flight.pop(0))
        scores, positions = np.asarray(best[0])[:batch], np.asarray(best[1])[:batch]
        return merge([(np.where(np.isneginf(scores), -1, positions), scores)], k)

    def _parts(self):
        """All parts by rising position; those that do not stay on the devices are sent when their turn comes."""
        border = len(self._stored.main)
        yield from (part for part in self._resident if part[0] < border)
        for start in self._streamed:
            yield self._part(start, min(start + self._per_round(), border))
        yield from (part for part in self._resident if part[0] >= border)

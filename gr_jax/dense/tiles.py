"""Documents stored contiguously by cluster."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import storage
from gr_jax.dense.base import held
from gr_jax.errors import InputError

SCALES = ("row", "dimension")


@dataclasses.dataclass(frozen=True)
class Codes:
    """Vectors as int8: vector[i, j] ≈ codes[i, j] · row_scales[i] · dimension_scales[j].

    Attributes:
      codes: int8[entries, d].
      row_scales: float32[entries], ones where each dimension has its scale.
      dimension_scales: float32[d], ones where each row has its scale.
    """

    codes: Int[np.ndarray, "entries d"]
    row_scales: Float[np.ndarray, " entries"]
    dimension_scales: Float[np.ndarray, " d"]


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Vectors sorted by cluster, inside a cluster by document. A document of several clusters stands in each.

    Attributes:
      offsets: int64[clusters + 1]; the entries of cluster c are offsets[c]:offsets[c + 1].
      documents: int32[entries], the position of each entry's document.
      rows: float32[entries, d]; memory-mapped where they were read so, until tiles are joined.
      codes: the same as int8, or None.
      multiplicity: the most clusters that one document is in.
    """

    offsets: Int[np.ndarray, " clusters_plus_1"]
    documents: Int[np.ndarray, " entries"]
    rows: Float[np.ndarray, "entries d"]
    codes: Codes | None
    multiplicity: int

    @property
    def num_clusters(self) -> int:
        """Clusters, empty ones included."""
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        codes = () if self.codes is None else (self.codes.codes, self.codes.row_scales)
        return held(self.offsets, self.documents, self.rows, *codes)

    def clusters(self) -> Int[np.ndarray, " entries"]:
        """The cluster of each entry."""
        return np.repeat(np.arange(self.num_clusters, dtype=np.int32), np.diff(self.offsets))

    @functools.cached_property
    def largest(self) -> int:
        """Entries of the largest cluster."""
        return int(np.diff(self.offsets).max(initial=0))

    @functools.cached_property
    def sums(self) -> Float[np.ndarray, "clusters d"]:
        """The sum of each cluster's vectors."""
        sizes = np.diff(self.offsets)
        sums = np.zeros((self.num_clusters, self.rows.shape[1]), np.float32)
        filled = sizes > 0
        if filled.any():
            sums[filled] = np.add.reduceat(self.rows, self.offsets[:-1][filled], axis=0)
        return sums

    def holding(self, keep: Bool[np.ndarray, "rows documents"]) -> Bool[np.ndarray, "rows clusters"]:
        """Which clusters have an entry of a document that is kept."""
        found = np.zeros((len(keep), self.num_clusters), bool)
        filled = np.diff(self.offsets) > 0
        if filled.any():
            starts = self.offsets[:-1][filled]
            found[:, filled] = np.logical_or.reduceat(keep[:, self.documents], starts, axis=1)
        return found

    def contains(self, documents: Int[np.ndarray, " k"], cluster: int) -> Bool[np.ndarray, " k"]:
        """Which documents are in a cluster."""
        inside = self.documents[self.offsets[cluster] : self.offsets[cluster + 1]]  # ascending
        places = np.searchsorted(inside, documents)
        return (places < len(inside)) & (np.append(inside, -1)[places] == documents)

    def live_sums(
        self, live: Bool[np.ndarray, " documents"]
    ) -> tuple[Float[np.ndarray, "clusters d"], Int[np.ndarray, " clusters"]]:
        """The sum and the number of each cluster's vectors, without those of removed documents.

        Args:
          live: False where a document was removed.
        """
        kept = live[self.documents]
        sizes = np.bincount(self.clusters()[kept], minlength=self.num_clusters)
        fewer = np.flatnonzero(sizes < np.diff(self.offsets))
        if not len(fewer):
            return self.sums, sizes
        sums = self.sums.copy()
        for cluster in fewer:  # summed anew: taking off what was removed would leave rounding errors of the whole
            part = slice(self.offsets[cluster], self.offsets[cluster + 1])
            sums[cluster] = self.rows[part][kept[part]].sum(axis=0)
        return sums, sizes


def lay_out(
    vectors: Float[np.ndarray, "n d"],
    source: Int[np.ndarray, " entries"],
    documents: Int[np.ndarray, " entries"],
    clusters: Int[np.ndarray, " entries"],
    num_clusters: int,
    scale: str | None,
    multiplicity: int,
) -> Tiles:
    """Sorts vectors by cluster, into new arrays in memory.

    Args:
      vectors: [n, d]; mapped ones are read, and copied in the new order.
      source: the row of `vectors` that each entry is.
      documents: position of each entry's document.
      clusters: the cluster of each entry.
      num_clusters: clusters in all.
      scale: "row" or "dimension" for int8 codes beside the rows; None for rows alone.
      multiplicity: the most clusters that one document is in.
    """
    order = np.lexsort((documents, clusters))
    offsets = np.zeros(num_clusters + 1, np.int64)
    np.cumsum(np.bincount(clusters, minlength=num_clusters), out=offsets[1:])
    rows = np.asarray(vectors[source[order]])
    codes = None if scale is None else encode(rows, scale)
    return Tiles(offsets, documents[order].astype(np.int32), rows, codes, max(multiplicity, 1))


def join(parts: list[Tiles], live: Bool[np.ndarray, " documents"], scale: str | None) -> Tiles:
    """One of several tiles of the same clusters and of different documents, without those that are not live.

    The rows are copied into memory, mapped ones too: one part after the other first, then in their order; the first of
    the copies goes at the end.
    """
    documents = np.concatenate([part.documents for part in parts])
    clusters = np.concatenate([part.clusters() for part in parts])
    source = np.flatnonzero(live[documents])
    rows = np.concatenate([part.rows for part in parts])
    multiplicity = max(part.multiplicity for part in parts)
    return lay_out(rows, source, documents[source], clusters[source], parts[0].num_clusters, scale, multiplicity)


def encode(rows: Float[np.ndarray, "entries d"], scale: str, *, block: int = 1 << 16) -> Codes:
    """Rounds vectors to int8.

    Args:
      rows: [entries, d].
      scale: "row": each vector's largest number becomes ±127; "dimension": each dimension's does.
      block: rows that are rounded at once.

    Raises:
      InputError: an unknown scale.
    """
    if scale not in SCALES:
        raise InputError("unknown scale of int8 codes", f"Choose among {', '.join(SCALES)}.", value=scale)
    entries, width = rows.shape
    codes = np.empty((entries, width), np.int8)
    row_scales, dimension_scales = np.ones(entries, np.float32), np.ones(width, np.float32)
    if scale == "dimension":
        largest = np.zeros(width, np.float32)
        for start in range(0, entries, block):
            np.maximum(largest, np.abs(rows[start : start + block]).max(axis=0), out=largest)
        dimension_scales = scale_of(largest)
    for start in range(0, entries, block):
        part = slice(start, min(start + block, entries))
        codes[part], row_scales[part] = rounded(rows[part], dimension_scales, scale == "row")
    return Codes(codes, row_scales, dimension_scales)


def rounded(
    rows: Float[np.ndarray, "some d"], dimension_scales: Float[np.ndarray, " d"], by_row: bool
) -> tuple[Int[np.ndarray, "some d"], Float[np.ndarray, " some"]]:
    """Codes of some rows, and their scales, ones unless each row has its own."""
    scaled, row_scales = rows / dimension_scales, np.ones(len(rows), np.float32)
    if by_row:
        row_scales = scale_of(np.abs(scaled).max(axis=1))
        scaled = scaled / row_scales[:, None]
    return np.rint(scaled).astype(np.int8), row_scales


def scale_of(largest: np.ndarray) -> np.ndarray:
    """Scales at which these numbers become ±127."""
    return np.where(largest > 0, largest / 127, 1).astype(np.float32)


def candidates(k: int, overfetch: float | None) -> int:
    """How many of the best by int8 codes are scored again so that the k best are nearly surely among them; k where the
    codes' own scores stand (None)."""
    return k if overfetch is None else math.ceil(overfetch * k) + 16


def write(tiles: Tiles, folder: pathlib.Path) -> None:
    """Writes the arrays of tiles into a folder."""
    np.save(folder / "offsets.npy", tiles.offsets)
    np.save(folder / "documents.npy", tiles.documents)
    np.save(folder / "rows.npy", tiles.rows)
    if tiles.codes is not None:
        np.save(folder / "codes.npy", tiles.codes.codes)
        np.save(folder / "row_scales.npy", tiles.codes.row_scales)
        np.save(folder / "dimension_scales.npy", tiles.codes.dimension_scales)


def read(folder: pathlib.Path, *, multiplicity: int, coded: bool, mmap: bool) -> Tiles:
    """Reads what `write` wrote. The rows are mapped where `mmap`; of codes, which every search reads, nothing is."""
    codes = None
    if coded:
        parts = ("codes", "row_scales", "dimension_scales")
        codes = Codes(*(storage.load_array(folder / f"{name}.npy") for name in parts))
    offsets = storage.load_array(folder / "offsets.npy", dtype=np.int64, ndim=1)
    documents = storage.load_array(folder / "documents.npy", dtype=np.int32, ndim=1)
    rows = storage.load_array(folder / "rows.npy", mmap=mmap, dtype=np.float32, ndim=2)
    entries = len(documents)
    coded_so = codes is None or (
        codes.codes.shape == rows.shape
        and codes.row_scales.shape == rows.shape[:1]
        and codes.dimension_scales.shape == rows.shape[1:]
    )
    ascend = len(offsets) and offsets[0] == 0 and offsets[-1] == entries and (offsets[1:] >= offsets[:-1]).all()
    if not ascend or len(rows) != entries or not coded_so:
        raise InputError("clusters, documents and vectors do not fit together", "Make it again.", file=folder)
    return Tiles(offsets, documents, rows, codes, multiplicity)

"""A clustered search of more vectors than fit into memory, written block by block."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from jaxtyping import Float, Int

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.dense import clustered
from gr_jax.dense import tiles as tiles_lib
from gr_jax.dense.base import check_clusters, check_vectors
from gr_jax.errors import InputError


class Vectors(Protocol):
    """A matrix of which some rows are read at a time: an array, a memory map, or what makes rows when asked."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some d"]: ...


def build_clustered(
    folder: str | os.PathLike,
    vectors: Vectors,
    clusters: Int[np.ndarray, " n"] | Int[np.ndarray, "n m"],
    *,
    num_clusters: int | None = None,
    codes: str | None = "row",
    chosen: int = 32,
    overfetch: float | None = 1.25,
    block: int = 1 << 16,
    progress: bool = False,
) -> None:
    """Writes what `ClusteredSearch(vectors, clusters, …).save(folder)` would, with a block of vectors in memory at a
    time. Documents' numbers and clusters are held: 20 bytes a document.

    Args:
      folder: where the artefact goes; `ClusteredSearch.load` opens it, float32 rows on the disk.
      vectors: [n, d]; every row is read once, twice with codes="dimension", in the order of the clusters.
      clusters, num_clusters, codes, chosen, overfetch: as of `ClusteredSearch`.
      block: rows at a time.
      progress: show a bar.

    Raises:
      InputError: as of `ClusteredSearch`; the disk is full, before anything is replaced.
    """
    count, width = vectors.shape
    if codes not in (None, *tiles_lib.SCALES) or block < 1:
        raise InputError(
            "unknown scale of int8 codes, or empty blocks",
            f"Choose None, {', '.join(tiles_lib.SCALES)}; give block ≥ 1.",
            value=(codes, block),
        )
    clustered.check_settings(chosen, overfetch)
    clusters = check_clusters(clusters, count, num_clusters)
    total = max(num_clusters or 0, int(clusters.max(initial=-1)) + 1, 1)
    source, place = np.nonzero(clusters >= 0)
    of = clusters[source, place]
    order = np.argsort(of, kind="stable")  # documents ascend in every cluster, as they do in `source`
    entries = source[order].astype(np.int32)
    offsets = np.zeros(total + 1, np.int64)
    np.cumsum(np.bincount(of, minlength=total), out=offsets[1:])
    multiplicity = int((clusters >= 0).sum(axis=1).max(initial=1))
    del source, place, of, order
    meta = {"chosen": chosen, "codes": codes, "overfetch": overfetch, "documents": count, "multiplicity": multiplicity}
    starts = range(0, len(entries), block)
    with storage.write_folder(folder, clustered.KIND, meta=meta) as new:
        np.save(new / "offsets.npy", offsets)
        np.save(new / "documents.npy", entries)
        np.save(new / "live.npy", np.ones(count, bool))
        scales = np.ones(width, np.float32)
        if codes == "dimension":
            largest = np.zeros(width, np.float32)
            for start in starts:
                np.maximum(largest, np.abs(vectors[entries[start : start + block]]).max(axis=0), out=largest)
            scales = tiles_lib.scale_of(largest)
        rows = storage.new_array(new / "rows.npy", np.float32, (len(entries), width))
        coded = None if codes is None else storage.new_array(new / "codes.npy", np.int8, (len(entries), width))
        row_scales = np.ones(len(entries), np.float32)
        with progress_lib.bar("Sorting vectors by cluster", len(entries), enabled=progress) as bar:
            for start in starts:
                part = slice(start, start + block)
                found = check_vectors(np.asarray(vectors[entries[part]], np.float32), width)
                rows[part] = found
                if coded is not None:
                    coded[part], row_scales[part] = tiles_lib.rounded(found, scales, codes == "row")
                bar.advance(len(found))
        for array in (rows, coded):
            if array is not None:
                array.flush()
        if codes is not None:
            np.save(new / "row_scales.npy", row_scales)
            np.save(new / "dimension_scales.npy", scales)

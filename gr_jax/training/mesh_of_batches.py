"""The devices that a training's batches are split over, and what cannot be split."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from gr_jax import processes
from gr_jax.errors import InputError
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.task import TrainSettings


def mesh_of(settings: TrainSettings, input_shapes: Mapping[str, tuple[int, ...]]) -> Mesh:
    """The devices to train on.

    Args:
      settings: of the training; without a mesh it is as many devices as the rows can be split over.
      input_shapes: of a batch.

    Raises:
      InputError: batches cannot be split over these devices and into microbatches, or processes get unequal shares.
    """
    rows, microbatches = math.gcd(*(shape[0] for shape in input_shapes.values())), settings.microbatches
    mesh = settings.mesh if settings.mesh is not None else all_that_fit(rows // microbatches)
    if rows % (microbatches * mesh.shape["data"]):
        raise InputError(
            f"a batch of {rows} rows cannot be split into {microbatches} microbatches on {mesh.shape['data']} devices",
            "Choose a batch size that is a multiple of both.",
            value=rows,
        )
    _check_shares(mesh)
    # Rows that are each other's negatives: apart from each other they would still be a loss, but another one.
    together = "document_index" in input_shapes or len({shape[0] for shape in input_shapes.values()}) > 1
    if microbatches > 1 and together:
        raise InputError(
            "the rows of these batches belong together and cannot be split into microbatches",
            "Use microbatches=1. A bi-encoder or late-interaction model computes its batch in parts by its `chunks`; "
            "for a cross-encoder make batches of fewer queries or fewer negatives.",
            value=microbatches,
        )
    return mesh


def all_that_fit(rows: int) -> Mesh:
    """As many devices as rows can be split over, as many of each process."""
    if processes.count() == 1:
        return make_mesh(math.gcd(rows or 1, jax.device_count()))
    each = math.gcd(max(rows // processes.count(), 1), jax.local_device_count())
    devices = [device for one in range(processes.count()) for device in jax.devices() if device.process_index == one]
    chosen = [device for number, device in enumerate(devices) if number % jax.local_device_count() < each]
    return make_mesh(len(chosen), devices=chosen)


def _check_shares(mesh: Mesh) -> None:
    """Raises InputError where processes have not equal shares of a batch's rows, in their order."""
    count, along = processes.count(), mesh.shape["data"]
    owners = [{device.process_index for device in row.flat} for row in mesh.devices]
    if count > 1 and owners != [{place * count // along} for place in range(along)]:
        raise InputError(
            f"this mesh does not give each of {count} processes an equal share of a batch's rows",
            f"Use mesh=(0, 1), or axes whose product is all {jax.device_count()} devices, with a data axis that is a "
            f"multiple of {count}.",
            value=dict(mesh.shape),
        )

"""Reads the arrays of checkpoints that earlier versions wrote, with Orbax; the manifest has vouched for their files."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from gr_jax.errors import InputError
from gr_jax.training.train_state import Flat, flatten, unflatten


def restore(folder: pathlib.Path, described: Mapping[str, Any], groups: list[str]) -> dict[str, Flat]:
    """Reads `groups` as NumPy arrays; the others stay on disk.

    Args:
      folder: of the checkpoint; its files are in `state`.
      described: group → path → [shape, dtype].
      groups: of these.

    Raises:
      InputError: Orbax cannot read it.
    """
    import orbax.checkpoint as ocp  # half a second, needed only here

    item = {
        group: {path: jax.ShapeDtypeStruct(tuple(shape), dtype) for path, (shape, dtype) in described[group].items()}
        for group in groups
        if described.get(group)
    }
    if not item:
        return {group: {} for group in groups}
    tree = {group: unflatten(flat) for group, flat in item.items()}
    args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    wanted = ocp.args.PyTreeRestore(item=tree, restore_args=args, partial_restore=True)
    with _quiet():
        try:
            restored = ocp.PyTreeCheckpointer().restore(folder.absolute() / "state", args=wanted)
        except Exception as error:
            raise InputError(
                f"Orbax cannot read this checkpoint: {(str(error).splitlines() or [repr(error)])[0]}",
                "Read it with the version of orbax-checkpoint that wrote it, or remove it.",
                file=folder,
            ) from error
    return {group: flatten(restored.get(group, {})) for group in groups}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax warns once per array that is a NumPy array; errors still pass."""
    logger = logging.getLogger("absl")

    def serious(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    logger.addFilter(serious)
    try:
        yield
    finally:
        logger.removeFilter(serious)

"""Long work of a stage block by block, each written whole, so that a killed run goes on where it was."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable

import numpy as np

from gr_jax import processes, sharing, storage
from gr_jax import progress as progress_lib

Advance = Callable[[int], None]


def in_blocks(
    work: pathlib.Path,
    name: str,
    total: int,
    size: int,
    make: Callable[[range, Advance], np.ndarray],
    *,
    title: str,
    where: str | None = None,
    progress: bool = True,
) -> list[pathlib.Path]:
    """Files of arrays, one of each block, which processes share out: process i of n makes every n-th.

    Args:
      work: where the files are kept; they stay. Of a stage `Place.common`.
      name: of the files.
      total: how many rows the blocks are of.
      size: rows of a block.
      make: rows of a block → its array; tells the bar how many are done.
      title: of the bar.
      where: what is interrupted, such as "while asking the teacher": processes that are asked to stop end behind a
        block. None: they do not.
      progress: show a bar.

    Raises:
      Stopped: behind a block, where all processes were asked to end.
    """
    blocks = [range(start, min(start + size, total)) for start in range(0, total, size)]
    files = [work / f"{name}_{block.start}.npy" for block in blocks]
    index, number_of = processes.share()
    work.mkdir(parents=True, exist_ok=True)
    with progress_lib.bar(title, sum(map(len, blocks[index::number_of])), enabled=progress) as bar:
        for number in sharing.rounds(len(blocks), where):
            if number >= len(blocks):
                continue
            if files[number].is_file():
                bar.advance(len(blocks[number]))
                continue
            with processes.alone():
                _write(files[number], make(blocks[number], bar.advance))
    if number_of > 1:
        processes.gather(f"blocks of {name}", None)
    return files


def _write(file: pathlib.Path, array: np.ndarray) -> None:
    content = io.BytesIO()
    np.save(content, array)
    storage.write_bytes(file, content.getvalue())

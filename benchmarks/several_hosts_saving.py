"""What a save of 1 GB costs: its checksums, and the training that goes on meanwhile.

A row of `benchmarks.several_hosts`.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks import harness

GIGABYTE = 1 << 30
REPEATS = 7


def saving(size: int = GIGABYTE) -> Mapping[str, float]:
    """What checksums add to the time of writing, and how much training waits for a save and is slowed by it."""
    from gr_jax.training import checkpoint_arrays
    from gr_jax.training.checkpoints import Checkpoints, Snapshot

    piece = np.random.default_rng(0).integers(0, 255, size // 16, np.uint8)
    arrays = {"params": {f"layer_{n}": np.roll(piece, n).view(np.float32) for n in range(16)}}
    pieces = checkpoint_arrays.own_pieces(arrays)
    with tempfile.TemporaryDirectory(dir=_disk()) as name:
        root = pathlib.Path(name)
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(REPEATS):
            for summed in (True, False):
                with _checksums(summed):
                    times[summed].append(_seconds(lambda: checkpoint_arrays.write(root, pieces)))
        store = Checkpoints(root / "checkpoints", {}, keep=1)
        alone = statistics.median(_seconds(_work) for _ in range(20))
        blocked = _seconds(lambda: store.save(Snapshot(1, {}, {}), arrays))
        begun, beside = time.monotonic(), []
        while store._writing is not None and not store._writing.done():
            beside.append(_seconds(_work))
        written = time.monotonic() - begun
        store.close()
    return {
        "write_s": statistics.median(times[True]),
        "without_checksums_s": statistics.median(times[False]),
        "checksums_add": min(times[True]) / min(times[False]) - 1,  # of the fastest: others use the disk too
        "training_waits_s": blocked,
        "written_in_s": written,
        "steps_meanwhile": float(len(beside)),
        "step_takes_times": statistics.median(beside) / alone if beside else float("inf"),
    }


def _disk() -> pathlib.Path:
    folder = harness.CHECKOUT / "runs"
    folder.mkdir(exist_ok=True)
    return folder


def _seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


@functools.cache
def _matrix() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1200, 1200)).astype(np.float32)


def _work() -> None:
    """As much as a small step of training."""
    _matrix() @ _matrix()


@contextlib.contextmanager
def _checksums(summed: bool) -> Iterator[None]:
    """Without them where `summed` is False."""
    from gr_jax.training import checkpoint_arrays

    before = checkpoint_arrays.CHECKSUMS
    if not summed:
        checkpoint_arrays.CHECKSUMS = dict.fromkeys(before, lambda data: 0)  # type: ignore[assignment]
    try:
        yield
    finally:
        checkpoint_arrays.CHECKSUMS = before  # type: ignore[assignment]


def rows() -> Sequence[harness.Row]:
    """The table."""
    return [
        harness.Row(
            name="saving 1 GB",
            config={"bytes": GIGABYTE, "repeats": REPEATS},
            measure=saving,
            at_least={"steps_meanwhile": 1.0},
            at_most={"checksums_add": 0.03},
            note="a checkpoint in the background",
            speed=True,
        )
    ]

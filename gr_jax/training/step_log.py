"""Metrics of steps: from the devices to the curves and the progress bar."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Iterator

import jax

from gr_jax import progress as progress_lib
from gr_jax.training.faults import Faults, Watch
from gr_jax.training.metric_writers import MetricWriter
from gr_jax.training.train_state import Flat


class StepLog:
    """Gathers metrics of steps and reports means; one step late, so that the device never waits for the host.

    Args:
      writer: of curves.
      bar: what is shown.
      every: steps between what is written.
      watch: judges every loss.
    """

    def __init__(self, writer: MetricWriter, bar: progress_lib.Bar, every: int, watch: Watch | None = None):
        self._writer, self._bar, self._every = writer, bar, max(every, 1)
        self._watch = Watch(Faults()) if watch is None else watch
        self._pending: collections.deque[tuple[int, Flat, int]] = collections.deque()
        self._sums: dict[str, tuple[float, float]] = {}
        self._examples, self._since = 0, time.monotonic()

    def add(self, step: int, metrics: Flat, examples: int) -> None:
        """Notes the metrics of one update, which may not be computed yet."""
        self._pending.append((step, metrics, examples))
        while len(self._pending) > 1:
            self._read()

    def flush(self) -> None:
        """Waits for every step that was started.

        Raises:
          FloatingPointError, GoBack: see `Watch.judge`.
        """
        while self._pending:
            self._read()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Evaluating and saving is not training time."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._since += time.monotonic() - start

    def _read(self) -> None:
        step, metrics, examples = self._pending.popleft()
        values = {name: (float(total), float(weight)) for name, (total, weight) in jax.device_get(metrics).items()}
        loss = values["loss"][0] / (values["loss"][1] or 1.0)
        sound = math.isfinite(loss) and math.isfinite(values["gradient_norm"][0])
        self._watch.judge(step, loss, values["gradient_norm"][0])
        for name, (total, weight) in values.items():
            if not sound and not (math.isfinite(total) and math.isfinite(weight)):  # of an update that was left out
                continue
            before = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (before[0] + total, before[1] + weight)
        self._examples += examples
        speed = self._examples / max(time.monotonic() - self._since, 1e-9)
        self._bar.advance(1, f"loss {loss:.3f} · {speed:.0f} examples/s")
        if step % self._every == 0:
            means = {f"train/{name}": total / (weight or 1.0) for name, (total, weight) in self._sums.items()}
            self._writer.write(step, {**means, "train/examples_per_second": speed})
            self._sums, self._examples, self._since = {}, 0, time.monotonic()

"""Where numbers go during training: `metrics.jsonl`, and TensorBoard where it is wanted."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError


class MetricWriter:
    """Appends one JSON object {"step": …, name: value, …} per call to `metrics.jsonl`.

    Args:
      folder: where the file lies; None writes nothing.
      step: step from which training goes on; lines of later steps, written before a kill, are dropped, so that no step
        stands there twice. None begins anew.
      tensorboard: write event files too; needs clu and TensorFlow, whose import takes seconds.
    """

    def __init__(self, folder: str | os.PathLike | None, *, step: int | None = None, tensorboard: bool = False):
        self._file, self._tensorboard = None, None
        if folder is None:
            return
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "metrics.jsonl"
        storage.refuse_no_file(path)
        if path.exists():
            kept = [] if step is None else [record for record in read_metrics(path) if record["step"] <= step]
            storage.write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = open(path, "a", encoding="utf-8", buffering=1)
        if tensorboard:
            self._tensorboard = _tensorboard(folder)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one line; `step` is the number of updates the values belong to."""
        if self._file is not None:
            self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        if self._tensorboard is not None:
            self._tensorboard.write_scalars(step, dict(metrics))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()


def read_metrics(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`.

    One that a kill cut short, that is damaged, or that has a value that is no number is left out.
    """
    records = []
    for line in pathlib.Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
            values = [float(value) for value in record.values()]
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        if values and type(record.get("step")) is int:
            records.append(record)
    return records


def _tensorboard(folder: pathlib.Path) -> Any:
    for package in ("clu", "tensorflow"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"TensorBoard files need the package {package}",
                "pip install clu tensorboard tensorflow, or leave tensorboard=False: metrics.jsonl has all.",
            )
    from clu import metric_writers

    return metric_writers.SummaryWriter(os.fspath(folder))

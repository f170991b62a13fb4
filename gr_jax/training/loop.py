"""The training loop: read it from `train` downwards.

A run is a function of its settings: batches follow from a seed and a place in the data, dropout from a seed and the
step, and a checkpoint has everything else. So a run that was killed and started again ends with the same bits as one
that never was.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gin
import jax
import numpy as np
from grain.experimental import ThreadPrefetchDatasetIterator
from jax.sharding import Mesh

from gr_jax import progress as progress_lib
from gr_jax.errors import InputError
from gr_jax.training import checkpoints as checkpoints_lib
from gr_jax.training.metric_writers import MetricWriter
from gr_jax.training.optimizers import Optimizer
from gr_jax.training.packing import count_examples
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.train_state import Flat, Model, Params, Trainer, TrainState, flatten, unflatten

Evaluate = Callable[[Params, int], Mapping[str, float]]
_PREFETCH = 4  # batches that are made while the device computes


@gin.configurable(module="gr_jax.training")
@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Which parameters are kept, and when to stop.

    Attributes:
      metric: the name, among what `evaluate` returns, that decides; the parameters with its best value are kept.
      patience: evaluations in a row without a better value after which training stops; 0 never stops.
      mode: "max" or "min": what is better.
    """

    metric: str
    patience: int = 0
    mode: str = "max"

    def __post_init__(self):
        if self.mode not in ("max", "min"):
            raise InputError("early stopping looks for the max or the min", "Use one of them.", value=self.mode)


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training ends with.

    Attributes:
      params: nested; those of the best evaluation where `early_stopping` was given, else the last.
      step: updates that made them.
      last_step: updates made in all.
      history: every evaluation, {"step": …, name: value, …}.
      stopped_early: whether `early_stopping` ended it.
    """

    params: Params
    step: int
    last_step: int
    history: list[dict[str, float]]
    stopped_early: bool = False


@gin.configurable(module="gr_jax.training", denylist=["model", "batches", "initial_params", "evaluate"])
def train(
    model: Model,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    steps: int,
    optimizer: Optimizer,
    model_dir: str | os.PathLike | None = None,
    mesh: Mesh | None = None,
    shard_over_data: bool = False,
    seed: int = 0,
    microbatches: int = 1,
    initial_params: Params | None = None,
    evaluate: Evaluate | None = None,
    eval_every: int = 0,
    evaluate_first: bool = False,
    early_stopping: EarlyStopping | None = None,
    checkpoint_every: int = 0,
    keep_checkpoints: int = 2,
    log_every: int = 20,
    tensorboard: bool = False,
    config: Any = None,
    progress: bool = False,
) -> TrainResult:
    """Trains, going on from the latest checkpoint in `model_dir` if there is one.

    Args:
      model: has T5X's `loss_fn(params, batch, dropout_rng) → (sum of losses, metrics with "weight_sum")` and
        `get_initial_variables(rng, input_shapes, input_types)`. The numbers, strings and booleans among its fields must
        be the same when training goes on.
      batches: what `make_batches` returns, or any iterable whose iterators have grain's `get_state` and `set_state`.
      steps: updates in all, those before a restart included. Ends earlier where the batches do.
      optimizer: `adamw(…)` or `adafactor(…)`.
      model_dir: where checkpoints and `metrics.jsonl` go; None writes nothing.
      mesh: devices; None puts all on the data axis, as far as the batch can be split.
      shard_over_data: split parameters and optimiser state over the data axis too.
      seed: of initial values and dropout.
      microbatches: parts in which a batch is computed one after the other; saves memory. Contrastive batches are not
        split: their rows are each other's negatives.
      initial_params: nested or flat; any part of the parameters, the rest begins at random.
      evaluate: (nested params, step) → {"dev/RR@10": …}. Must not keep the arrays: the next step overwrites them.
      eval_every: steps between evaluations; 0 only after the last.
      evaluate_first: also before the first step.
      early_stopping: keeps the parameters of the best evaluation, and may stop.
      checkpoint_every: steps between checkpoints; 0 only after the last.
      keep_checkpoints: how many of the latest; the best is kept besides.
      log_every: steps between lines of `metrics.jsonl`.
      tensorboard: write TensorBoard files too.
      config: anything JSON that shall be the same when training goes on (the model's sizes, the full gin text).
      progress: show a bar with loss and examples a second.

    Returns:
      The parameters and how training went.

    Raises:
      InputError: the checkpoint found is damaged or was made with other settings, `initial_params` do not fit, the
        batch cannot be split over mesh and microbatches, or the disk is full.
      FloatingPointError: loss or gradient is not finite.
    """
    input_shapes = getattr(batches, "input_shapes", None) or {k: v.shape for k, v in next(iter(batches)).items()}
    rows = next(iter(input_shapes.values()))[0]
    mesh = mesh if mesh is not None else make_mesh(math.gcd(rows // microbatches or 1, jax.device_count()))
    if rows % (microbatches * mesh.shape["data"]):
        raise InputError(
            f"a batch of {rows} rows cannot be split into {microbatches} microbatches on {mesh.shape['data']} devices",
            "Choose a batch size that is a multiple of both.",
            value=rows,
        )
    # Rows that are each other's negatives: apart from each other they would still be a loss, but another one.
    together = "document_index" in input_shapes or len({shape[0] for shape in input_shapes.values()}) > 1
    if microbatches > 1 and together:
        raise InputError(
            "the rows of these batches belong together and cannot be split into microbatches",
            "Use microbatches=1. A bi-encoder or late-interaction model computes its batch in parts by its `chunks`; "
            "for a cross-encoder make batches of fewer queries or fewer negatives.",
            value=microbatches,
        )
    trainer = Trainer.create(model, optimizer, mesh, input_shapes, shard_over_data=shard_over_data)
    settings = {
        "batches": getattr(batches, "settings", None),
        "optimizer": optimizer.settings,
        "seed": seed,
        "microbatches": microbatches,
        "initial_params": _fingerprint(initial_params),
        "early_stopping": None if early_stopping is None else dataclasses.asdict(early_stopping),
        "eval_every": eval_every if early_stopping else None,
        "config": config,
        "model": scalar_settings(model),
    }
    folder = None if model_dir is None else pathlib.Path(model_dir)
    store = (
        None if folder is None else checkpoints_lib.Checkpoints(folder / "checkpoints", settings, keep=keep_checkpoints)
    )
    record = _Record(early_stopping)
    data = _prefetched(batches)

    found = None if store is None else store.latest()
    if store is None or found is None:
        learn, frozen = trainer.split(trainer.initial_params(seed, initial_params))
        state, step = trainer.initial_state(learn), 0
    else:
        snapshot, arrays = store.read(found, trainer.abstract_arrays())
        state, frozen = trainer.from_arrays(arrays)
        step = found
        record.restore(snapshot.progress)
        data.set_state(snapshot.data)
        del arrays

    update = trainer.update(seed=seed, microbatches=microbatches)
    writer = MetricWriter(folder, step=found, tensorboard=tensorboard)
    saved = found

    def look(state: TrainState) -> None:
        """Evaluates, unless these parameters were evaluated already."""
        if evaluate is not None and record.last_evaluated() != step:
            scores = {
                name: float(value) for name, value in evaluate(unflatten({**frozen, **state.params}), step).items()
            }
            if record.add(step, scores) and store is None:
                record.best_params = {path: np.array(value, copy=True) for path, value in state.params.items()}
            writer.write(step, scores)

    def save(state: TrainState) -> None:
        nonlocal saved
        if store is not None and saved != step:
            snapshot = checkpoints_lib.Snapshot(step, data.get_state(), record.progress())
            store.save(snapshot, trainer.to_arrays(state, frozen), best=record.best_step)
            saved = step

    try:
        with progress_lib.bar("Training", steps, enabled=progress) as bar:
            log = _Log(writer, bar, log_every, step)
            bar.advance(min(step, steps))
            if evaluate_first and step == 0 and steps > 0:
                look(state)
                if record.best_step == step:
                    save(state)
            while step < steps and not record.stopped:
                batch = next(data, None)
                if batch is None:
                    break
                state, metrics = update(state, frozen, trainer.place_batch(batch))
                step += 1
                log.add(step, metrics, count_examples(batch))
                evaluating = bool(eval_every) and step % eval_every == 0
                saving = bool(checkpoint_every) and step % checkpoint_every == 0
                if evaluating or saving:
                    log.flush()  # what is not finite must reach neither dev nor disk
                    with log.paused():
                        if evaluating:
                            look(state)
                        if saving or record.best_step == step:
                            save(state)
            log.flush()
            look(state)
            save(state)
        if store is not None:
            store.wait()
    finally:
        data.close()
        writer.close()
        if store is not None:
            store.close()

    params: Flat = {**frozen, **state.params}
    best = step if record.best_step is None else record.best_step
    if best != step:
        if store is None:
            params = {**frozen, **record.best_params}
        else:
            params = flatten(checkpoints_lib.load_params(checkpoints_lib.path_of(store.folder, best)))
    return TrainResult(unflatten(params), best, step, record.evaluations, record.stopped)


class _Record:
    """What the evaluations have said.

    Attributes:
      evaluations: all of them, in order.
      best_step: the step with the best value, None without early stopping or before the first.
      best_params: its parameters that learn, where there is no checkpoint to keep them.
      stopped: no better value for too long.
    """

    def __init__(self, early_stopping: EarlyStopping | None):
        self._rule = early_stopping
        self.evaluations: list[dict[str, float]] = []
        self.best_step: int | None = None
        self.best_params: Flat = {}
        self.stopped = False

    def add(self, step: int, scores: dict[str, float]) -> bool:
        """Records one evaluation; whether it is the best so far."""
        if self._rule is not None and self._rule.metric not in scores:
            raise InputError(
                "early stopping looks at a metric that evaluation does not return",
                f"Use one of {', '.join(sorted(scores)) or '(it returns none)'}.",
                value=self._rule.metric,
            )
        self.evaluations.append({"step": step, **scores})
        if self._rule is None:
            return False
        values = [record[self._rule.metric] for record in self.evaluations]
        sign = 1 if self._rule.mode == "max" else -1
        ranked = [-math.inf if math.isnan(value) else sign * value for value in values]
        best = max(range(len(ranked)), key=lambda n: (ranked[n], -n))  # of equal ones the first
        self.best_step = int(self.evaluations[best]["step"])
        self.stopped = bool(self._rule.patience) and len(ranked) - 1 - best >= self._rule.patience
        return self.best_step == step

    def last_evaluated(self) -> int | None:
        return int(self.evaluations[-1]["step"]) if self.evaluations else None

    def progress(self) -> dict[str, Any]:
        return {
            "evaluations": [dict(e) for e in self.evaluations],
            "best_step": self.best_step,
            "stopped": self.stopped,
        }

    def restore(self, progress: Mapping[str, Any]) -> None:
        self.evaluations = [dict(record) for record in progress["evaluations"]]
        self.best_step, self.stopped = progress["best_step"], progress["stopped"]


class _Log:
    """Gathers metrics of steps and reports means; one step late, so that the device never waits for the host."""

    def __init__(self, writer: MetricWriter, bar: progress_lib.Bar, every: int, step: int):
        self._writer, self._bar, self._every = writer, bar, max(every, 1)
        self._pending: collections.deque[tuple[int, Flat, int]] = collections.deque()
        self._sums: dict[str, tuple[float, float]] = {}
        self._examples, self._since, self._first = 0, time.monotonic(), step

    def add(self, step: int, metrics: Flat, examples: int) -> None:
        self._pending.append((step, metrics, examples))
        while len(self._pending) > 1:
            self._read()

    def flush(self) -> None:
        """Waits for every step that was started."""
        while self._pending:
            self._read()

    def paused(self) -> _Pause:
        """Evaluating and saving is not training time."""
        return _Pause(self)

    def shift(self, seconds: float) -> None:
        self._since += seconds

    def _read(self) -> None:
        step, metrics, examples = self._pending.popleft()
        values = {name: (float(total), float(weight)) for name, (total, weight) in jax.device_get(metrics).items()}
        loss = values["loss"][0] / (values["loss"][1] or 1.0)
        if not (math.isfinite(loss) and math.isfinite(values["gradient_norm"][0])):
            raise FloatingPointError(
                f"step {step}: loss {loss}, gradient norm {values['gradient_norm'][0]}. Lower the learning rate, "
                "warm up longer or clip gradients; the checkpoints before are as they were."
            )
        for name, (total, weight) in values.items():
            before = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (before[0] + total, before[1] + weight)
        self._examples += examples
        speed = self._examples / max(time.monotonic() - self._since, 1e-9)
        self._bar.advance(1, f"loss {loss:.3f} · {speed:.0f} examples/s")
        if step % self._every == 0:
            means = {f"train/{name}": total / (weight or 1.0) for name, (total, weight) in self._sums.items()}
            self._writer.write(step, {**means, "train/examples_per_second": speed})
            self._sums, self._examples, self._since = {}, 0, time.monotonic()


class _Pause:
    def __init__(self, log: _Log):
        self._log = log

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._log.shift(time.monotonic() - self._start)


class _Prefetched(ThreadPrefetchDatasetIterator):
    """Batches that are made ahead of training, by a thread."""

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except InputError:
            # A batch may need what training itself makes on its way, as refreshed negatives are. Made too far ahead it
            # failed; now that training has come to it, it is due.
            return super().__next__()


def _prefetched(batches: Iterable[Mapping[str, np.ndarray]]) -> ThreadPrefetchDatasetIterator:
    iterator: Any = iter(batches)
    if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
        raise InputError(
            "these batches cannot tell their place in the data, so training could not go on after a restart",
            "Give what make_batches returns, or a grain dataset of batches.",
            value=type(batches).__name__,
        )
    return _Prefetched(iterator, _PREFETCH)


def scalar_settings(model: Any) -> dict[str, Any]:
    """The numbers, strings and booleans among a model's fields, by name; those of its parts, by path.

    They decide what is learned and may come from gin, where nobody but the model knows them.

    Args:
      model: of what is no dataclass nothing is known.
    """
    if not dataclasses.is_dataclass(model) or isinstance(model, type):
        return {}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(model):
        value = getattr(model, field.name, None)
        if isinstance(value, (bool, int, float, str)):
            found[field.name] = value
        elif field.name != "parent":  # of a Flax module: what it belongs to
            found |= {f"{field.name}.{name}": part for name, part in scalar_settings(value).items()}
    return found


def _fingerprint(params: Params | None) -> str | None:
    """Of the values, so that a run is not continued from other beginnings than its own."""
    if params is None:
        return None
    digest = hashlib.sha256()
    for path, value in sorted(flatten(params).items()):
        host = np.asarray(value)
        digest.update(f"{path} {host.shape} {host.dtype}\n".encode())
        digest.update(np.ascontiguousarray(host).data.cast("B") if host.size else b"")
    return digest.hexdigest()[:16]

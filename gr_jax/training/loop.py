"""The training loop: read it from `train` downwards.

A run is a function of its settings: batches follow from a seed and a place in the data, dropout from a seed and the
step, what hooks make from the parameters of declared steps, and a checkpoint has everything else. So a run that was
killed and started again ends with the same bits as one that never was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from grain.experimental import ThreadPrefetchDatasetIterator

from gr_jax import processes
from gr_jax import progress as progress_lib
from gr_jax.errors import InputError, InputWarning
from gr_jax.models import half_precision
from gr_jax.training import checkpoints as checkpoints_lib
from gr_jax.training import on_hosts
from gr_jax.training.evaluations import Evaluations
from gr_jax.training.faults import GoBack, Watch
from gr_jax.training.hook_runs import HookRuns
from gr_jax.training.hooks import Arrays
from gr_jax.training.mesh_of_batches import mesh_of
from gr_jax.training.metric_writers import MetricWriter
from gr_jax.training.packing import count_examples
from gr_jax.training.step_log import StepLog
from gr_jax.training.task import Task, TrainSettings
from gr_jax.training.train_state import Flat, Params, Trainer, flatten, unflatten

_PREFETCH = 4  # batches that are made while the device computes


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What training ends with.

    Attributes:
      params: nested; those of the best evaluation where the task has `keep_best`, else the last.
      step: updates that made them.
      last_step: updates made in all.
      history: every evaluation, {"step": …, name: value, …}.
      stopped_early: whether `patience` ended it.
      tables: hook → the tables that were in effect in the last of the updates that made `params`.
    """

    params: Params
    step: int
    last_step: int
    history: list[dict[str, float]]
    stopped_early: bool = False
    tables: Mapping[str, Arrays] = dataclasses.field(default_factory=dict)


def train(
    task: Task,
    settings: TrainSettings,
    *,
    model_dir: str | os.PathLike | None = None,
    config: Any = None,
    progress: bool = False,
) -> TrainResult:
    """Trains, going on from the latest checkpoint in `model_dir` if there is one.

    Args:
      task: what is trained.
      settings: how.
      model_dir: where checkpoints and `metrics.jsonl` go; None writes nothing.
      config: anything JSON that shall be the same when training goes on (the model's sizes).
      progress: show a bar with loss and examples a second.

    Returns:
      The parameters and how training went.

    Raises:
      InputError: the checkpoint found is damaged or was made with other settings, `initial_params` do not fit, the
        batch cannot be split over mesh and microbatches, a hook returns what does not fit, or the disk is full.
      HookError: a hook raised something.
      FloatingPointError: loss or gradient is not finite, and the settings do not say what to do about it.
      Stopped: this process, or another one, was asked to end; what was done until then is in a checkpoint. Where faults
        go "back", only what was done until the last checkpoint that was due: the updates since are made again.
    """
    run = _Run(task, settings, None if model_dir is None else pathlib.Path(model_dir), config)
    try:
        with progress_lib.bar("Training", settings.steps, enabled=progress and processes.first()) as bar:
            run.to_the_end(bar)
    finally:
        run.close()
    return run.result()


class _Run:
    """A training under way: its parts, and where it is.

    Args:
      task, settings, config: see `train`.
      folder: of checkpoints and curves; None writes nothing.
    """

    def __init__(self, task: Task, settings: TrainSettings, folder: pathlib.Path | None, config: Any):
        self._task, self._settings, self._folder = task, settings, folder
        batches = task.batches
        input_shapes = getattr(batches, "input_shapes", None) or {k: v.shape for k, v in next(iter(batches)).items()}
        self._trainer = Trainer.create(
            task.model,
            settings.optimizer_of(task),
            mesh_of(settings, input_shapes),
            input_shapes,
            sharding=settings.sharding,
            precision=settings.precision,
            remat=settings.remat,
        )
        faults = settings.faults
        if faults.does("back") and (folder is None or task.hooks):
            raise InputError(
                "training goes back to a checkpoint only where there are some, and no hooks",
                'Give model_dir, and no hooks, or let Faults be "skip" or "stop".',
            )
        self._hooks = HookRuns(task.hooks, self._trainer, settings.steps)
        self._evaluations, self._watch = Evaluations(settings.choice_of(task)), Watch(faults)
        self._store = None
        if folder is not None:
            must_stay = _must_stay(task, settings, self._hooks, config)
            self._store = checkpoints_lib.Checkpoints(folder / "checkpoints", must_stay, keep=settings.keep_checkpoints)
        self._data = _prefetched(batches)
        self._stopping = False
        self._passed = 0  # batches since the checkpoint that are left out
        self._saved: int | None = None  # step of the newest checkpoint
        self._tables: Mapping[str, Arrays] = {}
        self._begin()
        self._update = self._trainer.update(
            seed=settings.seed, microbatches=settings.microbatches, skip=faults.does("skip")
        )
        self._writer = self._new_writer()

    def _begin(self) -> None:
        """From the newest checkpoint, or from the beginning."""
        trainer, hooks, found = self._trainer, self._hooks, None
        if self._store is not None:
            found = self._store.newest(trainer.abstract_arrays(), hooks.abstract, trainer.array_shardings())
        if found is None:
            learn, self._frozen = trainer.split(trainer.initial_params(self._settings.seed, self._task.initial_params))
            self._state, self._step = trainer.initial_state(learn), 0
            hooks.start()
        else:
            snapshot, arrays = found
            self._state, self._frozen = trainer.from_arrays(arrays)
            self._step = self._saved = snapshot.step
            self._evaluations.restore(snapshot.progress)
            self._watch.restore(snapshot.progress.get("faults"))
            self._data.set_state(snapshot.data)
            hooks.start(self._step, self._frozen, snapshot.hooks, arrays[checkpoints_lib.HOOKS])

    def _new_writer(self) -> MetricWriter:
        """Of curves that go on from the newest checkpoint."""
        folder = self._folder if processes.first() else None
        return MetricWriter(folder, step=self._saved, tensorboard=self._settings.tensorboard)

    def to_the_end(self, bar: progress_lib.Bar) -> None:
        """Trains.

        Raises:
          Stopped: this process, or another one, was asked to end.
        """
        settings, evaluations = self._settings, self._evaluations
        self._log = StepLog(self._writer, bar, settings.log_every, self._watch)
        bar.advance(min(self._step, settings.steps))
        if settings.evaluate_first and self._step == 0 and settings.steps > 0:
            self._look()
            if evaluations.best_step == self._step:
                self._save()
        if settings.faults.does("back") and self._saved is None:
            self._save()
        while True:
            try:
                if not self._advance():
                    break
            except GoBack as fault:
                self._go_back(fault, bar)
        if self._store is not None:
            self._store.wait()
        self._tables = self._hooks.tables(self._step)

    def _advance(self) -> bool:
        """One update and what is due after it; where there is none any more, what is due at the end, and False."""
        settings, hooks, batch = self._settings, self._hooks, None
        if self._step < settings.steps and not self._evaluations.stopped:
            # After evaluation and checkpoint of this step: whoever goes on from there comes here first.
            hooks.begin(self._step, self._state.params, self._frozen)
            batch = next(self._data, None)
        if batch is None:
            self._log.flush()
            self._look()
            hooks.finish()
            self._save()
            return False
        self._frozen = hooks.swap(self._step, self._frozen)
        self._state, metrics = self._update(
            self._state, self._frozen, self._trainer.place_batch(batch), self._watch.limit(self._step + 1)
        )
        self._step += 1
        self._log.add(self._step, metrics, count_examples(batch) * processes.count())
        self._after_update()
        return True

    def _after_update(self) -> None:
        settings, step = self._settings, self._step
        evaluating = bool(settings.eval_every) and step % settings.eval_every == 0
        saving = bool(settings.checkpoint_every) and step % settings.checkpoint_every == 0
        self._stopping = processes.stop_here() or self._stopping
        if evaluating or saving or self._stopping:
            self._log.flush()  # what is not finite must reach neither dev nor disk
            with self._log.paused():
                if evaluating:
                    self._look()
                # Where faults go back to a checkpoint, one of another step would change what comes after.
                stopping = self._stopping and not settings.faults.does("back")
                if saving or stopping or self._evaluations.best_step == step:
                    self._save()
        if self._stopping:
            if self._store is not None:
                self._store.wait()
            lost = "" if self._saved in (None, step) else f", with a checkpoint of step {self._saved}"
            raise processes.Stopped(f"after step {step} of {settings.steps}{lost}")

    def _look(self) -> None:
        """Evaluates, unless these parameters were evaluated already."""
        evaluate, evaluations, step = self._task.evaluate, self._evaluations, self._step
        if evaluate is None or evaluations.last() == step:
            return
        params = {path: on_hosts.local(x) for path, x in self._all_params().items()}

        def measure() -> dict[str, float]:
            with processes.ends_itself():
                return {name: float(value) for name, value in evaluate(unflatten(params), step).items()}

        scores = processes.by_all("evaluation", measure)
        if evaluations.add(step, scores) and self._store is None:
            copies = on_hosts.copies({path: params[path] for path in self._state.params})
            evaluations.best_params, evaluations.best_tables = {**params, **copies}, self._hooks.tables(step)
        self._writer.write(step, scores)

    def _save(self) -> None:
        """Writes a checkpoint, unless there is one of this step."""
        step = self._step
        if self._store is None or self._saved == step:
            return
        kept, made = self._hooks.state(step, self._frozen)
        progress = {**self._evaluations.progress(), **self._watch.progress()}
        snapshot = checkpoints_lib.Snapshot(step, self._data.get_state(), progress, kept)
        arrays = {**self._trainer.to_arrays(self._state, self._frozen), checkpoints_lib.HOOKS: made}
        self._store.save(snapshot, arrays, best=self._evaluations.best_step)
        self._saved, self._passed = step, 0
        self._watch.saved()

    def _go_back(self, fault: GoBack, bar: progress_lib.Bar) -> None:
        """To the latest checkpoint, behind all the data that was used since, here and in earlier goings back."""
        store, trainer = self._store, self._trainer
        assert store is not None
        store.wait()
        there = store.newest(trainer.abstract_arrays(), None, trainer.array_shardings())
        if there is None:
            raise FloatingPointError(f"{fault}. There is no checkpoint to go back to.") from fault
        snapshot, arrays = there
        self._passed = (self._passed if self._saved == snapshot.step else 0) + fault.step - snapshot.step
        before, self._step = self._step, snapshot.step
        self._saved = self._step
        self._state, self._frozen = trainer.from_arrays(arrays)
        self._evaluations.restore(snapshot.progress)
        self._watch.back(snapshot.progress.get("faults"))
        self._data.set_state(snapshot.data)
        for _ in range(self._passed):
            next(self._data, None)
        self._writer.close()
        self._writer = self._new_writer()
        self._log = StepLog(self._writer, bar, self._settings.log_every, self._watch)
        bar.advance(self._step - before)
        warnings.warn(
            InputWarning(
                f"{fault}. Training goes on from step {self._step}, without the {self._passed} batches after it."
            ),
            stacklevel=4,
        )

    def _all_params(self) -> Flat:
        return self._trainer.cut({**self._frozen, **self._state.params})

    def close(self) -> None:
        """Ends threads and closes files."""
        self._hooks.close()  # first: a batch that is made ahead may wait for one
        self._data.close()
        self._writer.close()
        if self._store is not None:
            self._store.close()

    def result(self) -> TrainResult:
        """What it ended with."""
        evaluations, step = self._evaluations, self._step
        params, tables = self._all_params(), self._tables
        best = step if evaluations.best_step is None else evaluations.best_step
        if best != step:
            if self._store is None:
                params, tables = evaluations.best_params, evaluations.best_tables
            else:
                kept = checkpoints_lib.path_of(self._store.folder, best)
                params = flatten(checkpoints_lib.load_params(kept))
                has_hooks = bool(self._task.hooks)
                tables = self._hooks.tables_of(best, *checkpoints_lib.load_hooks(kept)) if has_hooks else {}
        if processes.count() > 1:
            params = on_hosts.copies(params)
        return TrainResult(unflatten(params), best, step, evaluations.records, evaluations.stopped, tables)


def _must_stay(task: Task, settings: TrainSettings, hooks: HookRuns, config: Any) -> dict[str, Any]:
    """What a checkpoint has to have been made with, for training to go on from it."""
    choice = settings.choice_of(task)
    found = {
        "batches": getattr(task.batches, "settings", None),
        "optimizer": settings.optimizer_of(task).settings,
        "seed": settings.seed,
        "microbatches": settings.microbatches,
        "initial_params": _fingerprint(task.initial_params),
        "early_stopping": None if choice is None else dataclasses.asdict(choice),
        "eval_every": settings.eval_every if choice else None,
        "hooks": hooks.settings,
        "config": config,
        "model": scalar_settings(half_precision.with_precision(task.model, settings.precision)),
    }
    if settings.faults.settings is not None:
        found["faults"] = settings.faults.settings
    return found


def _prefetched(batches: Iterable[Mapping[str, np.ndarray]]) -> ThreadPrefetchDatasetIterator:
    """Batches that are made ahead of training, by a thread; it waits where one needs what a hook has yet to make."""
    iterator: Any = iter(batches)
    if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
        raise InputError(
            "these batches cannot tell their place in the data, so training could not go on after a restart",
            "Give what make_batches returns, or a grain dataset of batches.",
            value=type(batches).__name__,
        )
    return ThreadPrefetchDatasetIterator(iterator, _PREFETCH)


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

"""The training loop: read it from `train` downwards.

A run is a function of its settings: batches follow from a seed and a place in the data, dropout from a seed and the
step, what hooks make from the parameters of declared steps, and a checkpoint has everything else. So a run that was
killed and started again ends with the same bits as one that never was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from grain.experimental import ThreadPrefetchDatasetIterator
from jax.sharding import Mesh

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
from gr_jax.training.metric_writers import MetricWriter
from gr_jax.training.packing import count_examples
from gr_jax.training.partitioning import make_mesh
from gr_jax.training.step_log import StepLog
from gr_jax.training.task import Task, TrainSettings
from gr_jax.training.train_state import Flat, Params, Trainer, TrainState, flatten, unflatten

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
      Stopped: this process, or another one, was asked to end; what was done until then is in a checkpoint.
    """
    batches, evaluate, steps = task.batches, task.evaluate, settings.steps
    input_shapes = getattr(batches, "input_shapes", None) or {k: v.shape for k, v in next(iter(batches)).items()}
    mesh = _mesh(settings, input_shapes)
    optimizer, choice = settings.optimizer_of(task), settings.choice_of(task)
    trainer = Trainer.create(
        task.model,
        optimizer,
        mesh,
        input_shapes,
        sharding=settings.sharding,
        precision=settings.precision,
        remat=settings.remat,
    )
    hooks = HookRuns(task.hooks, trainer, steps)
    must_stay = {
        "batches": getattr(batches, "settings", None),
        "optimizer": optimizer.settings,
        "seed": settings.seed,
        "microbatches": settings.microbatches,
        "initial_params": _fingerprint(task.initial_params),
        "early_stopping": None if choice is None else dataclasses.asdict(choice),
        "eval_every": settings.eval_every if choice else None,
        "hooks": hooks.settings,
        "config": config,
        "model": scalar_settings(half_precision.with_precision(task.model, settings.precision)),
    }
    faults = settings.faults
    if faults.settings is not None:
        must_stay["faults"] = faults.settings
    if faults.does("back") and (model_dir is None or task.hooks):
        raise InputError(
            "training goes back to a checkpoint only where there are some, and no hooks",
            'Give model_dir, and no hooks, or let Faults be "skip" or "stop".',
        )
    folder = None if model_dir is None else pathlib.Path(model_dir)
    store = None
    if folder is not None:
        store = checkpoints_lib.Checkpoints(folder / "checkpoints", must_stay, keep=settings.keep_checkpoints)
    evaluations, watch = Evaluations(choice), Watch(faults)
    data = _prefetched(batches)

    found = None
    if store is not None:
        found = store.newest(trainer.abstract_arrays(), hooks.abstract, trainer.array_shardings())
    if found is None:
        learn, frozen = trainer.split(trainer.initial_params(settings.seed, task.initial_params))
        state, step = trainer.initial_state(learn), 0
        hooks.start()
    else:
        snapshot, arrays = found
        state, frozen = trainer.from_arrays(arrays)
        step = snapshot.step
        evaluations.restore(snapshot.progress)
        watch.restore(snapshot.progress.get("faults"))
        data.set_state(snapshot.data)
        hooks.start(step, frozen, snapshot.hooks, arrays[checkpoints_lib.HOOKS])
        del arrays
    saved = None if found is None else step
    del found

    update = trainer.update(seed=settings.seed, microbatches=settings.microbatches, skip=faults.does("skip"))
    writer = MetricWriter(folder if processes.first() else None, step=saved, tensorboard=settings.tensorboard)

    log: StepLog
    passed = 0  # batches since the checkpoint that are left out

    def look(state: TrainState) -> None:
        """Evaluates, unless these parameters were evaluated already."""
        if evaluate is not None and evaluations.last() != step:
            params = {path: on_hosts.local(x) for path, x in trainer.cut({**frozen, **state.params}).items()}

            def measure() -> dict[str, float]:
                with processes.ends_itself():
                    return {name: float(value) for name, value in evaluate(unflatten(params), step).items()}

            scores = processes.by_first("evaluation", measure)
            if evaluations.add(step, scores) and store is None:
                copies = on_hosts.copies({path: params[path] for path in state.params})
                evaluations.best_params, evaluations.best_tables = {**params, **copies}, hooks.tables(step)
            writer.write(step, scores)

    def save(state: TrainState) -> None:
        nonlocal saved, passed
        if store is not None and saved != step:
            kept, made = hooks.state(step, frozen)
            snapshot = checkpoints_lib.Snapshot(
                step, data.get_state(), {**evaluations.progress(), **watch.progress()}, kept
            )
            arrays = {**trainer.to_arrays(state, frozen), checkpoints_lib.HOOKS: made}
            store.save(snapshot, arrays, best=evaluations.best_step)
            saved, passed = step, 0
            watch.saved()

    def go_back(fault: GoBack) -> TrainState:
        """From the latest checkpoint, behind all the data that was used since, here and in earlier goings back."""
        nonlocal step, saved, frozen, passed, writer, log
        assert store is not None
        store.wait()
        there = store.newest(trainer.abstract_arrays(), None, trainer.array_shardings())
        if there is None:
            raise FloatingPointError(f"{fault}. There is no checkpoint to go back to.") from fault
        snapshot, arrays = there
        passed = (passed if saved == snapshot.step else 0) + fault.step - snapshot.step
        before, step = step, snapshot.step
        saved = step
        state, frozen = trainer.from_arrays(arrays)
        evaluations.restore(snapshot.progress)
        watch.back(snapshot.progress.get("faults"))
        data.set_state(snapshot.data)
        for _ in range(passed):
            next(data, None)
        writer.close()
        writer = MetricWriter(folder if processes.first() else None, step=step, tensorboard=settings.tensorboard)
        log = StepLog(writer, bar, settings.log_every, watch)
        bar.advance(step - before)
        warnings.warn(
            InputWarning(f"{fault}. Training goes on from step {step}, without the {passed} batches after it."),
            stacklevel=2,
        )
        return state

    stopping = False
    try:
        with progress_lib.bar("Training", steps, enabled=progress and processes.first()) as bar:
            log = StepLog(writer, bar, settings.log_every, watch)
            bar.advance(min(step, steps))
            if settings.evaluate_first and step == 0 and steps > 0:
                look(state)
                if evaluations.best_step == step:
                    save(state)
            if faults.does("back") and saved is None:
                save(state)
            finished = False
            while not finished:
                try:
                    if step < steps and not evaluations.stopped:
                        # After evaluation and checkpoint of this step: whoever goes on from there comes here first.
                        hooks.begin(step, state.params, frozen)
                        batch = next(data, None)
                    else:
                        batch = None
                    if batch is None:
                        log.flush()
                        look(state)
                        hooks.finish()
                        save(state)
                        finished = True
                        continue
                    frozen = hooks.swap(step, frozen)
                    state, metrics = update(state, frozen, trainer.place_batch(batch), watch.limit(step + 1))
                    step += 1
                    log.add(step, metrics, count_examples(batch) * processes.count())
                    evaluating = bool(settings.eval_every) and step % settings.eval_every == 0
                    saving = bool(settings.checkpoint_every) and step % settings.checkpoint_every == 0
                    stopping = processes.stop_here() or stopping
                    if evaluating or saving or stopping:
                        log.flush()  # what is not finite must reach neither dev nor disk
                        with log.paused():
                            if evaluating:
                                look(state)
                            if saving or stopping or evaluations.best_step == step:
                                save(state)
                    if stopping:
                        if store is not None:
                            store.wait()
                        raise processes.Stopped(f"after step {step} of {steps}")
                except GoBack as fault:
                    state = go_back(fault)
        if store is not None:
            store.wait()
        tables = hooks.tables(step)
    finally:
        hooks.close()  # first: a batch that is made ahead may wait for one
        data.close()
        writer.close()
        if store is not None:
            store.close()

    params: Flat = trainer.cut({**frozen, **state.params})
    best = step if evaluations.best_step is None else evaluations.best_step
    if best != step:
        if store is None:
            params, tables = evaluations.best_params, evaluations.best_tables
        else:
            kept = checkpoints_lib.path_of(store.folder, best)
            params = flatten(checkpoints_lib.load_params(kept))
            tables = hooks.tables_of(best, *checkpoints_lib.load_hooks(kept)) if task.hooks else {}
    if processes.count() > 1:
        params = on_hosts.copies(params)
    return TrainResult(unflatten(params), best, step, evaluations.records, evaluations.stopped, tables)


def _mesh(settings: TrainSettings, input_shapes: Mapping[str, tuple[int, ...]]) -> Mesh:
    """The devices to train on; refuses batches that cannot be split over them and into microbatches."""
    rows, microbatches = math.gcd(*(shape[0] for shape in input_shapes.values())), settings.microbatches
    mesh = settings.mesh if settings.mesh is not None else _all_that_fit(rows // microbatches)
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


def _all_that_fit(rows: int) -> Mesh:
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

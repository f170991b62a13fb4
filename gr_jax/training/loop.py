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
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from grain.experimental import ThreadPrefetchDatasetIterator
from jax.sharding import Mesh

from gr_jax import progress as progress_lib
from gr_jax.errors import InputError
from gr_jax.models import half_precision
from gr_jax.training import checkpoints as checkpoints_lib
from gr_jax.training.evaluations import Evaluations
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
      FloatingPointError: loss or gradient is not finite.
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
    folder = None if model_dir is None else pathlib.Path(model_dir)
    store = None
    if folder is not None:
        store = checkpoints_lib.Checkpoints(folder / "checkpoints", must_stay, keep=settings.keep_checkpoints)
    evaluations = Evaluations(choice)
    data = _prefetched(batches)

    found = None if store is None else store.latest()
    if store is None or found is None:
        learn, frozen = trainer.split(trainer.initial_params(settings.seed, task.initial_params))
        state, step = trainer.initial_state(learn), 0
        hooks.start()
    else:
        snapshot, arrays = store.read(found, trainer.abstract_arrays(), hooks.abstract)
        state, frozen = trainer.from_arrays(arrays)
        step = found
        evaluations.restore(snapshot.progress)
        data.set_state(snapshot.data)
        hooks.start(step, frozen, snapshot.hooks, arrays[checkpoints_lib.HOOKS])
        del arrays

    update = trainer.update(seed=settings.seed, microbatches=settings.microbatches)
    writer = MetricWriter(folder, step=found, tensorboard=settings.tensorboard)
    saved = found

    def look(state: TrainState) -> None:
        """Evaluates, unless these parameters were evaluated already."""
        if evaluate is not None and evaluations.last() != step:
            params = trainer.cut({**frozen, **state.params})
            scores = {name: float(value) for name, value in evaluate(unflatten(params), step).items()}
            if evaluations.add(step, scores) and store is None:
                copies = {path: np.array(params[path], copy=True) for path in state.params}
                evaluations.best_params, evaluations.best_tables = {**params, **copies}, hooks.tables(step)
            writer.write(step, scores)

    def save(state: TrainState) -> None:
        nonlocal saved
        if store is not None and saved != step:
            kept, made = hooks.state(step, frozen)
            snapshot = checkpoints_lib.Snapshot(step, data.get_state(), evaluations.progress(), kept)
            arrays = {**trainer.to_arrays(state, frozen), checkpoints_lib.HOOKS: made}
            store.save(snapshot, arrays, best=evaluations.best_step)
            saved = step

    try:
        with progress_lib.bar("Training", steps, enabled=progress) as bar:
            log = StepLog(writer, bar, settings.log_every)
            bar.advance(min(step, steps))
            if settings.evaluate_first and step == 0 and steps > 0:
                look(state)
                if evaluations.best_step == step:
                    save(state)
            while step < steps and not evaluations.stopped:
                # After evaluation and checkpoint of this step: whoever goes on from there comes here first.
                hooks.begin(step, state.params, frozen)
                batch = next(data, None)
                if batch is None:
                    break
                frozen = hooks.swap(step, frozen)
                state, metrics = update(state, frozen, trainer.place_batch(batch))
                step += 1
                log.add(step, metrics, count_examples(batch))
                evaluating = bool(settings.eval_every) and step % settings.eval_every == 0
                saving = bool(settings.checkpoint_every) and step % settings.checkpoint_every == 0
                if evaluating or saving:
                    log.flush()  # what is not finite must reach neither dev nor disk
                    with log.paused():
                        if evaluating:
                            look(state)
                        if saving or evaluations.best_step == step:
                            save(state)
            log.flush()
            look(state)
            hooks.finish()
            save(state)
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
    return TrainResult(unflatten(params), best, step, evaluations.records, evaluations.stopped, tables)


def _mesh(settings: TrainSettings, input_shapes: Mapping[str, tuple[int, ...]]) -> Mesh:
    """The devices to train on; refuses batches that cannot be split over them and into microbatches."""
    rows, microbatches = math.gcd(*(shape[0] for shape in input_shapes.values())), settings.microbatches
    mesh = settings.mesh
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
    return mesh


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

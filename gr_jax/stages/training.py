"""The one place that trains: what all trainings can be told, how they look at dev, and what they leave behind."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import evaluation, retrievers
from gr_jax.errors import InputError, InputWarning
from gr_jax.models import half_precision
from gr_jax.models import remat as remat_lib
from gr_jax.retrievers import Retriever
from gr_jax.stages.graph import Place
from gr_jax.stages.settings import Settings, setting
from gr_jax.training.faults import KINDS, Faults
from gr_jax.training.loop import TrainResult, train
from gr_jax.training.optimizers import Optimizer, Schedule, adafactor, adamw
from gr_jax.training.partitioning import RULE_SETS, make_mesh
from gr_jax.training.task import Task, TrainSettings

# What training measures on dev: splits and measures.
DEV_SPLITS = ("dev", "dev_unseen", "dev_mean")
DEV_MEASURES = ("Success@1", "Success@10", "RR@10")
CURVES = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class Optimization(Settings):
    """What every training can be told.

    Attributes:
      steps: updates.
      batch_size: examples of an update.
      optimizer: "adamw" or "adafactor".
      learning_rate, warmup_steps, schedule, weight_decay, clip: of the optimiser; it warms up for half of the steps at
        most. Weights decay with AdamW alone.
      multipliers: regular expression on a parameter's path → factor on the learning rate; 0 freezes. None: what is
        pretrained moves a little and its lower half not at all, what is new moves faster.
      evaluate_every: steps between retrievals on dev; None looks at the end only.
      dev_queries: how many of the dev queries they use; None does without.
      keep_best: the measure that chooses the parameters to keep; None keeps the last.
      patience: evaluations without improvement after which training stops; None never stops.
      checkpoint_every: steps between checkpoints; None writes one at the end.
      not_finite: what is done where a loss or a gradient is not finite: "stop", "skip" the update, or go "back" to the
        latest checkpoint and leave out the data since. With "back" a training that is asked to end keeps no checkpoint
        out of turn, and makes the updates since the last one again.
      spike: what is done where a loss is more than `spike_factor` times the mean of the 50 before it; None: nothing.
      spike_factor: see `spike`.
      mesh: (data, model) devices; (0, 1) puts every device on data.
      sharding: what is split over these devices: "data", batches alone; "tensor", layers and tables of vocabularies
        over model, too; "fsdp", parameters and the optimiser's state over data besides, which saves memory and costs
        communication.
      remat: what is computed again for gradients and not remembered, which saves memory and costs time: "layers", all
        within a layer; "dots", what is no product with parameters; None, nothing.
      precision: what networks compute in: "float32" or "bfloat16". Parameters and the optimiser are float32.
      seed: of initialisation, shuffling and dropout.
    """

    steps: int = setting(1000, at_least=1)
    batch_size: int = setting(32, at_least=1)
    optimizer: str = setting("adamw", choices=("adamw", "adafactor"))
    learning_rate: float = setting(1e-3, at_least=0)
    warmup_steps: int = setting(50, at_least=0)
    schedule: str = setting("linear", choices=("constant", "linear", "rsqrt"))
    weight_decay: float = setting(0.0, at_least=0)
    clip: float = setting(1.0, above=0)
    multipliers: Mapping[str, float] | None = setting(None, at_least=0)
    evaluate_every: int | None = setting(100, at_least=1)
    dev_queries: int | None = setting(400, at_least=1)
    keep_best: str | None = "dev/RR@10"
    patience: int | None = setting(None, at_least=1)
    checkpoint_every: int | None = setting(200, at_least=1)
    not_finite: str = setting("stop", choices=KINDS, neutral="stop")
    spike: str | None = setting(None, choices=(None, *KINDS), neutral=None)
    spike_factor: float = setting(3.0, above=1, neutral=3.0)
    mesh: tuple[int, int] = setting((0, 1), at_least=0)
    sharding: str = setting("tensor", choices=tuple(RULE_SETS), speed=True)
    remat: str | None = setting(None, choices=(None, *remat_lib.POLICIES), speed=True)
    precision: str = setting("float32", choices=half_precision.PRECISIONS, neutral="float32")
    seed: int = setting(0, at_least=0)

    def check(self) -> None:
        name = type(self).__name__
        if self.optimizer == "adafactor" and self.weight_decay:
            raise InputError(
                f"{name}.weight_decay is of AdamW, and Adafactor would leave it out",
                f'Set {name}.weight_decay = 0, or {name}.optimizer = "adamw".',
                value=self.weight_decay,
            )

    @property
    def goes_back(self) -> bool:
        """Whether it goes back to a checkpoint where something is wrong."""
        return Faults(self.not_finite, self.spike, self.spike_factor).does("back")


def check_stays(settings: Optimization | None, what: str, remedy: str) -> None:
    """Raises InputError for a training that would go back, past what is made while it goes on; None is one that is off.

    Args:
      settings: of the training.
      what: is made while it goes on.
      remedy: how that is left out.
    """
    if settings is not None and settings.goes_back:
        name = type(settings).__name__
        raise InputError(
            f'{name} goes "back" where something is wrong, and {what} while it trains',
            f'Set {name}.not_finite and {name}.spike to "skip" or "stop", or {remedy}.',
            value=(settings.not_finite, settings.spike),
        )


def fit(place: Place, task: Task, settings: Optimization) -> TrainResult:
    """Trains a task; interrupted, it goes on from its latest checkpoint with the same result.

    The settings' multipliers stand in for the task's, and where the task looks at dev, the settings say which measure
    chooses the parameters to keep.

    Args:
      place: of the stage; what training was like goes into its notes, its curves into its folder.
      task, settings: what and how.
    """
    keep = settings.keep_best or "" if task.evaluate is not None else ""
    task = dataclasses.replace(
        task,
        keep_best=keep,
        multipliers=task.multipliers if settings.multipliers is None else settings.multipliers,
    )
    how = TrainSettings(
        steps=settings.steps,
        optimizer=make_optimizer(settings),
        mesh=None if settings.mesh == (0, 1) else make_mesh(*settings.mesh),
        sharding=settings.sharding,
        remat=settings.remat,
        precision=settings.precision,
        seed=settings.seed,
        microbatches=getattr(settings, "microbatches", 1),
        eval_every=(settings.evaluate_every or 0) if task.evaluate is not None else 0,
        evaluate_first=bool(keep) and task.mode == "max",
        patience=settings.patience or 0,
        checkpoint_every=settings.checkpoint_every or 0,
        faults=Faults(settings.not_finite, settings.spike, settings.spike_factor),
    )
    result = train(task, how, model_dir=place.common, progress=True)
    dev = [record for record in result.history if record["step"] == result.step]
    place.notes.update({"step": result.step, "last_step": result.last_step, "dev": dev})
    for hook in task.hooks:
        place.notes[f"{hook.name} made again"] = hook.used(result.last_step)
    keep_curves(place)
    return result


def keep_curves(place: Place) -> None:
    """Puts the curves of what trained, or an empty file, into the stage's folder."""
    curves = place.common / CURVES
    if curves.exists():
        shutil.copy(curves, place.folder / CURVES)
    else:
        (place.folder / CURVES).write_text("")


def make_optimizer(settings: Optimization) -> Optimizer:
    """The optimiser that the settings name; it warms up for half of the steps at most."""
    decay = settings.schedule
    schedule = Schedule(
        settings.learning_rate,
        min(settings.warmup_steps, settings.steps // 2),
        decay,
        settings.steps if decay == "linear" else None,
    )
    if settings.optimizer == "adafactor":
        return adafactor(schedule, clip=settings.clip)
    return adamw(schedule, weight_decay=settings.weight_decay, clip=settings.clip)


Judgements = Mapping[str, Mapping[str, int]]  # query id → doc_id → grade


class Retrainable(Protocol):
    """A retriever around any parameters of its network."""

    def with_parameters(self, params: Any) -> Retriever: ...


class DevEvaluation:
    """Retrieval on dev during training: the real measures, on a fixed sample of queries.

    Args:
      retriever: gets the parameters of each moment.
      dataset: of the queries.
      most: queries of each split.
      splits: name → judgements, whose mean is measured as "dev_mean" too; None is the dev split alone.
      corpus: what the retriever answers from, where it is not all documents.
    """

    def __init__(
        self,
        retriever: Retrainable,
        dataset: corpus_lib.Dataset,
        most: int,
        *,
        splits: Mapping[str, Judgements] | None = None,
        corpus: corpus_lib.Corpus | None = None,
    ):
        self._retriever, self._corpus = retriever, dataset.corpus if corpus is None else corpus
        self._mean, self._splits = splits is not None, []
        judged: Mapping[str, Judgements] = splits or {"dev": dataset.split("dev")}
        for name, qrels in judged.items():
            sampled = sample_queries(qrels, most)
            self._splits.append((name, dataset.queries.select(list(sampled)), sampled))

    def __call__(self, params: Mapping[str, Any], step: int) -> dict[str, float]:
        del step
        retriever = self._retriever.with_parameters(params)
        values: dict[str, float] = {}
        for split, queries, qrels in self._splits:
            with warnings.catch_warnings():
                # Of long queries; once per batch and evaluation is too often.
                warnings.simplefilter("ignore", InputWarning)
                run = retrievers.retrieve_run(retriever, queries, self._corpus, k=10)
            measured = evaluation.evaluate(run, qrels, DEV_MEASURES)
            values |= {f"{split}/{name}": value for name, value in measured.items()}
        if self._mean:
            for name in DEV_MEASURES:
                values[f"dev_mean/{name}"] = float(np.mean([values[f"{split}/{name}"] for split, _, _ in self._splits]))
        return values


def sample_queries(qrels: Judgements, most: int) -> dict[str, Mapping[str, int]]:
    """The judgements of `most` queries, always the same, in their order."""
    ids: Sequence[str] = list(qrels)
    if len(ids) > most:
        ids = [ids[i] for i in np.sort(np.random.default_rng(0).choice(len(ids), most, replace=False))]
    return {query_id: qrels[query_id] for query_id in ids}


def check_keep_best(name: str, measure: str | None, splits: Sequence[str] = DEV_SPLITS) -> None:
    """Raises InputError for a measure that nothing measures on dev."""
    known = [f"{split}/{one}" for split in splits for one in DEV_MEASURES]
    if measure is not None and measure not in known:
        raise InputError(f"{name} is not a known choice", f"Choose None, or one of: {', '.join(known)}.", value=measure)


def folder_bytes(folder: pathlib.Path) -> int:
    """Of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

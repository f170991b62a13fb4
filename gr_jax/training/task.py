"""What is trained, and how: the two things that `train` is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from jax.sharding import Mesh

from gr_jax.errors import InputError
from gr_jax.training.evaluations import Choice
from gr_jax.training.faults import Faults
from gr_jax.training.hooks import Hook
from gr_jax.training.optimizers import Optimizer
from gr_jax.training.train_state import Model, Params

Evaluate = Callable[[Params, int], Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained: all that one system's training has and another's has not.

    Attributes:
      model: has T5X's `loss_fn(params, batch, dropout_rng) → (sum of losses, metrics with "weight_sum")` and
        `get_initial_variables(rng, input_shapes, input_types)`. The numbers, strings and booleans among its fields must
        be the same when training goes on.
      batches: what `make_batches` returns, or any iterable whose iterators have grain's `get_state` and `set_state`.
        Batch n, counted from 0, is that of update n.
      initial_params: nested or flat; any part of the parameters, the rest begins at random.
      multipliers: regular expression → factor on the learning rate of the parameters it matches, 0 freezes: see
        `Optimizer.multipliers`. None: those of the optimiser.
      evaluate: (nested params, step) → {"dev/RR@10": …}. Must not keep the arrays: the next step overwrites them.
      keep_best: which of `evaluate`'s metrics decides which parameters are returned; "" returns the last.
      mode: "max" or "min": which of its values is better.
      hooks: what happens between steps, whether anything is evaluated then or not.

    Raises:
      InputError: a mode that does not exist, or a choice between parameters that nothing evaluates.
    """

    model: Model
    batches: Iterable[Mapping[str, np.ndarray]]
    initial_params: Params | None = None
    multipliers: Mapping[str, float] | None = None
    evaluate: Evaluate | None = None
    keep_best: str = ""
    mode: str = "max"
    hooks: Sequence[Hook] = ()

    def __post_init__(self):
        if self.mode not in ("max", "min"):
            raise InputError("unknown mode of choosing the best parameters", 'Use "max" or "min".', value=self.mode)
        if self.keep_best and self.evaluate is None:
            raise InputError(
                "nothing is evaluated that the best parameters could be chosen by",
                'Give evaluate, or keep_best = "".',
                value=self.keep_best,
            )


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """How anything is trained: what all trainings have alike.

    Attributes:
      steps: updates in all, those before a restart included. Ends earlier where the batches do.
      optimizer: `adamw(…)` or `adafactor(…)`.
      eval_every: steps between evaluations; 0 only after the last.
      evaluate_first: also before the first step.
      patience: evaluations in a row without a better value of the task's `keep_best` after which training stops; 0
        never stops.
      checkpoint_every: steps between checkpoints; 0 only after the last.
      keep_checkpoints: how many of the latest; the best is kept besides.
      seed: of initial values and dropout.
      microbatches: parts in which a batch is computed one after the other; saves memory. Contrastive batches are not
        split: their rows are each other's negatives.
      mesh: devices; None puts all on the data axis, as far as the batch can be split.
      sharding: what is split over the mesh: "data", "tensor" or "fsdp"; see `partitioning.RULE_SETS`.
      precision: "float32", or "bfloat16" for all that is computed; parameters and optimiser stay float32.
      remat: what is computed again for gradients instead of remembered: None, "dots" or "layers"; see
        `models.remat.POLICIES`.
      faults: what is done where a loss or a gradient is not finite, or a loss is far above those before it.
      log_every: steps between lines of `metrics.jsonl`.
      tensorboard: write TensorBoard files too.
    """

    steps: int
    optimizer: Optimizer
    eval_every: int = 0
    evaluate_first: bool = False
    patience: int = 0
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    seed: int = 0
    microbatches: int = 1
    mesh: Mesh | None = None
    sharding: str = "tensor"
    precision: str = "float32"
    remat: str | None = None
    faults: Faults = Faults()
    log_every: int = 20
    tensorboard: bool = False

    def optimizer_of(self, task: Task) -> Optimizer:
        """The optimiser with the task's multipliers.

        Raises:
          InputError: both have some.
        """
        if task.multipliers is None:
            return self.optimizer
        if self.optimizer.multipliers:
            raise InputError(
                "task and optimiser both have learning-rate multipliers",
                "Give them in one place.",
                value=dict(self.optimizer.multipliers),
            )
        return dataclasses.replace(self.optimizer, multipliers=dict(task.multipliers))

    def choice_of(self, task: Task) -> Choice | None:
        """How the task's best parameters are found, None where its last are returned."""
        return Choice(task.keep_best, self.patience, task.mode) if task.keep_best else None

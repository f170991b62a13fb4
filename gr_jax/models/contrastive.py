"""What models that are trained by contrast, from a teacher, or both have in common: the losses of a batch's scores."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gr_jax import losses
from gr_jax.errors import InputError

Batch = Mapping[str, Array]
Metrics = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ContrastiveModel(abc.ABC):
    """Those of T5X's model methods that training needs (`get_initial_variables`, `loss_fn`, `eval_fn`) around a network
    that reads queries and documents apart; subclasses say how these score.

    Batches are those of `gr_jax.training.ContrastiveBatches`: `query_tokens [B, Lq]`, `document_tokens [B·(1+n), Ld]`
    (every query's positive, then its n negatives), `document_index [B·(1+n)]`, and where there are such
    `relevant_index [B, R]` and `teacher_scores [B, 1+n]` (NaN where the teacher gave none).

    Attributes:
      module: the network.
      contrastive: weight of `losses.weighted_softmax`.
      in_batch: documents of other queries, on all devices, are negatives too.
      positive_weight: see `losses.batch_weights`.
      margin_mse, teacher_kl: weights of the losses of these names; they see scores divided by the temperature.
      teacher_temperature: see `losses.teacher_kl`.
      chunks: parts in which a batch is encoded one after the other, see `encode_in_chunks`. What `microbatches` of
        `train` is for other losses; those would also split the negatives.

    Raises:
      InputError: a weight or temperature that makes no sense.
    """

    module: nn.Module
    contrastive: float = 1.0
    in_batch: bool = True
    positive_weight: float = 1.0
    margin_mse: float = 0.0
    teacher_kl: float = 0.0
    teacher_temperature: float = 1.0
    chunks: int = 1

    def __post_init__(self):
        check_weights(self, "contrastive", "margin_mse", "teacher_kl")
        check_above_zero(self, "positive_weight", "teacher_temperature")

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """Variables `{"params": …, "params_axes": …}`; run it under `jit` or `eval_shape`.

        Args:
          rng: a key.
          input_shapes: feature name → shape; those of query_tokens are needed, and of document_tokens where they are
            read.
          input_types: unused (tokens are int32); T5X gives it.
        """
        del input_types
        # One row says as much about parameters as a batch.
        read = [input_shapes["query_tokens"], input_shapes.get("document_tokens", input_shapes["query_tokens"])]
        tokens = [jnp.ones((1, *shape[1:]), jnp.int32) for shape in read]
        return self.module.init(rng, *tokens)

    def loss_fn(self, params: Any, batch: Batch, dropout_rng: Array | None = None) -> tuple[Float[Array, ""], Metrics]:
        """The sum of losses over queries, and metrics as pairs (sum, weight).

        Args:
          params: of the network.
          batch: see the class.
          dropout_rng: None switches dropout off.
        """
        return self.loss_of_scores(self.batch_scores(params, batch, dropout_rng), batch)

    @abc.abstractmethod
    def batch_scores(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "B D"]:
        """Of every query with every document of the batch, divided by the temperature."""

    def loss_of_scores(self, scores: Float[Array, "B D"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        """`loss_fn` of what `batch_scores` gives.

        Raises:
          InputError: neither the batch nor the query brings a negative, or a teacher's scores are missing.
        """
        index = batch["document_index"]
        size = losses.group_size(scores.shape[1], len(scores))
        if size == 1 and not self.in_batch:
            raise InputError(
                "no query has anything wrong to tell its answer from, and the loss is the same for all parameters",
                "Give negatives, or set in_batch = True.",
            )
        real = (index[::size] >= 0).astype(jnp.float32)  # [B]; rows that fill up a last batch have no positive
        weight = jnp.sum(real)
        weights = losses.batch_weights(
            index,
            len(scores),
            relevant_index=batch.get("relevant_index"),
            in_batch=self.in_batch,
            positive_weight=self.positive_weight,
        )
        found = losses.weighted_softmax(scores, losses.positive_columns(*scores.shape), weights)
        metrics: Metrics = {
            "contrastive": (jnp.sum(found.loss * real), weight),
            "accuracy": (jnp.sum(found.correct * real), weight),
            "weight_sum": weight,
        }
        loss = self.contrastive * found.loss
        for name, distilled in distillation_losses(self, own_scores(scores), batch).items():
            loss = loss + getattr(self, name) * distilled.loss
            metrics[name] = (jnp.sum(distilled.loss * real), jnp.sum(distilled.scored * real))
        total = jnp.sum(loss * real)
        return total, metrics | {"loss": (total, weight)}

    def eval_fn(self, params: Any, batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        """`loss_fn` without dropout."""
        return self.loss_fn(params, batch, None)

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means, from the pairs that `loss_fn` gives or from their sums over any number of batches."""
        pairs = {name: pair for name, pair in metrics.items() if isinstance(pair, tuple)}
        return {name: float(total) / max(float(weight), 1.0) for name, (total, weight) in pairs.items()}


def check_weights(model: Any, *names: str) -> None:
    """Refuses weights of losses that are negative or not finite."""
    for name in names:
        if not 0 <= getattr(model, name) < float("inf"):
            raise InputError(f"{name} is a weight, 0 or more", "Use 0 or 1.", value=getattr(model, name))


def check_above_zero(model: Any, *names: str) -> None:
    """Refuses what must be above 0 and finite, and is not."""
    for name in names:
        if not 0 < getattr(model, name) < float("inf"):
            raise InputError(f"{name} is a number above 0", "Use 1.", value=getattr(model, name))


def own_scores(scores: Float[Array, "B D"]) -> Float[Array, "B group"]:
    """The columns of each query's own documents, its positive first."""
    columns = jnp.arange(scores.shape[1]).reshape(len(scores), -1)
    return jnp.take_along_axis(scores, columns, axis=1)


class Distilled(NamedTuple):
    """One number per query.

    Attributes:
      loss: 0 where the teacher said too little.
      scored: 1 where the teacher scored enough of the query's documents for this loss, else 0. Means are over these
        queries: over all, a teacher who says nothing would look like one whom the model agrees with.
    """

    loss: Float[Array, " B"]
    scored: Float[Array, " B"]


def distillation_losses(model: Any, own: Float[Array, "B group"], batch: Batch) -> dict[str, Distilled]:
    """The distillation losses, if a model gives one of them a weight.

    Args:
      model: has the weights `margin_mse` and `teacher_kl`, and `teacher_temperature`.
      own: scores of each query's own documents.
      batch: teacher_scores [B, group] (NaN where the teacher gave none), document_index.

    Raises:
      InputError: there is no teacher in the batch.
    """
    if not (model.margin_mse or model.teacher_kl):
        return {}
    if "teacher_scores" not in batch:
        raise InputError("there are no teacher_scores to learn from", "Give negatives with a teacher's scores.")
    teacher = batch["teacher_scores"]
    valid = jnp.isfinite(teacher) & (batch["document_index"].reshape(own.shape) >= 0)
    margins = valid[:, 0] & jnp.any(valid[:, 1:], axis=1)
    several = jnp.sum(valid, axis=1) >= 2
    kl = losses.teacher_kl(own, teacher, valid, teacher_temperature=model.teacher_temperature)
    return {
        "margin_mse": Distilled(losses.margin_mse(own, teacher, valid), margins.astype(jnp.float32)),
        "teacher_kl": Distilled(kl, several.astype(jnp.float32)),
    }

"""The loss of a batch's scores: by contrast, from a teacher, or both. An object that a training task names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float

from gr_jax.errors import InputError
from gr_jax.losses.contrastive import batch_weights, group_size, positive_columns, weighted_softmax
from gr_jax.losses.distillation import margin_mse, teacher_kl

Batch = Mapping[str, Array]
Metrics = dict[str, Any]


class BatchLoss(Protocol):
    """What models that score a batch's queries against its documents are trained by. A frozen dataclass: its numbers
    must be the same when training goes on."""

    def __call__(self, scores: Float[Array, "B D"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        """The sum over queries, and metrics as pairs (sum, weight), "weight_sum" among them."""
        ...


@dataclasses.dataclass(frozen=True)
class ContrastiveLoss:
    """`losses.weighted_softmax` of each query against the batch's documents, and what a teacher says of its own.

    Attributes:
      contrastive: weight of `losses.weighted_softmax`.
      in_batch: documents of other queries, on all devices, are negatives too.
      positive_weight: see `losses.batch_weights`.
      margin_mse, teacher_kl: weights of the losses of these names; they see scores divided by the temperature.
      teacher_temperature: see `losses.teacher_kl`.

    Raises:
      InputError: a weight or temperature that makes no sense.
    """

    contrastive: float = 1.0
    in_batch: bool = True
    positive_weight: float = 1.0
    margin_mse: float = 0.0
    teacher_kl: float = 0.0
    teacher_temperature: float = 1.0

    def __post_init__(self):
        check_weights(self, "contrastive", "margin_mse", "teacher_kl")
        check_above_zero(self, "positive_weight", "teacher_temperature")

    def __call__(self, scores: Float[Array, "B D"], batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        """The sum over queries, and metrics as pairs (sum, weight).

        Args:
          scores: of every query with every document of the batch, divided by the temperature.
          batch: has document_index, and may have relevant_index and teacher_scores.

        Raises:
          InputError: neither the batch nor the query brings a negative, or a teacher's scores are missing.
        """
        index = batch["document_index"]
        size = group_size(scores.shape[1], len(scores))
        if size == 1 and not self.in_batch:
            raise InputError(
                "no query has a negative, so the loss is the same for all parameters",
                "Give negatives, or set in_batch = True.",
            )
        real = (index[::size] >= 0).astype(jnp.float32)  # [B]; rows that fill up a last batch have no positive
        weight = jnp.sum(real)
        weights = batch_weights(
            index,
            len(scores),
            relevant_index=batch.get("relevant_index"),
            in_batch=self.in_batch,
            positive_weight=self.positive_weight,
        )
        found = weighted_softmax(scores, positive_columns(*scores.shape), weights)
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


def check_weights(owner: Any, *names: str) -> None:
    """Refuses weights of losses that are negative or not finite."""
    for name in names:
        if not 0 <= getattr(owner, name) < float("inf"):
            raise InputError(f"{name} is a weight, 0 or more", "Use 0 or 1.", value=getattr(owner, name))


def check_above_zero(owner: Any, *names: str) -> None:
    """Refuses what must be above 0 and finite, and is not."""
    for name in names:
        if not 0 < getattr(owner, name) < float("inf"):
            raise InputError(f"{name} is a number above 0", "Use 1.", value=getattr(owner, name))


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


def distillation_losses(loss: Any, own: Float[Array, "B group"], batch: Batch) -> dict[str, Distilled]:
    """The distillation losses, if one of them has a weight.

    Args:
      loss: has the weights `margin_mse` and `teacher_kl`, and `teacher_temperature`.
      own: scores of each query's own documents.
      batch: teacher_scores [B, group] (NaN where the teacher gave none), document_index.

    Raises:
      InputError: there is no teacher in the batch.
    """
    if not (loss.margin_mse or loss.teacher_kl):
        return {}
    if "teacher_scores" not in batch:
        raise InputError("there are no teacher_scores to learn from", "Give negatives with a teacher's scores.")
    teacher = batch["teacher_scores"]
    valid = jnp.isfinite(teacher) & (batch["document_index"].reshape(own.shape) >= 0)
    margins = valid[:, 0] & jnp.any(valid[:, 1:], axis=1)
    several = jnp.sum(valid, axis=1) >= 2
    kl = teacher_kl(own, teacher, valid, teacher_temperature=loss.teacher_temperature)
    return {
        "margin_mse": Distilled(margin_mse(own, teacher, valid), margins.astype(jnp.float32)),
        "teacher_kl": Distilled(kl, several.astype(jnp.float32)),
    }

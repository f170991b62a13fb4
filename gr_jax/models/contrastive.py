"""What models that are trained by contrast, from a teacher, or both have in common: the losses of a batch's scores."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gr_jax.losses import BatchLoss, ContrastiveLoss

Batch = Mapping[str, Array]
Metrics = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ContrastiveModel(abc.ABC):
    """Those of T5X's model methods that training needs (`get_initial_variables`, `loss_fn`, `eval_fn`) around a network
    that reads queries and documents apart; subclasses say how these score.

    Batches are those of `gr_jax.training.ContrastiveBatches`: `query_tokens [B, Lq]`, `document_tokens [B·(1+n), Ld]`
    (every query's positive, then its n negatives), `document_index [B·(1+n)]`, and where there are such
    `relevant_index [B, R]` and `teacher_scores [B, 1+n]` (NaN where the teacher gave none). Where they bring
    `query_segment_ids [R, W]`, queries are packed (`text_encoder.encode_packed`), unless they are computed in chunks.

    Attributes:
      module: the network.
      loss: of the scores.
      chunks: parts in which a batch is encoded one after the other, see `encode_in_chunks`. What `microbatches` of
        `train` is for other losses; those would also split the negatives.
    """

    module: nn.Module
    loss: BatchLoss = ContrastiveLoss()
    chunks: int = 1

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
        return self.loss(self.batch_scores(params, batch, dropout_rng), batch)

    @abc.abstractmethod
    def batch_scores(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "B D"]:
        """Of every query with every document of the batch, divided by the temperature."""

    def eval_fn(self, params: Any, batch: Batch) -> tuple[Float[Array, ""], Metrics]:
        """`loss_fn` without dropout."""
        return self.loss_fn(params, batch, None)

    @staticmethod
    def summarize(metrics: Mapping[str, Any]) -> dict[str, float]:
        """Means, from the pairs that `loss_fn` gives or from their sums over any number of batches."""
        pairs = {name: pair for name, pair in metrics.items() if isinstance(pair, tuple)}
        return {name: float(total) / max(float(weight), 1.0) for name, (total, weight) in pairs.items()}

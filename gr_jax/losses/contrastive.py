"""Contrastive losses over a matrix of scores, queries × documents of a batch.

All of them are one formula, with other weights in the sum (s are scores divided by the temperature):

    L_i = −s_i⁺ + log Σ_d w_id · exp s_id

| loss | own positive | own negatives | what stands in the batch for other queries |
|---|---|---|---|
| in-batch softmax (DPR, Karpukhin et al. 2020, eq. 2) | 1 | 1 | 1 |
| hard negatives only (ANCE, Xiong et al. 2021) | 1 | 1 | 0 |
| cluster-adaptive (GDR, Yuan et al. 2024) | α | α for documents of the positive's cluster | 1 |

A document that is the query's positive once more, or another relevant one, has weight 0: it is no negative.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError


class ContrastiveLosses(NamedTuple):
    """One number per query.

    Attributes:
      loss: the formula above. Negative where weights below 1 let the positive outweigh the sum.
      correct: whether the positive scores higher than every other document of weight above 0. A tie is not correct:
        else an encoder that gives everything the same vector would be right about all.
    """

    loss: Float[Array, " B"]
    correct: Bool[Array, " B"]


def weighted_softmax(
    scores: Float[Array, "B D"], positives: Int[Array, " B"], weights: Float[Array, "B D"]
) -> ContrastiveLosses:
    """The formula of this module.

    Args:
      scores: similarities divided by the temperature; computed in float32.
      positives: the column of each query's positive.
      weights: of each document in each query's sum, not negative; at least the positive's must be above 0.
    """
    scores = scores.astype(jnp.float32)
    positive = jnp.take_along_axis(scores, positives[:, None], axis=1)[:, 0]  # [B]
    others = (weights > 0) & (jnp.arange(scores.shape[1]) != positives[:, None])
    loss = jax.nn.logsumexp(scores, axis=1, b=weights) - positive
    best = jnp.max(jnp.where(others, scores, -jnp.inf), axis=1)
    return ContrastiveLosses(loss, positive > best)


def batch_weights(
    document_index: Int[Array, " D"],
    queries: int,
    *,
    relevant_index: Int[Array, "B R"] | None = None,
    in_batch: bool = True,
    positive_weight: float = 1.0,
    negative_weights: Float[Array, "B n"] | None = None,
) -> Float[Array, "B D"]:
    """The weights of `weighted_softmax` for a batch in which every query brings a group of documents of its own.

    Args:
      document_index: position in the corpus of every document, −1 for padding. Rows i·(1+n) … i·(1+n)+n belong to
        query i, its positive first. Equal documents must have equal positions here.
      queries: B; D must be a multiple of it.
      relevant_index: further relevant documents of each query, padded with −1.
      in_batch: count the documents of other queries.
      positive_weight: of the own positive; GDR's α.
      negative_weights: of the own negatives; GDR's α for those of the positive's cluster. None is 1.

    Raises:
      InputError: the shapes do not fit together.
    """
    documents = document_index.shape[0]
    size = group_size(documents, queries)
    own_weights = jnp.ones((queries, size), jnp.float32) if negative_weights is None else negative_weights
    if negative_weights is not None:
        if negative_weights.shape != (queries, size - 1):
            raise InputError(
                f"negative_weights must have the shape {(queries, size - 1)}",
                "Give one weight to every negative.",
                value=negative_weights.shape,
            )
        own_weights = jnp.pad(negative_weights.astype(jnp.float32), ((0, 0), (1, 0)))  # [B, 1+n]
    own_weights = own_weights.at[:, 0].set(positive_weight)
    column, row = jnp.arange(documents)[None], jnp.arange(queries)[:, None]
    own = column // size == row  # [B, D]
    is_positive = column == row * size
    positive_index = document_index[::size]  # [B]
    allowed = (document_index >= 0)[None] & (document_index[None] != positive_index[:, None])
    if relevant_index is not None:
        same = document_index[None, None] == relevant_index[:, :, None]  # [B, R, D]
        allowed = allowed & ~jnp.any(same, axis=1)
    weights = jnp.where(own, jnp.tile(own_weights, (1, queries)), 1.0 if in_batch else 0.0)
    # The positive stays even in rows of padding, whose sum would otherwise be empty.
    return jnp.where(allowed | is_positive, weights, 0.0)


def positive_columns(queries: int, documents: int) -> Int[Array, " B"]:
    """Where `batch_weights` expects the positives."""
    return jnp.arange(queries) * group_size(documents, queries)


def group_size(documents: int, queries: int) -> int:
    """1 + n.

    Raises:
      InputError: the queries of a batch do not all bring the same number of documents.
    """
    if not queries or documents % queries:
        raise InputError(
            f"{documents} documents cannot belong to {queries} queries in equal groups",
            "Give every query its positive and the same number of negatives.",
            value=(queries, documents),
        )
    return documents // queries

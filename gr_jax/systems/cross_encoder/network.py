"""Cross-encoders: query and document in one row, one score (Nogueira & Cho 2019, arXiv 1901.04085).

The row is `[CLS] query [SEP] title: text [SEP]` for BERT, `query </s> title: text </s>` for T5. Every token sees both
texts, so a pair costs a pass of the encoder, and only what a cheaper retriever proposes is scored.

A cross-encoder that starts from a sentence encoder knows nothing of pairs at first, and needs many to learn it. With
`similarity` it starts as good as that sentence encoder is: the same parameters also read query and document each alone,
the cosine of the two mean states and the mean MaxSim of their tokens are part of the score, and what reading them
together adds begins at 0 and is learned.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Float, Int

from gr_jax import losses
from gr_jax.dense.max_sim import max_sim_pairs
from gr_jax.errors import InputError
from gr_jax.losses.batch_loss import Batch, check_above_zero, check_weights, distillation_losses
from gr_jax.models import layers, network_folder
from gr_jax.models import text_encoder as encoders
from gr_jax.models.attention import padding_mask
from gr_jax.models.bert import BertConfig

NAME = "cross_encoder"  # in its folder
POOLINGS = ("cls", "mean", "pooler")
_init = nn.initializers.normal(stddev=0.02)


@dataclasses.dataclass(frozen=True)
class CrossEncoderConfig:
    """A cross-encoder.

    Attributes:
      encoder: a `BertConfig` or a `T5Config`.
      pooling: what the score is a linear function of: the first token's state ("cls"), the mean state ("mean"), or the
        first token's after one more layer with tanh ("pooler", as `BertForSequenceClassification`).
      similarity: read both texts alone too, and start from how similar they are.
      similarity_scale: what the cosine counts at first.
      max_sim_scale: what the mean MaxSim of the query's tokens counts at first.
      query_length: tokens of a query at most, where it is read alone.
      prefix_length: tokens that the vocabulary puts before every text: 1 for BERT ([CLS]), 0 for T5.
      dropout_rate: on the pooled state.
    """

    encoder: encoders.EncoderConfig
    pooling: str = "cls"
    similarity: bool = False
    similarity_scale: float = 10.0
    max_sim_scale: float = 40.0
    query_length: int = 32
    prefix_length: int = 1
    dropout_rate: float = 0.1

    def __post_init__(self):
        if self.pooling not in POOLINGS:
            raise InputError("unknown pooling", f"Choose one of {', '.join(POOLINGS)}.", value=self.pooling)


class CrossEncoder(nn.Module):
    """Pairs to scores. Parameters: `token_embedder/…`, `encoder/…`, `score/…`, with "pooler" `pooler/…`, with
    `similarity` the scalars `similarity_scale` and `max_sim_scale`.
    """

    config: CrossEncoderConfig

    def setup(self):
        config = self.config
        self.token_embedder = encoders.make_embedder(config.encoder)
        self.encoder = encoders.make_encoder(config.encoder)
        width, dtype = config.encoder.emb_dim, config.encoder.dtype
        if config.pooling == "pooler":
            self.pooler = layers.Dense((width,), ("embed", "kv"), kernel_init=_init, use_bias=True, dtype=dtype)
        # Where the score starts from a similarity, what is added to it starts at 0.
        start = nn.initializers.zeros if config.similarity else _init
        self.score = layers.Dense((1,), ("embed", "kv"), kernel_init=start, use_bias=True)
        if config.similarity:
            self.similarity_scale, self.max_sim_scale = (
                partitioning.param_with_axes(name, nn.initializers.constant(value), (), jnp.float32, axes=())
                for name, value in (
                    ("similarity_scale", config.similarity_scale),
                    ("max_sim_scale", config.max_sim_scale),
                )
            )

    def __call__(
        self,
        pair_tokens: Int[Array, "*rows L"],
        pair_segments: Int[Array, "*rows L"],
        *,
        deterministic: bool = True,
    ) -> Float[Array, "*rows"]:
        """Scores.

        Args:
          pair_tokens: query and document in one row, see the module; 0 is padding.
          pair_segments: 1 for the query with what surrounds it, 2 for the document, 0 for padding.
        """
        rows, length = pair_tokens.shape[:-1], pair_tokens.shape[-1]
        tokens, segments = pair_tokens.reshape(-1, length), pair_segments.reshape(-1, length)
        config = self.config
        types = {"token_types": jnp.maximum(segments - 1, 0)} if isinstance(config.encoder, BertConfig) else {}
        states = self._states(tokens, deterministic, **types)
        pooled = encoders.mean_pool(states, tokens) if config.pooling == "mean" else states[:, 0]
        if config.pooling == "pooler":
            pooled = jnp.tanh(self.pooler(pooled))
        if not deterministic and config.dropout_rate:
            keep = jax.random.bernoulli(self.make_rng("dropout"), 1.0 - config.dropout_rate, pooled.shape)
            pooled = jnp.where(keep, pooled / (1.0 - config.dropout_rate), 0.0).astype(pooled.dtype)
        scores = self.score(pooled.astype(jnp.float32))[:, 0]  # [pairs]
        if config.similarity:
            scores = scores + self._similarity(tokens, segments, deterministic)
        return scores.reshape(rows)

    def _similarity(self, tokens: Array, segments: Array, deterministic: bool) -> Float[Array, " pairs"]:
        config = self.config
        parts = split_pairs(tokens, segments, config.query_length, config.prefix_length)
        # In float32: what is off by a little in bfloat16 is multiplied by the scales below.
        states = (self._states(part, deterministic).astype(jnp.float32) for part in parts)
        (query, document), (q, d) = parts, states
        cosine = jnp.sum(
            encoders.unit(encoders.mean_pool(q, query)) * encoders.unit(encoders.mean_pool(d, document)), axis=-1
        )
        weights = (query != 0).astype(jnp.float32)
        weights = weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1.0)
        best = max_sim_pairs(encoders.unit(q), weights, encoders.unit(d), document != 0)
        return self.similarity_scale * cosine + self.max_sim_scale * best

    def _states(self, tokens: Array, deterministic: bool, **types: Array) -> Float[Array, "pairs S d"]:
        mask = padding_mask(tokens, None)
        return self.encoder(self.token_embedder(tokens), mask, None, **types, deterministic=deterministic)


def join_pairs(
    query_tokens: Int[Array, "*rows Lq"], document_tokens: Int[Array, "*rows Ld"], prefix_length: int
) -> tuple[Int[Array, "*rows L"], Int[Array, "*rows L"]]:
    """Pairs as a cross-encoder reads them, from texts that were tokenised each alone.

    Args:
      query_tokens, document_tokens: with the vocabulary's prefix and suffix, padded with 0 on the right.
      prefix_length: of the vocabulary; the document loses its prefix.

    Returns:
      Tokens and segments (1 query, 2 document, 0 padding), of L = Lq + Ld − prefix_length.
    """
    query_length = jnp.sum(query_tokens != 0, axis=-1, keepdims=True)  # [*rows, 1]
    length = query_tokens.shape[-1] + document_tokens.shape[-1] - prefix_length
    place = jnp.broadcast_to(jnp.arange(length), (*query_tokens.shape[:-1], length))
    in_query = place < query_length
    behind = place - query_length + prefix_length
    from_query = _take(query_tokens, place)
    from_document = jnp.where(behind < document_tokens.shape[-1], _take(document_tokens, behind), 0)
    tokens = jnp.where(in_query, from_query, from_document)
    return tokens, jnp.where(tokens == 0, 0, jnp.where(in_query, 1, 2))


def split_pairs(
    tokens: Int[Array, "*rows L"], segments: Int[Array, "*rows L"], query_length: int, prefix_length: int
) -> tuple[Int[Array, "*rows Lq"], Int[Array, "*rows Ld"]]:
    """The reverse of `join_pairs`: query and document, each as it would be read alone.

    Args:
      tokens, segments: of pairs.
      query_length: columns of the queries; a longer one is cut.
      prefix_length: tokens at the start of a row that are the vocabulary's; the document gets them too.
    """
    asked = jnp.sum(segments == 1, axis=-1, keepdims=True)
    query = jnp.where(segments == 1, tokens, 0)[..., :query_length]
    length = tokens.shape[-1]
    place = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    behind = place + asked - prefix_length
    document = jnp.where(behind < length, _take(tokens, behind), 0)
    prefix = jnp.where(jnp.any(segments == 2, axis=-1, keepdims=True), tokens, 0)
    return query, jnp.where(place < prefix_length, prefix, document)


def _take(rows: Array, places: Array) -> Array:
    return jnp.take_along_axis(rows, jnp.clip(places, 0, rows.shape[-1] - 1), axis=-1)


def save_cross_encoder(folder: str | os.PathLike, module: CrossEncoder, params: Mapping[str, Any]) -> None:
    """Writes configuration and parameters as `models.network_folder` does."""
    network_folder.write_around_encoder(folder, NAME, module.config, params)


def load_cross_encoder(folder: str | os.PathLike) -> tuple[CrossEncoder, dict]:
    """Reads what `save_cross_encoder` wrote.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    return network_folder.read_around_encoder(folder, NAME, lambda **fields: CrossEncoder(CrossEncoderConfig(**fields)))


@dataclasses.dataclass(frozen=True)
class CrossEncoderModel:
    """A `CrossEncoder` with those of T5X's model methods that training and scoring need: `get_initial_variables`,
    `loss_fn`, `eval_fn`, `score_batch`. Batches are those of `ContrastiveModel`, with negatives of each query's own.

    Attributes:
      module: the network.
      softmax: weight of the cross-entropy over a query's positive and its negatives.
      pointwise: weight of the logistic loss of each pair alone, relevant or not.
      margin_mse, teacher_kl: weights of these losses, see `losses`.
      teacher_temperature: see `losses.teacher_kl`.

    Raises:
      InputError: a weight or temperature that makes no sense.
    """

    module: CrossEncoder
    softmax: float = 1.0
    pointwise: float = 0.0
    margin_mse: float = 0.0
    teacher_kl: float = 0.0
    teacher_temperature: float = 1.0

    def __post_init__(self):
        check_weights(self, "softmax", "pointwise", "margin_mse", "teacher_kl")
        check_above_zero(self, "teacher_temperature")

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Sequence[int]],
        input_types: Mapping[str, Any] | None = None,
    ) -> Any:
        """Variables `{"params": …, "params_axes": …}`; run it under `jit` or `eval_shape`."""
        del input_types
        # As long as `join_pairs` makes them: a longer row may have more places than the encoder.
        lengths = [input_shapes[name][-1] for name in ("query_tokens", "document_tokens")]
        row = jnp.ones((1, sum(lengths) - self.module.config.prefix_length), jnp.int32)
        return self.module.init(rng, row, row)

    def loss_fn(
        self, params: Any, batch: Batch, dropout_rng: Array | None = None
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The sum of losses over queries, and metrics as pairs (sum, weight).

        Args:
          params: of the network.
          batch: see the class; queries and documents are joined here.
          dropout_rng: None switches dropout off.

        Raises:
          InputError: queries come without negatives, or a teacher's scores are missing.
        """
        scores = self._scores(params, batch, dropout_rng)  # [B, 1+n]
        if scores.shape[1] == 1:
            raise InputError(
                "a cross-encoder learns from wrong documents, and these queries come with their answers alone",
                "Make batches with num_negatives ≥ 1.",
            )
        index = batch["document_index"].reshape(scores.shape)
        real = (index[:, 0] >= 0).astype(jnp.float32)
        relevant = jnp.arange(scores.shape[1]) == 0
        # A negative that is the positive once more, or another relevant document, is none.
        others = index[:, :1] if "relevant_index" not in batch else batch["relevant_index"]
        also = jnp.any(index[:, :, None] == others[:, None, :], axis=2) | (index == index[:, :1])
        counted = relevant | ((index >= 0) & ~also)
        weight = jnp.sum(real)
        found = losses.weighted_softmax(scores, jnp.zeros(len(scores), jnp.int32), counted.astype(jnp.float32))
        logistic = jnp.where(relevant, jax.nn.softplus(-scores), jax.nn.softplus(scores)) * counted
        parts = {"softmax": found.loss, "pointwise": jnp.sum(logistic, axis=1) / jnp.sum(counted, axis=1)}
        metrics: dict[str, Any] = {name: (jnp.sum(part * real), weight) for name, part in parts.items()}
        for name, distilled in distillation_losses(self, scores, batch).items():
            metrics[name] = (jnp.sum(distilled.loss * real), jnp.sum(distilled.scored * real))
        total = sum((getattr(self, name) * metrics[name][0] for name in metrics), jnp.float32(0))
        metrics |= {"accuracy": (jnp.sum(found.correct * real), weight), "weight_sum": weight}
        return total, metrics | {"loss": (total, weight)}

    def eval_fn(self, params: Any, batch: Batch) -> tuple[Float[Array, ""], dict[str, Any]]:
        """`loss_fn` without dropout."""
        return self.loss_fn(params, batch, None)

    def score_batch(self, params: Any, batch: Batch) -> Float[Array, "B group"]:
        """Each query's scores of its own documents, the positive first."""
        return self._scores(params, batch, None)

    def _scores(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "B group"]:
        query, document = batch["query_tokens"], batch["document_tokens"]
        document = document.reshape(len(query), -1, document.shape[-1])  # [B, 1+n, Ld]
        query = jnp.broadcast_to(query[:, None], (*document.shape[:2], query.shape[-1]))
        tokens, segments = join_pairs(query, document, self.module.config.prefix_length)
        rngs = None if rng is None else {"dropout": rng}
        scores: Any = self.module.apply({"params": params}, tokens, segments, deterministic=rng is None, rngs=rngs)
        return scores

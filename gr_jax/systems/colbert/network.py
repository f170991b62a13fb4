"""Late interaction: one vector a token, and MaxSim between them (ColBERT, Khattab & Zaharia 2020, arXiv 2004.12832).

As in the paper: a marker says whether a text is a query or a document, [MASK] tokens fill a query up to a fixed length
and take part in the score ("query augmentation", §3.2), a linear map without bias takes states to 128 numbers, vectors
have unit length, and a document's punctuation has no vector. Each of it can be switched off. Added to it, for a start
from sentence encoders: a vector of the whole text (its mean state) beside those of the tokens, as in ColBERTer
(Hofstätter et al. 2022, arXiv 2203.13088, §3.1), and weights of query tokens. For documents that are read once and stay
as they were read: a tower of their own, and a projection of two layers.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from gr_jax.dense.max_sim import max_sim, max_sim_pairs
from gr_jax.errors import InputError
from gr_jax.losses.batch_loss import own_scores
from gr_jax.models import layers, network_folder
from gr_jax.models import text_encoder as encoders
from gr_jax.models.attention import padding_mask
from gr_jax.models.bi_encoder import Projection
from gr_jax.models.contrastive import Batch, ContrastiveModel
from gr_jax.models.gradient_caching import encode_in_chunks
from gr_jax.systems.colbert.tiles import tile_scores

NAME = "late_interaction"  # in its folder
TOKEN_WEIGHTS = ("uniform", "learned")


@dataclasses.dataclass(frozen=True)
class LateInteractionConfig:
    """A late-interaction network. The token ids are those of BERT's uncased vocabulary.

    Attributes:
      encoder: a `BertConfig` or a `T5Config`.
      dimension: of a token's vector.
      query_length: tokens that a shorter query is filled up to with `mask_token`; 0 fills nothing.
      mask_token: BERT's [MASK]; in T5's vocabulary one of the extra ids.
      mask_attended: a query's tokens look at its [MASK] tokens too. False, as the paper's code and models have it:
        [MASK] looks at the query, and nothing looks at [MASK].
      query_marker, document_marker: put behind the vocabulary's prefix: ids that no text has; None puts none.
      prefix_length: tokens that the vocabulary puts before every text: 1 for BERT ([CLS]), 0 for T5.
      skipped_tokens: ids that get no vector in a document: punctuation.
      whole_text: one more vector on both sides, of the mean state. Its weight in the score is learned, from
        `whole_text_weight` on.
      token_weights: "uniform", or "learned": a query token's weight follows from its state, and starts at 1.
      temperature: divides scores in the loss; ColBERT's is 1.
      projection_layers: 1 is the paper's linear map. 2 have a ReLU between them, and biases. 0 leaves states as they
        are: vectors then have any length, and `dimension` is the encoder's width.
      shared: one encoder reads queries and documents. False gives documents one of their own; the projection stays one.
    """

    encoder: encoders.EncoderConfig
    dimension: int = 128
    query_length: int = 32
    mask_token: int = 103
    mask_attended: bool = False
    query_marker: int | None = 1
    document_marker: int | None = 2
    prefix_length: int = 1
    skipped_tokens: tuple[int, ...] = ()
    whole_text: bool = False
    whole_text_weight: float = 1.0
    token_weights: str = "uniform"
    temperature: float = 1.0
    projection_layers: int = 1
    shared: bool = True

    def __post_init__(self):
        object.__setattr__(self, "skipped_tokens", tuple(int(token) for token in self.skipped_tokens))
        if self.token_weights not in TOKEN_WEIGHTS:
            raise InputError(
                "unknown token_weights", f"Choose one of {', '.join(TOKEN_WEIGHTS)}.", value=self.token_weights
            )
        if not 0 < self.temperature < float("inf"):
            raise InputError("a temperature is a number above 0", "Use 1.", value=self.temperature)
        for name, least in (("dimension", 1), ("query_length", 0), ("prefix_length", 0)):
            if getattr(self, name) < least:
                raise InputError(
                    f"{name} of late interaction is too small", f"Give {least} or more.", value=getattr(self, name)
                )
        if self.projection_layers not in (0, 1, 2):
            raise InputError("a projection has 0, 1 or 2 layers", "Use 1.", value=self.projection_layers)
        if not self.projection_layers and self.dimension != self.encoder.emb_dim:
            raise InputError(
                f"states that are left as they are have {self.encoder.emb_dim} numbers",
                f"Give dimension = {self.encoder.emb_dim}, or a projection of 1 or 2 layers.",
                value=self.dimension,
            )

    @property
    def packs(self) -> bool:
        """Several queries may be computed in one row: they are their own tokens alone."""
        return not self.query_length and self.query_marker is None


class LateInteraction(nn.Module):
    """Tokens to one vector a token. Parameters: `token_embedder/…`, `encoder/…`, `projection/kernel` (of two layers
    `projection/wi/…` and `projection/wo/…`), with learned `token_weights` `token_weight/…`, with `whole_text` the
    scalar `whole_text_weight`. Where documents have an encoder of their own, also `document_token_embedder/…` and
    `document_encoder/…`.
    """

    config: LateInteractionConfig

    def setup(self):
        config = self.config
        self.token_embedder = encoders.make_embedder(config.encoder)
        self.encoder = encoders.make_encoder(config.encoder)
        if not config.shared:
            self.document_token_embedder = encoders.make_embedder(config.encoder)
            self.document_encoder = encoders.make_encoder(config.encoder)
        if config.projection_layers == 1:
            self.projection: Any = layers.Dense((config.dimension,), ("embed", "kv"), dtype=config.encoder.dtype)
        elif config.projection_layers == 2:
            self.projection = Projection(config.dimension, config.encoder.dtype)
        if config.token_weights == "learned":
            self.token_weight = layers.Dense((1,), ("embed", "kv"), kernel_init=nn.initializers.zeros, use_bias=True)
        if config.whole_text:
            self.whole_text_weight = partitioning.param_with_axes(
                "whole_text_weight", nn.initializers.constant(config.whole_text_weight), (), jnp.float32, axes=()
            )

    def __call__(
        self, query_tokens: Int[Array, "B L"], document_tokens: Int[Array, "B M"], *, deterministic: bool = True
    ) -> Float[Array, " B"]:
        """The score of each query with the document of the same row."""
        queries, weights = self.encode_query(query_tokens, deterministic=deterministic)
        documents, mask = self.encode_document(document_tokens, deterministic=deterministic)
        return max_sim_pairs(queries, weights, documents, mask)

    def encode_query(
        self, tokens: Int[Array, "B L"], segment_ids: Int[Array, "R W"] | None = None, *, deterministic: bool = True
    ) -> tuple[Float[Array, "B Q d"], Float[Array, "B Q"]]:
        """Vectors and their weights, 0 where a row is padding. They do not depend on the width of the rows.

        Args:
          tokens: with the vocabulary's prefix and suffix, padded with 0 on the right.
          segment_ids: of `text_encoder.encode_packed`, or None.

        Raises:
          InputError: queries that are marked or filled up are to be packed.
        """
        config = self.config
        if segment_ids is not None and not config.packs:
            raise InputError(
                "queries that are marked or filled up are not packed", "Leave query_segment_ids out of the batch."
            )
        tokens = self._mark(tokens, config.query_marker)
        if config.query_length > tokens.shape[1]:
            tokens = jnp.pad(tokens, ((0, 0), (0, config.query_length - tokens.shape[1])))
        counted = (tokens != 0) | (jnp.arange(tokens.shape[1]) < config.query_length)
        read = jnp.where(tokens == 0, config.mask_token, tokens)
        seen = jnp.where(counted, read, 0) if config.mask_attended else tokens
        if segment_ids is None:
            states = self._states(seen, read, deterministic)
        else:
            states = encoders.encode_packed(self.token_embedder, self.encoder, tokens, segment_ids, deterministic)
        weights = counted.astype(jnp.float32)
        if config.token_weights == "learned":
            weights = weights * 2.0 * jax.nn.sigmoid(self.token_weight(states)[..., 0].astype(jnp.float32))
        if config.whole_text:
            states = _with_whole_text(states, tokens)
            weight = jnp.broadcast_to(self.whole_text_weight, weights[:, :1].shape)
            weights = jnp.concatenate([weight, weights], axis=1)
        return self.project(states), weights

    def encode_document(
        self, tokens: Int[Array, "N L"], *, deterministic: bool = True
    ) -> tuple[Float[Array, "N S d"], Bool[Array, "N S"]]:
        """Vectors, and which of them count.

        Args:
          tokens: with the vocabulary's prefix and suffix, padded with 0 on the right.
        """
        config = self.config
        tokens = self._mark(tokens, config.document_marker)
        states = self._states(tokens, tokens, deterministic, own=not config.shared)
        mask = tokens != 0
        if config.skipped_tokens:
            mask = mask & ~jnp.isin(tokens, jnp.array(config.skipped_tokens, tokens.dtype))
        if config.whole_text:
            states = _with_whole_text(states, tokens)
            mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        return self.project(states), mask

    def project(self, states: Float[Array, "... e"]) -> Float[Array, "... d"]:
        """Vectors of states, float32, of unit length; or the states, where there is no projection."""
        if not self.config.projection_layers:
            return states.astype(jnp.float32)
        return encoders.unit(self.projection(states).astype(jnp.float32))

    def _mark(self, tokens: Int[Array, "B L"], marker: int | None) -> Int[Array, "B M"]:
        if marker is None:
            return tokens
        at = self.config.prefix_length
        column = jnp.where(jnp.any(tokens != 0, axis=1, keepdims=True), marker, 0).astype(tokens.dtype)
        return jnp.concatenate([tokens[:, :at], column, tokens[:, at:]], axis=1)

    def _states(self, seen: Array, read: Array, deterministic: bool, *, own: bool = False) -> Float[Array, "B S e"]:
        """States of the tokens `read`, of which those are looked at that are not 0 in `seen`; by the encoder that
        documents have of their own, or not."""
        embedder = self.document_token_embedder if own else self.token_embedder
        encoder = self.document_encoder if own else self.encoder
        return encoder(embedder(read), padding_mask(seen, None), None, deterministic=deterministic)


def _with_whole_text(states: Float[Array, "B S e"], tokens: Int[Array, "B S"]) -> Float[Array, "B S_plus_one e"]:
    """The mean state before the states of the tokens."""
    return jnp.concatenate([encoders.mean_pool(states, tokens).astype(states.dtype)[:, None], states], axis=1)


def kept_tokens(
    config: LateInteractionConfig, tokens: Sequence[int] | Int[np.ndarray, " length"]
) -> Int[np.ndarray, " vectors"]:
    """Which token each vector of a document stands for, in the order of `encode_document`; −1 for the whole text.

    Args:
      config: of the network.
      tokens: of one document, prefix and suffix included, without padding.
    """
    row = np.asarray(tokens, np.int32)
    if config.document_marker is not None:
        row = np.insert(row, min(config.prefix_length, len(row)), config.document_marker)
    row = row[~np.isin(row, config.skipped_tokens)]
    return np.concatenate([[-1], row]).astype(np.int32) if config.whole_text else row


def principal_projection(states: Float[np.ndarray, "n e"], dimension: int) -> Float[np.ndarray, "e d"]:
    """The linear map to `dimension` numbers that keeps the inner products of unit states best: their leading principal
    axes, without centring. A start for `projection/kernel` with which a pretrained encoder keeps what it knows.

    Args:
      states: of many tokens.
      dimension: at most e.
    """
    if not 1 <= dimension <= states.shape[1]:
        raise InputError(
            f"{states.shape[1]} numbers cannot be projected to {dimension} principal axes",
            "Choose a dimension of at most the encoder's width.",
            value=dimension,
        )
    rows = states.astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    _, axes = np.linalg.eigh(rows.T @ rows)  # ascending
    return np.ascontiguousarray(axes[:, ::-1][:, :dimension]).astype(np.float32)


def save_late_interaction(folder: str | os.PathLike, module: LateInteraction, params: Mapping[str, Any]) -> None:
    """Writes configuration and parameters as `models.network_folder` does."""
    network_folder.write_around_encoder(folder, NAME, module.config, params)


def load_late_interaction(folder: str | os.PathLike) -> tuple[LateInteraction, dict]:
    """Reads what `save_late_interaction` wrote.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    return network_folder.read_around_encoder(
        folder, NAME, lambda **fields: LateInteraction(LateInteractionConfig(**fields))
    )


@dataclasses.dataclass(frozen=True)
class LateInteractionModel(ContrastiveModel):
    """A `LateInteraction` with the model methods of `ContrastiveModel`, and `score_batch`; scores are those of MaxSim.

    What T5X calls `predict_batch_with_aux` is not there: vectors of tokens come with weights and masks, and
    `LateInteraction.encode_query` and `encode_document` give both.

    Where a batch brings `document_states`, as `tiles.StateBatches` do, documents are not read: only the projection of
    their states is computed and trained.
    """

    module: LateInteraction

    def batch_scores(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "B D"]:
        """Scores of all queries and documents, divided by the temperature."""
        return self._scores(params, batch, rng) / self.module.config.temperature

    def score_batch(self, params: Any, batch: Batch) -> Float[Array, "B group"]:
        """Each query's scores of its own documents, the positive first, without the temperature."""
        return own_scores(self._scores(params, batch, None))

    def _scores(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "B D"]:
        queries, weights = self._encode(params, batch, "query", rng)
        if "document_states" in batch:

            def project(states: Array) -> Array:
                vectors: Any = self.module.apply({"params": params}, states, method="project")
                return vectors

            own = not getattr(self.loss, "in_batch", True)
            return tile_scores(
                queries, weights, project, batch["document_states"], batch["document_tiles"], own_alone=own
            )
        documents, mask = self._encode(params, batch, "document", rng)
        return max_sim(queries, weights, documents, mask > 0)

    def _encode(self, params: Any, batch: Batch, side: str, rng: Array | None) -> tuple[Array, Array]:
        segment_ids = batch.get("query_segment_ids") if side == "query" and self.chunks == 1 else None
        packed = () if segment_ids is None else (segment_ids,)

        def encode(tokens: Array, rng: Array | None) -> Array:
            found: Any = self.module.apply(
                {"params": params},
                tokens,
                *packed,
                deterministic=rng is None,
                rngs=None if rng is None else {"dropout": rng},
                method=f"encode_{side}",
            )
            vectors, weights = found
            # As one array, with the weight behind each vector: that is what chunks are made of.
            together = jnp.concatenate([vectors, weights[..., None].astype(vectors.dtype)], axis=-1)
            return together.reshape(len(tokens), -1)

        tokens = batch[f"{side}_tokens"]
        own = None if rng is None else jax.random.fold_in(rng, side == "document")
        together = encode_in_chunks(encode, tokens, own, self.chunks)
        together = together.reshape(len(tokens), -1, self.module.config.dimension + 1)  # [rows, S, d + 1]
        return together[..., :-1], together[..., -1]

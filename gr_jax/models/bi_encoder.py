"""Bi-encoders: queries and documents as vectors whose product says how well they fit (DPR, Karpukhin et al. 2020)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from gr_jax.errors import InputError
from gr_jax.models import bert, layers, network_folder
from gr_jax.models import text_encoder as encoders
from gr_jax.models.contrastive import Batch, ContrastiveModel
from gr_jax.models.gradient_caching import encode_in_chunks
from gr_jax.models.sentence_encoder import SentenceEncoder

if TYPE_CHECKING:
    from gr_jax.text import Vocabulary

POOLINGS = ("mean", "cls", "pooler")
SIMILARITIES = ("dot", "cosine", "tanh")
SIDES = ("query", "document")


@dataclasses.dataclass(frozen=True)
class BiEncoderConfig:
    """What a bi-encoder is made of.

    Attributes:
      encoder: a `BertConfig` or a `T5Config` (of which the encoder is used).
      shared: one tower reads both sides; False gives documents a tower of their own.
      document_encoder: of a tower of another kind; None takes `encoder`.
      pooling: how token states become one vector. "mean" over all tokens, "cls", the first one, or "pooler": BERT's
        tanh layer over the first one.
      document_pooling: of documents, where it is another.
      projection: width of vectors, reached by a two-layer ReLU network; None keeps the encoder's.
      similarity: "dot", "cosine" (vectors then have unit length) or "tanh", the tanh of the product (GDR).
      temperature: divides similarities in the loss.

    Raises:
      InputError: a name is unknown, or the parts do not fit together.
    """

    encoder: encoders.EncoderConfig = dataclasses.field(default_factory=bert.BertConfig)
    shared: bool = True
    document_encoder: encoders.EncoderConfig | None = None
    pooling: str = "mean"
    document_pooling: str | None = None
    projection: int | None = None
    similarity: str = "cosine"
    temperature: float = 0.05

    def __post_init__(self):
        _check(self)

    def tower(self, side: str) -> Tower:
        """The network of one side, "query" or "document"."""
        document = side == "document"
        return Tower(
            config=(document and self.document_encoder) or self.encoder,
            pooling=(document and self.document_pooling) or self.pooling,
            projection=self.projection,
            normalize=self.similarity == "cosine",
        )

    def scope(self, side: str) -> str:
        """The name under which that network's parameters lie."""
        return "query" if self.shared else side


def _check(config: BiEncoderConfig) -> None:
    for name, known in (("pooling", POOLINGS), ("document_pooling", (*POOLINGS, None)), ("similarity", SIMILARITIES)):
        if getattr(config, name) not in known:
            choices = ", ".join(filter(None, known))
            raise InputError(f"unknown {name} of a bi-encoder", f"Use {choices}.", value=getattr(config, name))
    if not 0 < config.temperature < float("inf"):
        raise InputError("a temperature is a number above 0", "Raise it.", value=config.temperature)
    if config.projection is not None and config.projection < 1:
        raise InputError("vectors need a width", "Give projection ≥ 1, or None.", value=config.projection)
    if config.shared and (config.document_encoder is not None or config.document_pooling is not None):
        raise InputError("a shared tower has one encoder and one pooling", "Set shared=False.")
    widths = {config.tower(side).dimension for side in SIDES}
    if len(widths) > 1:
        raise InputError(
            "the towers give vectors of different widths", "Set projection, which both then have.", value=widths
        )


class Projection(nn.Module):
    """Two layers with a ReLU between them. Parameters: `wi/…`, `wo/…`."""

    features: int
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... features"]:
        hidden = layers.Dense(x.shape[-1:], ("embed", "mlp"), use_bias=True, dtype=self.dtype, name="wi")(x)
        return layers.Dense((self.features,), ("mlp", "embed"), use_bias=True, dtype=self.dtype, name="wo")(
            nn.relu(hidden)
        )


class Tower(nn.Module):
    """Tokens to one vector per row. Parameters: `token_embedder/…`, `encoder/…`, `pooler/…`, `projection/…`."""

    config: encoders.EncoderConfig
    pooling: str = "mean"
    projection: int | None = None
    normalize: bool = False

    @property
    def dimension(self) -> int:
        """Width of the vectors."""
        return self.projection or self.config.emb_dim

    def setup(self):
        config = self.config
        self.token_embedder = encoders.make_embedder(config)
        self.encoder = encoders.make_encoder(config)
        if self.pooling == "pooler":
            self.pooler = layers.Dense((config.emb_dim,), ("embed", "kv"), use_bias=True, dtype=config.dtype)
        if self.projection is not None:
            self.projector = Projection(self.projection, config.dtype, name="projection")

    def __call__(
        self, tokens: Int[Array, "B S"], segment_ids: Int[Array, "R W"] | None = None, *, deterministic: bool = True
    ) -> Float[Array, "B d"]:
        """Args: tokens (0 is padding); segment_ids of `text_encoder.encode_packed`, or None. Vectors are float32; those
        of rows that are all padding mean nothing."""
        if segment_ids is None:
            states = encoders.encode(self.token_embedder, self.encoder, tokens, None, None, deterministic)  # [B, S, e]
        else:
            states = encoders.encode_packed(self.token_embedder, self.encoder, tokens, segment_ids, deterministic)
        if self.pooling == "mean":
            pooled = encoders.mean_pool(states, tokens)
        else:
            pooled = states[:, 0]
            if self.pooling == "pooler":
                pooled = jnp.tanh(self.pooler(pooled))
        return self.project(pooled)

    def project(self, pooled: Float[Array, "B e"]) -> Float[Array, "B d"]:
        """Vectors of what the encoder's states were pooled to."""
        if self.projection is not None:
            pooled = self.projector(pooled)
        pooled = pooled.astype(jnp.float32)
        return encoders.unit(pooled) if self.normalize else pooled


class BiEncoder(nn.Module):
    """Two towers, or one for both sides. Parameters: `query/…`, and `document/…` where the towers are separate."""

    config: BiEncoderConfig

    def setup(self):
        self.query = self.config.tower("query")
        if not self.config.shared:
            self.document = self.config.tower("document")

    def encode_query(
        self, tokens: Int[Array, "B S"], segment_ids: Int[Array, "R W"] | None = None, *, deterministic: bool = True
    ) -> Float[Array, "B d"]:
        """Vectors of queries; see `Tower`."""
        return self.query(tokens, segment_ids, deterministic=deterministic)

    def encode_document(self, tokens: Int[Array, "B S"], *, deterministic: bool = True) -> Float[Array, "B d"]:
        """Vectors of documents."""
        return self._documents(tokens, deterministic=deterministic)

    def project_document(self, pooled: Float[Array, "B e"]) -> Float[Array, "B d"]:
        """Vectors of documents whose states were pooled before."""
        return self._documents.project(pooled)

    @property
    def _documents(self) -> Tower:
        return self.query if self.config.shared else self.document

    def __call__(
        self, query_tokens: Int[Array, "B S"], document_tokens: Int[Array, "D T"], *, deterministic: bool = True
    ) -> tuple[Float[Array, "B d"], Float[Array, "D d"]]:
        """Vectors of both sides."""
        return (
            self.encode_query(query_tokens, deterministic=deterministic),
            self.encode_document(document_tokens, deterministic=deterministic),
        )


def save_bi_encoder(folder: str | os.PathLike, config: BiEncoderConfig, params: Mapping[str, Any]) -> None:
    """Writes a bi-encoder's configuration and parameters into a folder that somebody else finishes."""
    names = ("shared", "pooling", "document_pooling", "projection", "similarity", "temperature")
    about = {name: getattr(config, name) for name in names}
    about["encoder"] = network_folder.encoder_to_json(config.encoder)
    if config.document_encoder is not None:
        about["document_encoder"] = network_folder.encoder_to_json(config.document_encoder)
    network_folder.write(folder, about, jax.tree.map(np.asarray, dict(params)))


def load_bi_encoder(folder: str | os.PathLike) -> tuple[BiEncoderConfig, dict]:
    """Reads what `save_bi_encoder` wrote.

    Raises:
      InputError: a file is missing or is not what it should be.
    """

    def make(about: Mapping[str, Any]) -> BiEncoder:
        towers = {
            name: network_folder.encoder_from_json(about[name])
            for name in ("encoder", "document_encoder")
            if name in about
        }
        return BiEncoder(BiEncoderConfig(**{**about, **towers}))

    module, params = network_folder.read(folder, make)
    return module.config, params


def sentence_encoders(
    config: BiEncoderConfig,
    params: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    query_prompt: str = "",
    document_prompt: str = "",
) -> tuple[SentenceEncoder, SentenceEncoder]:
    """Both sides of a bi-encoder as encoders of texts: (of queries, of documents).

    Args:
      config, params: of the `BiEncoder`.
      vocabulary: of both sides.
      query_prompt, document_prompt: put before every text, as in training ("query: ", "passage: ").
    """
    query, document = (
        SentenceEncoder(config.tower(side), params[config.scope(side)], vocabulary, pooling=None, prompt=prompt)
        for side, prompt in (("query", query_prompt), ("document", document_prompt))
    )
    return query, document


@dataclasses.dataclass(frozen=True)
class BiEncoderModel(ContrastiveModel):
    """A `BiEncoder` with the model methods of `ContrastiveModel`, and T5X's `score_batch` and `predict_batch_with_aux`.
    Scores are similarities.

    Where a batch brings `document_states` [D, e], what the encoder pooled of documents once, only the projection of
    documents is computed and trained. Where it brings `document_vectors` [D, d], as `gr_jax.training.VectorBatches` do,
    they stand for the documents, and the loss teaches the side of queries alone. They are taken as they are: with
    similarity "cosine" they must have unit length already. A document tower of its own then has gradients of 0, but
    weight decay moves it all the same, unless its multiplier is 0.
    """

    module: BiEncoder

    def batch_scores(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "B D"]:
        """Similarities of all queries and documents, divided by the temperature."""
        queries = self._vectors(params, batch, "query", rng)
        return self._similarity(queries @ self._documents(params, batch, rng).T)

    def score_batch(self, params: Any, batch: Batch) -> Float[Array, "B group"]:
        """Similarity of each query to each of its own documents, without the temperature."""
        queries, documents = self._vectors(params, batch, "query", None), self._documents(params, batch, None)
        groups = documents.reshape(len(queries), -1, documents.shape[-1])  # [B, 1+n, d]
        return self._similarity(jnp.einsum("bd,bgd->bg", queries, groups)) * self.module.config.temperature

    def predict_batch_with_aux(
        self, params: Any, batch: Batch, rng: Array | None = None
    ) -> tuple[Float[Array, "B d"], dict[str, Array]]:
        """The vectors of queries, and `{"documents": [D, d]}`, those of documents."""
        del rng
        return self._vectors(params, batch, "query", None), {"documents": self._documents(params, batch, None)}

    def _documents(self, params: Any, batch: Batch, rng: Array | None) -> Float[Array, "D d"]:
        if "document_vectors" in batch:
            return batch["document_vectors"]
        if "document_states" in batch:
            found: Any = self.module.apply({"params": params}, batch["document_states"], method="project_document")
            return found
        return self._vectors(params, batch, "document", rng)

    def _vectors(self, params: Any, batch: Batch, side: str, rng: Array | None) -> Float[Array, "rows d"]:
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
            return found

        own = None if rng is None else jax.random.fold_in(rng, SIDES.index(side))
        return encode_in_chunks(encode, batch[f"{side}_tokens"], own, self.chunks)

    def _similarity(self, products: Array) -> Array:
        config = self.module.config
        return (jnp.tanh(products) if config.similarity == "tanh" else products) / config.temperature

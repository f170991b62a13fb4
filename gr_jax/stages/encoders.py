"""From settings to a bi-encoder with its first parameters, and to the encoder of texts around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gin
import jax
import numpy as np
from jax.sharding import Mesh

from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.stages import pretrained as pretrained_lib
from gr_jax.stages import vocabulary as vocabularies
from gr_jax.stages.settings import Settings, check_heads, setting
from gr_jax.text import Vocabulary


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Encoders(Settings):
    """The encoders of queries and documents.

    Attributes:
      encoder: "minilm" (pretrained), "t5" (from scratch, of the sizes below), or a Hugging Face folder of T5 or BERT.
      vocabulary: "pretrained" (the encoder's own), "sentencepiece" (trained on the corpus) or "byte".
      vocabulary_size: of a trained vocabulary.
      shared: one tower reads queries and documents; else two that start from the same parameters.
      pooling: of token states: "mean", "cls" or "pooler".
      projection: width that vectors are projected to by two layers; None leaves them as they are pooled.
      similarity: "cosine", "dot" or "tanh".
      temperature: similarities are divided by it in the loss.
      query_length, document_length: tokens read of each.
      query_prefix, document_prefix: words put before each.
      dropout: rate.
      width, layers, heads, mlp_width: sizes of an encoder from scratch.
      pretrained_layers: of a pretrained BERT only so many are used, the first ones; 0 leaves its input embeddings.
        None: all.
    """

    encoder: str = setting("minilm", identity=pretrained_lib.identity)
    vocabulary: str = setting("pretrained", choices=vocabularies.KINDS)
    vocabulary_size: int = setting(8000, at_least=1)
    shared: bool = True
    pooling: str = setting("mean", choices=("mean", "cls", "pooler"))
    projection: int | None = setting(None, at_least=1)
    similarity: str = setting("cosine", choices=("cosine", "dot", "tanh"))
    temperature: float = setting(0.05, above=0)
    query_length: int = setting(48, at_least=3)
    document_length: int = setting(128, at_least=3)
    query_prefix: str = ""
    document_prefix: str = ""
    dropout: float = setting(0.1, at_least=0, below=1)
    width: int = setting(384, at_least=1)
    layers: int = setting(2, at_least=1)
    heads: int = setting(6, at_least=1)
    mlp_width: int = setting(1024, at_least=1)
    pretrained_layers: int | None = setting(None, at_least=0, neutral=None)

    def check(self) -> None:
        check_heads("Encoders", self.width, self.heads)
        vocabularies.check_vocabulary("Encoders", self)


def make_encoders(settings: Encoders, vocabulary_size: int) -> tuple[models.BiEncoderConfig, dict | None]:
    """The bi-encoder's configuration, and one tower's pretrained parameters (None where it starts from scratch)."""
    pretrained = None
    if settings.encoder == "t5":
        stack: Any = models.T5Config(
            vocab_size=vocabulary_size,
            emb_dim=settings.width,
            num_heads=settings.heads,
            head_dim=settings.width // settings.heads,
            num_encoder_layers=settings.layers,
            mlp_dim=settings.mlp_width,
            mlp_activations=("gelu", "linear"),
            dropout_rate=settings.dropout,
        )
    else:
        from gr_jax.interop import huggingface

        stack, pretrained = pretrained_lib.load_stack(settings.encoder, settings.dropout)
        if settings.pooling == "pooler" and isinstance(stack, models.BertConfig):
            pooler = huggingface.load_bert_pooler(pretrained_lib.pretrained_folder(settings.encoder), stack)
            pretrained |= {} if pooler is None else {"pooler": pooler}
        if settings.pretrained_layers is not None:
            stack, pretrained = first_layers(stack, pretrained, settings.pretrained_layers)
    config = models.BiEncoderConfig(
        encoder=stack,
        shared=settings.shared,
        pooling=settings.pooling,
        projection=settings.projection,
        similarity=settings.similarity,
        temperature=settings.temperature,
    )
    return config, pretrained


def first_layers(stack: Any, pretrained: Mapping[str, Any], count: int) -> tuple[models.BertConfig, dict]:
    """A pretrained BERT without its upper layers: with none left, its input embeddings.

    Raises:
      InputError: it is no BERT, or has fewer layers.
    """
    if not isinstance(stack, models.BertConfig) or count > stack.num_encoder_layers:
        raise InputError(
            "only a pretrained BERT can be read in part, up to all of its layers",
            "Set Encoders.pretrained_layers = None.",
            value=count,
        )
    dropped = {f"layers_{layer}" for layer in range(count, stack.num_encoder_layers)}
    encoder = {name: part for name, part in pretrained["encoder"].items() if name not in dropped}
    return dataclasses.replace(stack, num_encoder_layers=count), {**pretrained, "encoder": encoder}


def initial_parameters(config: models.BiEncoderConfig, pretrained: Mapping[str, Any] | None, seed: int) -> dict:
    """Random parameters from `seed`, with the pretrained ones put into every tower."""
    tokens = np.ones((1, 8), np.int32)
    params = jax.jit(models.BiEncoder(config).init)(jax.random.key(seed), tokens, tokens)["params"]
    params = {name: dict(jax.tree.map(np.asarray, tower)) for name, tower in params.items()}
    for tower in params.values():
        for name in tower:
            if pretrained is not None and name in pretrained:
                tower[name] = jax.tree.map(np.asarray, pretrained[name])
    return params


# Factors on the learning rate where nobody says otherwise; see `learning_rate_multipliers`. A random projection learns
# faster than the pretrained layers under it.
DEFAULT_MULTIPLIERS = {"pretrained lower half": 0.0, "projection": 20.0}


def learning_rate_multipliers(config: models.BiEncoderConfig, pretrained: Mapping[str, Any] | None) -> dict[str, float]:
    """Which parameters move how much, where nobody says otherwise: of a pretrained encoder neither the word embeddings
    nor the lower half of the layers. Half an hour on two cores buys more examples so than it costs in freedom."""
    if pretrained is None:
        return {}
    frozen = ["token_embedder", *(f"encoder/{name}" for name in pretrained["encoder"] if "embed" in name)]
    frozen += [f"encoder/layers_{layer}" for layer in range(config.encoder.num_encoder_layers // 2)]
    factors = {f"[^/]+/{name}": DEFAULT_MULTIPLIERS["pretrained lower half"] for name in frozen}
    return factors if config.projection is None else factors | {"[^/]+/projection": DEFAULT_MULTIPLIERS["projection"]}


def text_encoder(
    settings: Encoders,
    config: models.BiEncoderConfig,
    params: Mapping[str, Any],
    vocabulary: Vocabulary,
    transform: str,
    mesh: Mesh | None = None,
) -> DenseEncoder:
    """The encoder of texts around a network."""
    return DenseEncoder(
        config,
        params,
        vocabulary,
        query_length=settings.query_length,
        document_length=settings.document_length,
        query_prefix=settings.query_prefix,
        document_prefix=settings.document_prefix,
        transform=transform,
        mesh=mesh,
    )

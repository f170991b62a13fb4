"""From settings to a bi-encoder with its first parameters, and to the encoder of texts around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from gr_jax import models
from gr_jax.errors import InputError
from gr_jax.recipes import documents
from gr_jax.recipes.dense_settings import Encoders
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.text import Vocabulary
from gr_jax.training.partitioning import make_mesh


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

        folder = documents.pretrained_folder(settings.encoder)
        load = huggingface.load_t5 if huggingface.model_type(folder) == "t5" else huggingface.load_bert
        stack, pretrained = load(folder, dropout_rate=settings.dropout)
        if settings.pooling == "pooler" and isinstance(stack, models.BertConfig):
            pooler = huggingface.load_bert_pooler(folder, stack)
            pretrained |= {} if pooler is None else {"pooler": pooler}
        if settings.pretrained_layers is not None:
            stack, pretrained = first_layers(stack, pretrained, settings.pretrained_layers)
    config = models.BiEncoderConfig(
        encoder=stack,
        shared=settings.shared,
        pooling=settings.pooling,
        projection=settings.projection or None,
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


def all_devices() -> Mesh | None:
    """A mesh that splits batches of texts over all devices of this host; None where there is one."""
    count = len(jax.local_devices())
    return make_mesh(count, devices=jax.local_devices()) if count > 1 else None


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

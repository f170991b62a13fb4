"""Ids that a decoder learns to write after its training, by their vectors alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from gr_jax.errors import InputError
from gr_jax.models.copying_ids import UNCOPIED, CopyingEncoderDecoder
from gr_jax.models.generative import GenerativeDecoder

_MULTIPLE = 8  # tables stay divisible by the devices of a mesh


def with_more_ids(
    decoder: GenerativeDecoder, vectors: Float[np.ndarray, "n d"], copied: Int[np.ndarray, " n"]
) -> GenerativeDecoder:
    """The same network, whose vocabulary has n ids more, and up to 7 that nothing writes behind them.

    Args:
      decoder: whose ids are read and written by vectors of their own.
      vectors: directions of the new ids; they get the length that rows of its tables have.
      copied: the token of queries that each writes, for networks that copy; −1: none.

    Raises:
      InputError: tables that are shared, of another width, or made anew for every prefix.
    """
    module, params = decoder.module, decoder.params
    if module.shares_embeddings or module.decoder_sizes.logits_via_embedding or module.pawa_layers:
        raise InputError(
            "this decoder's vocabulary cannot grow",
            "Use one with tables of its own for reading and for writing, and without PAWA.",
        )
    inputs = np.asarray(params["decoder_token_embedder"]["embedding"], np.float32)
    outputs = np.asarray(params["decoder"]["logits_dense"]["kernel"], np.float32).T
    if {inputs.shape[1], outputs.shape[1]} != {vectors.shape[1]}:
        raise InputError(
            f"vectors {vectors.shape[1]} wide, and a decoder that reads {inputs.shape[1]} and writes "
            f"{outputs.shape[1]}",
            "Use a decoder as wide as the encoder.",
        )
    rows = np.zeros((-(-len(vectors) // _MULTIPLE) * _MULTIPLE, vectors.shape[1]), np.float32)
    rows[: len(vectors)] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    size = module.vocab_size + len(rows)
    grown: dict[str, Any] = {
        **params,
        "decoder_token_embedder": {"embedding": np.concatenate([inputs, rows * _length(inputs)])},
        "decoder": {
            **params["decoder"],
            "logits_dense": {"kernel": np.concatenate([outputs, rows * _length(outputs)]).T.copy()},
        },
    }
    changes: dict[str, Any] = {"decoder_config": dataclasses.replace(module.decoder_sizes, vocab_size=size)}
    if isinstance(module, CopyingEncoderDecoder):
        texts = np.full(len(rows), UNCOPIED)
        texts[: len(vectors)] = copied
        changes["text_of"] = (*module.text_of, *texts.tolist())
        bias = np.asarray(params["id_bias"], np.float32)
        grown["id_bias"] = np.concatenate([bias, np.full(len(rows), bias.min())])  # no likelier than any other
    return type(decoder)(module.clone(**changes), jax.tree.map(jnp.asarray, grown), decoder.levels, decoder.eos_id)


def _length(table: Float[np.ndarray, "rows d"]) -> float:
    """Of rows that are there."""
    lengths = np.linalg.norm(table, axis=1)
    return float(lengths[lengths > 0].mean())

"""Cross-encoders from Hugging Face folders: `BertForSequenceClassification` with one label."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from gr_jax.errors import InputError
from gr_jax.interop.huggingface import load_bert, load_bert_pooler
from gr_jax.interop.safetensors import TensorFolder
from gr_jax.systems.cross_encoder.network import CrossEncoder, CrossEncoderConfig


def load_bert_cross_encoder(folder: str | os.PathLike, **changes: Any) -> tuple[CrossEncoder, dict]:
    """Reads a cross-encoder as `transformers` or sentence-transformers saved it.

    Args:
      folder: holds config.json and model.safetensors of a `BertForSequenceClassification` that gives one score.
      **changes: fields of `BertConfig` to set otherwise.

    Returns:
      The network and its parameters. Scores are the logits: where the model's own pipeline ends in a sigmoid, the
      order is the same.

    Raises:
      InputError: something is missing, truncated or altered, or the model gives more than one number for a pair.
    """
    folder = pathlib.Path(folder)
    config, params = load_bert(folder, **changes)
    tensors, width = TensorFolder(folder), config.emb_dim
    if "classifier.weight" not in tensors.names:
        raise InputError(
            "there is no classifier: this BERT scores no pairs", "Name a BertForSequenceClassification.", file=folder
        )
    try:
        kernel, bias = tensors.read("classifier.weight", (1, width)), tensors.read("classifier.bias", (1,))
    except InputError as error:
        raise InputError(
            f"the classifier does not give one score: {error.problem}",
            "Name a model with one label.",
            file=folder,
        ) from error
    pooler = load_bert_pooler(folder, config)
    if pooler is None:
        raise InputError("there is no pooler under the classifier", "Copy the folder again whole.", file=folder)
    params["pooler"] = pooler
    params["score"] = {"kernel": np.ascontiguousarray(kernel.T), "bias": bias}
    return CrossEncoder(CrossEncoderConfig(config, pooling="pooler", dropout_rate=config.dropout_rate)), params

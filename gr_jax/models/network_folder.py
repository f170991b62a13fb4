"""A network as a folder: its configuration as JSON, its parameters as safetensors under T5X's names."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import traverse_util

from gr_jax.errors import InputError
from gr_jax.models.bert import BertConfig
from gr_jax.models.encoder_decoder import EncoderDecoder
from gr_jax.models.t5 import T5Config

CONFIG_FILE = "network.json"
PARAMETERS_FILE = "parameters.safetensors"


def save_network(folder: str | os.PathLike, module: EncoderDecoder, params: Mapping[str, Any]) -> None:
    """Writes the configuration as JSON and the parameters as safetensors, named by T5X's paths."""
    folder = pathlib.Path(folder)
    config = {
        "encoder": {"kind": _kind(module.encoder_config), **dataclasses.asdict(module.encoder_config)},
        "decoder": {"kind": "t5", **dataclasses.asdict(module.decoder_sizes)},
        "share_embeddings": module.shares_embeddings,
        "query_residual": module.query_residual,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    arrays = {
        name: np.asarray(value, order="C") for name, value in flat.items()
    }  # ascontiguousarray makes scalars rows
    safetensors.numpy.save_file(arrays, folder / PARAMETERS_FILE)


def load_network(folder: str | os.PathLike) -> tuple[EncoderDecoder, dict]:
    """Reads what `save_network` wrote.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    folder = pathlib.Path(folder)
    file = folder / CONFIG_FILE
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        module = EncoderDecoder(
            encoder_config=_make_config(config["encoder"]),
            decoder_config=_make_config(config["decoder"]),
            share_embeddings=config["share_embeddings"],
            query_residual=config["query_residual"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a network's configuration: {error}", "Make the index again.", file=file) from error
    file = folder / PARAMETERS_FILE
    try:
        flat = safetensors.numpy.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"not readable parameters: {error}", "Make the index again.", file=file) from error
    params = traverse_util.unflatten_dict(flat, sep="/")
    tokens = np.ones((1, 8), np.int32)
    wanted = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]
    shapes = {name: leaf.shape for name, leaf in traverse_util.flatten_dict(dict(wanted), sep="/").items()}
    for name in sorted({*shapes, *flat}):
        have = flat[name].shape if name in flat else None
        if have != shapes.get(name):
            raise InputError(
                f"the parameter {name} has shape {have}, its network wants {shapes.get(name)}",
                "Make the index again: its files belong to different models.",
                file=file,
            )
    return module, params


def _kind(config: Any) -> str:
    return "bert" if isinstance(config, BertConfig) else "t5"


def _make_config(raw: Mapping[str, Any]) -> Any:
    fields = {name: value for name, value in raw.items() if name != "kind"}
    return (BertConfig if raw["kind"] == "bert" else T5Config)(**fields)

"""A network as a folder: its configuration as JSON, its parameters as safetensors under T5X's names."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import linen as nn
from flax import traverse_util

from gr_jax.errors import InputError
from gr_jax.models.bert import BertConfig
from gr_jax.models.encoder_decoder import EncoderDecoder
from gr_jax.models.t5 import T5Config

CONFIG_FILE = "network.json"
PARAMETERS_FILE = "parameters.safetensors"
Network = TypeVar("Network", bound=nn.Module)


def save_network(folder: str | os.PathLike, module: EncoderDecoder, params: Mapping[str, Any]) -> None:
    """Writes the configuration as JSON and the parameters as safetensors, named by T5X's paths."""
    config = {
        "encoder": encoder_to_json(module.encoder_config),
        "decoder": encoder_to_json(module.decoder_sizes),
        "share_embeddings": module.shares_embeddings,
        "query_residual": module.query_residual,
        "pawa_layers": module.pawa_layers,
        "query_pooling": module.query_pooling,
    }
    write(folder, config, params)


def load_network(folder: str | os.PathLike) -> tuple[EncoderDecoder, dict]:
    """Reads what `save_network` wrote.

    Raises:
      InputError: a file is missing or is not what it should be.
    """

    def make(config: Mapping[str, Any]) -> EncoderDecoder:
        return EncoderDecoder(
            encoder_config=encoder_from_json(config["encoder"]),
            decoder_config=encoder_from_json(config["decoder"]),
            share_embeddings=config["share_embeddings"],
            query_residual=config["query_residual"],
            pawa_layers=config.get("pawa_layers", 0),
            query_pooling=config.get("query_pooling", "mean"),  # as it was before there was a choice
        )

    return read(folder, make)


def write(folder: str | os.PathLike, config: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Writes any network: its configuration, which must be JSON, and its parameters."""
    folder = pathlib.Path(folder)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    arrays = {
        name: np.asarray(value, order="C") for name, value in flat.items()
    }  # ascontiguousarray makes scalars rows
    safetensors.numpy.save_file(arrays, folder / PARAMETERS_FILE)


def read(folder: str | os.PathLike, make: Callable[[Mapping[str, Any]], Network]) -> tuple[Network, dict]:
    """Reads what `write` wrote.

    Args:
      folder: where it lies.
      make: the network of a configuration; it is called with two arrays of tokens when it is initialised.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    folder = pathlib.Path(folder)
    file = folder / CONFIG_FILE
    try:
        module = make(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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


def encoder_to_json(config: T5Config | BertConfig) -> dict[str, Any]:
    """The sizes of a stack, and of which kind it is."""
    return {"kind": "bert" if isinstance(config, BertConfig) else "t5", **dataclasses.asdict(config)}


def encoder_from_json(raw: Mapping[str, Any]) -> Any:
    """Reads what `encoder_to_json` gave."""
    fields = {name: value for name, value in raw.items() if name != "kind"}
    return (BertConfig if raw["kind"] == "bert" else T5Config)(**fields)

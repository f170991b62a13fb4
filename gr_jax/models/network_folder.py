"""A network as a folder: its configuration as JSON, its parameters as safetensors under T5X's names.

The configuration of a network that writes says of which kind it is; `load_model` opens any kind that somebody
registered (`gr_jax.registry.NETWORKS`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

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
from gr_jax.registry import NETWORKS

if TYPE_CHECKING:
    from gr_jax.models.generative_model import GenerativeModel

ENCODER_DECODER = "encoder_decoder"
CONFIG_FILE = "network.json"
PARAMETERS_FILE = "parameters.safetensors"
Network = TypeVar("Network", bound=nn.Module)


def load_model(folder: str | os.PathLike) -> GenerativeModel:
    """Reads a network of any registered kind, which is what its `save` wrote.

    Raises:
      InputError: a kind that nobody registered; a file is missing or is not what it should be.
    """
    kind = read_config(folder).get("kind")
    return NETWORKS.find(kind, file=pathlib.Path(folder) / CONFIG_FILE).load(folder)


def save_network(
    folder: str | os.PathLike,
    module: EncoderDecoder,
    params: Mapping[str, Any],
    *,
    levels: Sequence[tuple[int, int]] | None = None,
    eos_id: int | None = None,
) -> None:
    """Writes the configuration as JSON and the parameters as safetensors, named by T5X's paths.

    Args:
      folder: there already.
      module, params: the network.
      levels, eos_id: of the identifiers that it writes, where they are known; see `load_identifiers`.
    """
    write(folder, encoder_decoder_to_json(module, levels=levels, eos_id=eos_id), params)


def load_network(folder: str | os.PathLike) -> tuple[EncoderDecoder, dict]:
    """Reads what `save_network` wrote.

    Raises:
      InputError: a file is missing or is not what it should be, or the network is of another kind.
    """

    def make(config: Mapping[str, Any]) -> EncoderDecoder:
        check_kind(config, ENCODER_DECODER)
        return EncoderDecoder(**encoder_decoder_from_json(config))

    return read(folder, make)


def encoder_decoder_to_json(
    module: EncoderDecoder, *, levels: Sequence[tuple[int, int]] | None = None, eos_id: int | None = None
) -> dict[str, Any]:
    """The configuration of an encoder-decoder; see `save_network`."""
    return {
        "kind": ENCODER_DECODER,
        **identifiers_to_json(levels, eos_id),
        "start_token": module.start_token,
        "encoder": encoder_to_json(module.encoder_config),
        "decoder": encoder_to_json(module.decoder_sizes),
        "share_embeddings": module.shares_embeddings,
        "query_residual": module.query_residual,
        "pawa_layers": module.pawa_layers,
        "pawa_width": module.pawa_width,
        "query_pooling": module.query_pooling,
    }


def encoder_decoder_from_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `EncoderDecoder`, from what `encoder_decoder_to_json` gave."""
    return {
        "encoder_config": encoder_from_json(config["encoder"]),
        "decoder_config": encoder_from_json(config["decoder"]),
        "share_embeddings": config["share_embeddings"],
        "query_residual": config["query_residual"],
        "pawa_layers": config.get("pawa_layers", 0),
        "pawa_width": config.get("pawa_width", 0),
        "query_pooling": config.get("query_pooling", "mean"),  # as it was before there was a choice
        "start_token": config["start_token"],
    }


def load_identifiers(folder: str | os.PathLike) -> dict[str, Any]:
    """What a network's folder says of the identifiers that it writes: {"levels": (start, size) of each position's
    block of tokens or None, "eos_id": the token that ends them or None}.

    Raises:
      InputError: the configuration cannot be read.
    """
    config = read_config(folder)
    try:
        levels, eos_id = config["levels"], config["eos_id"]
        return {
            "levels": None if levels is None else tuple((int(start), int(size)) for start, size in levels),
            "eos_id": None if eos_id is None else int(eos_id),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _no_configuration(folder, error) from error


def identifiers_to_json(levels: Sequence[tuple[int, int]] | None, eos_id: int | None) -> dict[str, Any]:
    """The part of a configuration that `load_identifiers` reads."""
    return {"levels": None if levels is None else [list(level) for level in levels], "eos_id": eos_id}


def check_kind(config: Mapping[str, Any], kind: str) -> None:
    """Raises ValueError, which `read` names the file of, where a configuration is of another kind."""
    if config["kind"] != kind:
        raise ValueError(f"a network of kind {config['kind']!r} where {kind!r} is wanted")


def read_config(folder: str | os.PathLike) -> dict[str, Any]:
    """The configuration in a network's folder.

    Raises:
      InputError: it is missing or is no JSON object.
    """
    try:
        config = json.loads((pathlib.Path(folder) / CONFIG_FILE).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("no object")
        return config
    except (OSError, ValueError, RecursionError) as error:
        raise _no_configuration(folder, error) from error


def _no_configuration(folder: str | os.PathLike, error: Exception) -> InputError:
    return InputError(
        f"not a network's configuration: {error}", "Make the index again.", file=pathlib.Path(folder) / CONFIG_FILE
    )


def write(folder: str | os.PathLike, config: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Writes any network: its configuration, which must be JSON, and its parameters."""
    folder = pathlib.Path(folder)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    flat = traverse_util.flatten_dict(dict(params), sep="/")
    arrays = {
        name: np.asarray(value, order="C") for name, value in flat.items()
    }  # ascontiguousarray makes scalars rows
    safetensors.numpy.save_file(arrays, folder / PARAMETERS_FILE)
    shutil.copymode(folder / CONFIG_FILE, folder / PARAMETERS_FILE)  # it makes files for their owner alone


def read(folder: str | os.PathLike, make: Callable[[Mapping[str, Any]], Network]) -> tuple[Network, dict]:
    """Reads what `write` wrote.

    Args:
      folder: where it lies.
      make: the network of a configuration; it is called with two arrays of tokens when it is initialised.

    Raises:
      InputError: a file is missing or is not what it should be.
    """
    folder = pathlib.Path(folder)
    file = folder / PARAMETERS_FILE
    config = read_config(folder)
    try:
        flat = safetensors.numpy.load_file(file)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"not readable parameters: {error}", "Make the index again.", file=file) from error
    _check_layers(folder, config, len(flat))
    try:
        module = make(config)
        hash(module)  # programs are compiled for it
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_configuration(folder, error) from error
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


def _check_layers(folder: pathlib.Path, config: Any, arrays: int) -> None:
    """Refuses more layers than arrays: a network of millions of them would be made before its shapes are compared."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_layers(folder, value, arrays)
        elif name.endswith("layers") and isinstance(value, int) and value > arrays:
            raise _no_configuration(folder, ValueError(f"{name} = {value}, and {arrays} arrays of parameters"))


def write_around_encoder(folder: str | os.PathLike, name: str, config: Any, params: Mapping[str, Any]) -> None:
    """Writes a network that is made around one encoder.

    Args:
      folder: there already.
      name: of the network, which its configuration stands under.
      config: a dataclass of JSON values and the encoder's configuration, `encoder`.
      params: the parameters.
    """
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    write(folder, {name: {**fields, "encoder": encoder_to_json(config.encoder)}}, params)


def read_around_encoder(folder: str | os.PathLike, name: str, make: Callable[..., Network]) -> tuple[Network, dict]:
    """Reads what `write_around_encoder` wrote.

    Args:
      folder: where it lies.
      name: of the network.
      make: the network, of the fields of its configuration by their names.

    Raises:
      InputError: a file is missing or is not what it should be.
    """

    def of_config(config: Mapping[str, Any]) -> Network:
        fields = config[name]
        return make(**{**fields, "encoder": encoder_from_json(fields["encoder"])})

    return read(folder, of_config)


def encoder_to_json(config: T5Config | BertConfig) -> dict[str, Any]:
    """The sizes of a stack, and of which kind it is."""
    return {"kind": "bert" if isinstance(config, BertConfig) else "t5", **dataclasses.asdict(config)}


def encoder_from_json(raw: Mapping[str, Any]) -> Any:
    """Reads what `encoder_to_json` gave."""
    fields = {name: value for name, value in raw.items() if name != "kind"}
    return (BertConfig if raw["kind"] == "bert" else T5Config)(**fields)

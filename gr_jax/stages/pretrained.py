"""Pretrained encoders by name, and what identifies them."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from gr_jax import models, storage
from gr_jax.errors import InputError
from gr_jax.stages.keys import content_or_name

# What is no folder: the packaged MiniLM, a T5 from scratch, latent semantic analysis.
NAMES = ("minilm", "t5", "lsa")
LSA_VERSION = 2  # scripts without spaces are read by pairs of characters


def pretrained_folder(name: str) -> pathlib.Path:
    """Where a pretrained encoder lies: "minilm" in its package, anything else is a folder's path.

    Raises:
      InputError: it is not there.
    """
    from gr_jax.interop import huggingface

    if name == "minilm":
        folder = huggingface.find_minilm()
        if folder is None:
            raise InputError(
                "the packaged MiniLM weights are not installed",
                f"Choose another encoder, or run: {huggingface.INSTALL_MINILM}",
                value=name,
            )
        return folder
    if not pathlib.Path(name).is_dir():
        raise InputError("no such encoder", "Name minilm, or a folder in Hugging Face's layout.", value=name)
    return pathlib.Path(name)


def identity(name: str) -> Any:
    """What a key says of an encoder: its name, or of a folder its content, which may be another tomorrow.

    Raises:
      InputError: it is not there. Keys come before all work, which may be hours until weights are read.
    """
    if name not in ("t5", "lsa"):
        pretrained_folder(name)
    return content_or_name(name, NAMES)


@dataclasses.dataclass(frozen=True)
class Encoder:
    """A pretrained encoder as a parameter of a stage: the stage's key is what the encoder holds, wherever it lies.

    Attributes:
      name: as settings have it.
    """

    name: str

    def identity(self) -> Any:
        """See `identity`. LSA holds no weights: what it does changes with its version."""
        return [self.name, LSA_VERSION] if self.name == "lsa" else identity(self.name)


def installed(name: str) -> str:
    """The encoder that "auto" stands for: minilm where it is installed, else lsa; others as they are."""
    from gr_jax.interop import huggingface

    if name != "auto":
        return name
    return "lsa" if huggingface.find_minilm() is None else "minilm"


def width_of(name: str, of_scratch: int) -> int | None:
    """How wide the states of an encoder or decoder are, read from its config.json alone; None where that does not say.

    Args:
      name: as settings have it.
      of_scratch: width of "t5", which starts from scratch.
    """
    if name == "t5":
        return of_scratch
    config = _config(name)
    return config.get("d_model", config.get("hidden_size"))


def check_positions(setting: str, length: int, name: str) -> None:
    """Raises InputError where texts are longer than an encoder has positions for, as its config.json says.

    Args:
      setting: that says how long texts are.
      length: tokens of a text.
      name: of the encoder, as settings have it.
    """
    most = _config(name).get("max_position_embeddings")
    if most is not None and length > most:
        raise InputError(
            f"{setting} is above the {most} positions of the encoder {name}", f"Set it to {most} or less.", value=length
        )


def _config(name: str) -> dict[str, Any]:
    """The config.json of a pretrained network; nothing where there is none."""
    try:
        found = storage.read_note(pretrained_folder(name) / "config.json") if name not in ("t5", "lsa") else None
    except InputError:
        found = None  # whoever loads it says what is wrong
    return found if isinstance(found, dict) else {}


def load_stack(name: str, dropout: float) -> tuple[Any, dict[str, Any]]:
    """Configuration and parameters of a pretrained encoder: "minilm", or a Hugging Face folder of T5 or BERT.

    Raises:
      InputError: there is no such folder, or it holds another network.
    """
    from gr_jax.interop import huggingface

    folder = pretrained_folder(name)
    load = huggingface.load_t5 if huggingface.model_type(folder) == "t5" else huggingface.load_bert
    return load(folder, dropout_rate=dropout)


def load_decoder(name: str, dropout: float) -> tuple[models.T5Config, dict[str, Any]]:
    """Configuration of a Hugging Face folder of T5, and of its parameters `decoder`, the layers without an output
    table, and `token_embedder`, which those layers were trained to read.

    Raises:
      InputError: there is no such folder, or it holds another network.
    """
    from gr_jax.interop import huggingface

    config, params = huggingface.load_t5(pretrained_folder(name), dropout_rate=dropout)
    layers = {part: value for part, value in params["decoder"].items() if part != "logits_dense"}
    return config, {"decoder": layers, "token_embedder": params["token_embedder"]}

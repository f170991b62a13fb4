"""Trained bi-encoders as folders that sentence-transformers loads and that embed there as they do here."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.interop import huggingface
from gr_jax.interop.huggingface_names import Entry, bert_entries
from gr_jax.interop.safetensors import named_tensors, write_tensors
from gr_jax.models.bert import BertConfig
from gr_jax.models.bi_encoder import BiEncoderConfig
from gr_jax.text import HuggingFaceVocabulary, Vocabulary

_MODULE_OF = {"Tanh": "activation", "ReLU": "activation", "Identity": "linear"}  # of torch.nn.modules
_POOLINGS = {"mean": "mean_tokens", "cls": "cls_token", "pooler": "cls_token"}  # the pooler is a layer over the first


def save_sentence_transformer(
    folder: str | os.PathLike,
    config: BiEncoderConfig,
    params: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    side: str = "query",
    max_length: int = 128,
    query_prompt: str = "",
    document_prompt: str = "",
) -> None:
    """Writes one tower: encoder, tokeniser, pooling, projection, normalisation and prompts.

    `SentenceTransformer(folder).encode_query(texts)` and `.encode_document(texts)` then give the vectors of
    `models.bi_encoder.sentence_encoders`. Of separate towers write each into a folder of its own.

    Args:
      folder: gets the files; what is there under their names is replaced. `modules.json` goes first and comes back
        last, so that a killed call leaves no list of layers of which some are older than others.
      config, params: of the `BiEncoder`, with a BERT encoder on this side.
      vocabulary: a `HuggingFaceVocabulary`.
      side: which tower, "query" or "document"; of a shared one it does not matter.
      max_length: tokens kept of each text.
      query_prompt, document_prompt: put before every text.

    Raises:
      InputError: the encoder is no BERT, the vocabulary has no tokenizer.json, or the parameters do not fit.
    """
    folder, tower = pathlib.Path(folder), config.tower(side)
    encoder, own = tower.config, params[config.scope(side)]
    if not isinstance(encoder, BertConfig):
        raise InputError(
            "only BERT encoders are written for sentence-transformers", "Train a bi-encoder with one.", value=encoder
        )
    if not isinstance(vocabulary, HuggingFaceVocabulary):
        raise InputError(
            "sentence-transformers needs a tokenizer.json",
            "Train a bi-encoder with a HuggingFaceVocabulary.",
            value=type(vocabulary).__name__,
        )
    if not 2 < max_length <= encoder.max_positions:
        raise InputError(f"max_length must lie between 3 and {encoder.max_positions}", "Change it.", value=max_length)
    width = encoder.emb_dim
    layers: list[tuple[str, int, str]] = []  # parameters, width of the output (of the input: `width`), activation
    if tower.pooling == "pooler":
        layers.append(("pooler", width, "Tanh"))
    if tower.projection is not None:
        layers += [("projection/wi", width, "ReLU"), ("projection/wo", tower.projection, "Identity")]
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules += [("Dense", f"{number}_Dense") for number in range(2, 2 + len(layers))]
    modules += [("Normalize", f"{len(modules)}_Normalize")] * tower.normalize

    dense = [_dense_entries(path, width, outputs) for path, outputs, _ in layers]
    for entries in (bert_entries(encoder), *dense):
        named_tensors(entries, own)  # what cannot be written is refused before anything is removed
    (folder / "modules.json").unlink(missing_ok=True)
    huggingface.save_bert(folder, encoder, own)
    _write_tokenizer(folder, vocabulary, max_length)
    storage.write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    _make(folder / "1_Pooling", {"word_embedding_dimension": width, **_pooling_modes(tower.pooling)})
    for (path, outputs, activation), (_, name) in zip(layers, modules[2:], strict=False):
        about = {"in_features": width, "out_features": outputs, "bias": True}
        _make(folder / name, about | {"activation_function": f"torch.nn.modules.{_MODULE_OF[activation]}.{activation}"})
        write_tensors(folder / name, _dense_entries(path, width, outputs), own)
    if tower.normalize:
        (folder / modules[-1][1]).mkdir(exist_ok=True)
    storage.write_json(
        folder / "config_sentence_transformers.json",
        {
            "prompts": {"query": query_prompt, "document": document_prompt},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if config.similarity == "cosine" else "dot",
        },
    )
    listed = [
        {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for idx, (kind, path) in enumerate(modules)
    ]
    storage.write_json(folder / "modules.json", listed)


def _pooling_modes(pooling: str) -> dict[str, bool]:
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    return {f"pooling_mode_{mode}": mode == _POOLINGS[pooling] for mode in modes}


def _dense_entries(path: str, inputs: int, outputs: int) -> Iterator[Entry]:
    where = tuple(path.split("/"))
    yield Entry((*where, "kernel"), "linear.weight", (outputs, inputs), True)
    yield Entry((*where, "bias"), "linear.bias", (outputs,), False)


def _write_tokenizer(folder: pathlib.Path, vocabulary: HuggingFaceVocabulary, max_length: int) -> None:
    """tokenizer.json as it is, and which of its tokens are special."""
    storage.write_bytes(folder / vocabulary.FILE, vocabulary.content)
    special = {"pad_token": vocabulary.pad_id, "unk_token": vocabulary.unk_id}
    special |= {"cls_token": vocabulary.prefix[0]} if vocabulary.prefix else {}
    special |= {"sep_token": vocabulary.suffix[-1]} if vocabulary.suffix else {}
    names = {role: vocabulary.token(number) for role, number in special.items()}
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **names}
    storage.write_json(folder / "tokenizer_config.json", about)


def _make(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_json(folder / "config.json", config)

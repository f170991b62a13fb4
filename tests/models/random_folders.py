"""Tiny Hugging Face folders whose weights are drawn from a seed, so that stored outputs need no stored weights.

Both the tests and `make_golden.py` write them; `transformers` reads the same folders.
"""

from __future__ import annotations

import json
import pathlib
import zlib

import numpy as np
from safetensors.numpy import save_file

T5_VARIANTS = ("t5_1_0", "t5_1_1")

T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 6,  # num_heads · d_kv ≠ d_model: a swapped axis shows
    "num_heads": 4,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "is_encoder_decoder": True,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 101,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


def write_t5(folder: pathlib.Path, variant: str, **changes) -> pathlib.Path:
    """A T5 folder of one of `T5_VARIANTS`."""
    new = variant == "t5_1_1"
    config = {
        **T5,
        "feed_forward_proj": "gated-gelu" if new else "relu",
        "tie_word_embeddings": not new,
        **changes,
    }
    return write(folder, config, t5_tensors(config))


def write_bert(folder: pathlib.Path, **changes) -> pathlib.Path:
    """A BERT folder."""
    config = {**BERT, **changes}
    return write(folder, config, bert_tensors(config))


def write(folder: pathlib.Path, config: dict, tensors: dict[str, np.ndarray]) -> pathlib.Path:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def t5_tensors(config: dict) -> dict[str, np.ndarray]:
    """All of `T5ForConditionalGeneration`'s."""
    d, joined, hidden = config["d_model"], config["num_heads"] * config["d_kv"], config["d_ff"]
    shapes = {"shared.weight": (config["vocab_size"], d)}
    for stack, layers in (("encoder", config["num_layers"]), ("decoder", config["num_decoder_layers"])):
        attentions = ["SelfAttention"] + ["EncDecAttention"] * (stack == "decoder")
        relative = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        shapes[relative] = (config["relative_attention_num_buckets"], config["num_heads"])
        for i in range(layers):
            for j, attention in enumerate(attentions):
                at = f"{stack}.block.{i}.layer.{j}"
                shapes[f"{at}.layer_norm.weight"] = (d,)
                shapes |= {f"{at}.{attention}.{letter}.weight": (joined, d) for letter in "qkv"}
                shapes[f"{at}.{attention}.o.weight"] = (d, joined)
            at = f"{stack}.block.{i}.layer.{len(attentions)}"
            shapes[f"{at}.layer_norm.weight"] = (d,)
            gated = config["feed_forward_proj"].startswith("gated")
            shapes |= {f"{at}.DenseReluDense.{w}.weight": (hidden, d) for w in (("wi_0", "wi_1") if gated else ("wi",))}
            shapes[f"{at}.DenseReluDense.wo.weight"] = (d, hidden)
        shapes[f"{stack}.final_layer_norm.weight"] = (d,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], d)
    tensors = {name: draw(name, shape) for name, shape in shapes.items()}
    # A long output row varies more, so that EOS is now and then the most likely token.
    tensors["shared.weight" if config["tie_word_embeddings"] else "lm_head.weight"][config["eos_token_id"]] *= 4
    return tensors


def bert_tensors(config: dict) -> dict[str, np.ndarray]:
    """All of `BertModel`'s, pooler included."""
    d, hidden = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], d),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], d),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], d),
        "pooler.dense.weight": (d, d),
        "pooler.dense.bias": (d,),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        dense = {f"attention.self.{part}": (d, d) for part in ("query", "key", "value")}
        dense |= {"attention.output.dense": (d, d), "intermediate.dense": (hidden, d), "output.dense": (d, hidden)}
        for name, shape in dense.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
    for name in norms:
        shapes |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
    return {name: draw(name, shape) for name, shape in shapes.items()}


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers from a stream of the tensor's own, at a size that keeps activations near 1."""
    numbers = 2.0 * np.random.default_rng(zlib.crc32(name.encode())).random(shape) - 1.0
    lowered = name.lower()
    if "norm" in lowered and name.endswith("weight"):
        numbers = 1.0 + 0.3 * numbers
    elif name.endswith("bias"):
        numbers = 0.3 * numbers
    elif "embeddings" not in lowered and "shared" not in lowered and "relative" not in lowered:
        numbers *= (3.0 / shape[-1]) ** 0.5 * (1.5 if ".q." in name or "query" in name else 1.0)
    return numbers.astype(np.float32)


def token_batch(seed: int, lengths: tuple[int, ...], width: int, vocab_size: int) -> np.ndarray:
    """Rows of random tokens ≥ 2, padded with 0."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((len(lengths), width), np.int32)
    for row, length in zip(tokens, lengths, strict=True):
        row[:length] = 2 + (rng.random(length) * (vocab_size - 2)).astype(np.int32)
    return tokens

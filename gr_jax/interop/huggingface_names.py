"""Which tensor of a Hugging Face checkpoint is which parameter.

Hugging Face stores matrices `[outputs, inputs]`, we `[inputs, outputs]` under T5X's names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gr_jax.models.bert import BertConfig
from gr_jax.models.t5 import T5Config


class Entry(NamedTuple):
    """Attributes:
    path: of the parameter.
    name: of the tensor.
    shape: of the tensor.
    transposed: the parameter is the tensor's transpose.
    """

    path: tuple[str, ...]
    name: str
    shape: tuple[int, ...]
    transposed: bool


def t5_entries(config: T5Config) -> Iterator[Entry]:
    """All of a T5; `shared.weight` is the token table of both sides."""
    d, joined, hidden = config.emb_dim, config.num_heads * config.head_dim, config.mlp_dim
    yield Entry(("token_embedder", "embedding"), "shared.weight", (config.vocab_size, d), False)
    for stack, layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        decoder = stack == "decoder"
        yield Entry(
            (stack, "relpos_bias", "rel_embedding"),
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            (config.relative_buckets, config.num_heads),
            True,
        )
        attentions = [("self_attention" if decoder else "attention", "SelfAttention")]
        attentions += [("encoder_decoder_attention", "EncDecAttention")] if decoder else []
        norms = {
            "attention": "attention",
            "self_attention": "self_attention",
            "encoder_decoder_attention": "cross_attention",
        }
        for i in range(layers):
            ours, theirs = (stack, f"layers_{i}"), f"{stack}.block.{i}.layer"
            for j, (name, their_name) in enumerate(attentions):
                for part, letter in (("query", "q"), ("key", "k"), ("value", "v")):
                    yield Entry(
                        (*ours, name, part, "kernel"), f"{theirs}.{j}.{their_name}.{letter}.weight", (joined, d), True
                    )
                yield Entry((*ours, name, "out", "kernel"), f"{theirs}.{j}.{their_name}.o.weight", (d, joined), True)
                norm = f"pre_{norms[name]}_layer_norm"
                yield Entry((*ours, norm, "scale"), f"{theirs}.{j}.layer_norm.weight", (d,), False)
            last, gated = f"{theirs}.{len(attentions)}", len(config.mlp_activations) > 1
            for name in ("wi_0", "wi_1") if gated else ("wi",):
                yield Entry((*ours, "mlp", name, "kernel"), f"{last}.DenseReluDense.{name}.weight", (hidden, d), True)
            yield Entry((*ours, "mlp", "wo", "kernel"), f"{last}.DenseReluDense.wo.weight", (d, hidden), True)
            yield Entry((*ours, "pre_mlp_layer_norm", "scale"), f"{last}.layer_norm.weight", (d,), False)
        yield Entry((stack, f"{stack}_norm", "scale"), f"{stack}.final_layer_norm.weight", (d,), False)
    if not config.logits_via_embedding:
        yield Entry(("decoder", "logits_dense", "kernel"), "lm_head.weight", (config.vocab_size, d), True)


def bert_entries(config: BertConfig) -> Iterator[Entry]:
    """BERT without pooler and heads."""
    d, hidden = config.emb_dim, config.mlp_dim
    tables = (
        (("token_embedder",), "word_embeddings", config.vocab_size),
        (("encoder", "position_embedder"), "position_embeddings", config.max_positions),
        (("encoder", "token_type_embedder"), "token_type_embeddings", config.num_token_types),
    )
    for path, name, rows in tables:
        yield Entry((*path, "embedding"), f"embeddings.{name}.weight", (rows, d), False)

    def norm(path: tuple[str, ...], name: str) -> Iterator[Entry]:
        yield Entry((*path, "scale"), f"{name}.weight", (d,), False)
        yield Entry((*path, "bias"), f"{name}.bias", (d,), False)

    def dense(path: tuple[str, ...], name: str, inputs: int, outputs: int) -> Iterator[Entry]:
        yield Entry((*path, "kernel"), f"{name}.weight", (outputs, inputs), True)
        yield Entry((*path, "bias"), f"{name}.bias", (outputs,), False)

    yield from norm(("encoder", "embedding_layer_norm"), "embeddings.LayerNorm")
    for i in range(config.num_encoder_layers):
        ours, theirs = ("encoder", f"layers_{i}"), f"encoder.layer.{i}"
        for part in ("query", "key", "value"):
            yield from dense((*ours, "attention", part), f"{theirs}.attention.self.{part}", d, d)
        yield from dense((*ours, "attention", "out"), f"{theirs}.attention.output.dense", d, d)
        yield from norm((*ours, "attention_layer_norm"), f"{theirs}.attention.output.LayerNorm")
        yield from dense((*ours, "mlp", "wi"), f"{theirs}.intermediate.dense", d, hidden)
        yield from dense((*ours, "mlp", "wo"), f"{theirs}.output.dense", hidden, d)
        yield from norm((*ours, "mlp_layer_norm"), f"{theirs}.output.LayerNorm")

"""T5 1.0 and 1.1 encoder and decoder stacks (Raffel et al. 2020; Shazeer 2020 for the gated activations).

T5 1.0: `mlp_activations=("relu",)`, `logits_via_embedding=True`. T5 1.1: `("gelu", "linear")`, `False`.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from gr_jax.models import layers, remat
from gr_jax.models.attention import MultiHeadAttention


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Sizes of a T5 stack; the names are T5X's.

    Attributes:
      vocab_size: rows of the token table that this stack reads (and writes, if it is a decoder).
      logits_via_embedding: the decoder's output table is its input table, logits scaled by emb_dim**-0.5.
      dropout_rate: on embeddings, attention weights, hidden layers, block outputs and the final state.
      dtype: of activations, "float32" or "bfloat16"; parameters, softmax and norms stay float32.
    """

    vocab_size: int = 32128
    emb_dim: int = 512
    num_heads: int = 8
    head_dim: int = 64
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("relu",)
    logits_via_embedding: bool = False
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    relative_buckets: int = 32
    relative_max_distance: int = 128
    dtype: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))  # a list has no hash


def _attention(config: T5Config) -> MultiHeadAttention:
    return MultiHeadAttention(
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        features=config.emb_dim,
        dropout_rate=config.dropout_rate,
        dtype=config.dtype,
    )


def _norm(config: T5Config) -> layers.RMSNorm:
    return layers.RMSNorm(epsilon=config.layer_norm_epsilon, dtype=config.dtype)


def _feed_forward(config: T5Config) -> layers.FeedForward:
    return layers.FeedForward(config.mlp_dim, config.mlp_activations, config.dropout_rate, dtype=config.dtype)


def _relative_bias(config: T5Config, *, bidirectional: bool) -> layers.RelativePositionBias:
    return layers.RelativePositionBias(
        num_heads=config.num_heads,
        bidirectional=bidirectional,
        num_buckets=config.relative_buckets,
        max_distance=config.relative_max_distance,
    )


class T5EncoderLayer(nn.Module):
    """Pre-norm self-attention, then pre-norm feed-forward."""

    config: T5Config

    def setup(self):
        self.pre_attention_layer_norm = _norm(self.config)
        self.attention = _attention(self.config)
        self.pre_mlp_layer_norm = _norm(self.config)
        self.mlp = _feed_forward(self.config)

    def __call__(self, x: Float[Array, "B S d"], mask, bias, deterministic: bool) -> Float[Array, "B S d"]:
        rate = self.config.dropout_rate
        h = self.pre_attention_layer_norm(x)
        h = self.attention(h, h, mask, bias, deterministic=deterministic)
        x = x + layers.dropout(self, h, rate, deterministic)
        h = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
        return layers.constrain(x + layers.dropout(self, h, rate, deterministic))


class T5Encoder(nn.Module):
    """The encoder stack over embedded tokens; `encoder/…` in checkpoints."""

    config: T5Config

    def setup(self):
        self.relpos_bias = _relative_bias(self.config, bidirectional=True)
        self.layers = [T5EncoderLayer(self.config) for _ in range(self.config.num_encoder_layers)]
        self.encoder_norm = _norm(self.config)

    def __call__(
        self,
        embedded: Float[Array, "B S d"],
        mask: Bool[Array, " B #S S"],
        positions: Int[Array, "B S"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B S d"]:
        """Args: embedded tokens, who may see whom, positions (unused: T5's are relative)."""
        del positions
        length, rate = embedded.shape[1], self.config.dropout_rate
        x = layers.constrain(layers.dropout(self, embedded, rate, deterministic))
        bias = self.relpos_bias(length, length)  # [H, S, S]
        for layer in self.layers:
            x = remat.run(layer, x, mask, bias, deterministic=deterministic)
        return layers.dropout(self, self.encoder_norm(x), rate, deterministic)


class T5DecoderLayer(nn.Module):
    """Pre-norm self-attention, cross-attention and feed-forward."""

    config: T5Config

    def setup(self):
        self.pre_self_attention_layer_norm = _norm(self.config)
        self.self_attention = _attention(self.config)
        self.pre_cross_attention_layer_norm = _norm(self.config)
        self.encoder_decoder_attention = _attention(self.config)
        self.pre_mlp_layer_norm = _norm(self.config)
        self.mlp = _feed_forward(self.config)

    def __call__(self, x, encoded, self_mask, self_bias, cross_mask, deterministic: bool) -> Float[Array, "B T d"]:
        rate = self.config.dropout_rate
        h = self.pre_self_attention_layer_norm(x)
        h = self.self_attention(h, h, self_mask, self_bias, deterministic=deterministic)
        x = x + layers.dropout(self, h, rate, deterministic)
        h = self.pre_cross_attention_layer_norm(x)
        h = self.encoder_decoder_attention(h, encoded, cross_mask, deterministic=deterministic)
        x = x + layers.dropout(self, h, rate, deterministic)
        h = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
        return layers.constrain(x + layers.dropout(self, h, rate, deterministic))

    def step(self, x: Float[Array, "B K d"], self_cache, cross_cache, ancestors, step, bias, source_mask):
        h, self_cache = self.self_attention.step_self(
            self.pre_self_attention_layer_norm(x), self_cache, ancestors, step, bias
        )
        x = x + h
        x = x + self.encoder_decoder_attention.step_cross(
            self.pre_cross_attention_layer_norm(x), cross_cache, source_mask
        )
        return x + self.mlp(self.pre_mlp_layer_norm(x), deterministic=True), self_cache


class T5Decoder(nn.Module):
    """The decoder stack over embedded tokens; `decoder/…` in checkpoints. Its output is the normed state.

    Attributes:
      feature_dim: None, or the width of what is returned: the state then goes through one more projection,
        `features_dense`, that starts at zero (see `EncoderDecoder.query_residual`).
      vocab: the logical name of the vocabulary that it writes.
    """

    config: T5Config
    feature_dim: int | None = None
    vocab: str = "vocab"

    def setup(self):
        config = self.config
        self.relpos_bias = _relative_bias(config, bidirectional=False)
        self.layers = [T5DecoderLayer(config) for _ in range(config.num_decoder_layers)]
        self.decoder_norm = _norm(config)
        if self.feature_dim is not None:
            self.features_dense = layers.Dense(
                (self.feature_dim,),
                ("joined_kv", "embed"),
                kernel_init=nn.initializers.zeros,
                dtype=config.dtype,
            )
        if not config.logits_via_embedding:
            self.logits_dense = layers.OutputKernel(self.feature_dim or config.emb_dim, config.vocab_size, self.vocab)

    def __call__(
        self,
        embedded: Float[Array, "B T d"],
        encoded: Float[Array, "B S e"],
        self_mask: Bool[Array, "#B T T"],
        cross_mask: Bool[Array, " B #T S"],
        positions: Int[Array, "B T"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B T f"]:
        """States of embedded tokens.

        Args:
          self_mask, cross_mask: who may see whom.
          positions: of tokens, below T; default: their places, so far as they can see each other.
          deterministic: False drops out.
        """
        length, rate = embedded.shape[1], self.config.dropout_rate
        x = layers.constrain(layers.dropout(self, embedded, rate, deterministic))
        bias = self.relpos_bias(length, length, positions)  # [H, T, T], or of each row
        for layer in self.layers:
            x = remat.run(layer, x, encoded, self_mask, bias, cross_mask, deterministic=deterministic)
        return self._finish(layers.dropout(self, self.decoder_norm(x), rate, deterministic))

    def cross_cache(self, encoded: Float[Array, "B S e"]) -> tuple:
        """Keys and values of every layer's cross-attention, `[B, S, H, D]` each."""
        return tuple(layer.encoder_decoder_attention.keys_and_values(encoded) for layer in self.layers)

    def step(self, embedded: Float[Array, "B K d"], step, ancestors, self_caches, cross_caches, source_mask):
        """One position of K hypotheses. Returns features `[B, K, f]` and the caches of self-attention."""
        max_len = self_caches[0][0].shape[1]
        bias = self.relpos_bias(max_len, max_len)[:, step]  # [H, L]
        x, written = embedded, []
        for layer, self_cache, cross_cache in zip(self.layers, self_caches, cross_caches, strict=True):
            x, self_cache = layer.step(x, self_cache, cross_cache, ancestors, step, bias, source_mask)
            written.append(self_cache)
        return self._finish(self.decoder_norm(x)), tuple(written)

    def output_kernel(self) -> Float[Array, "f vocab"]:
        """The untied output matrix."""
        return self.logits_dense()

    def _finish(self, state):
        return state if self.feature_dim is None else self.features_dense(state)


def embedding_table(config: T5Config, vocab: str = "vocab") -> layers.Table:
    """T5's token table, whose rows have this logical name."""
    init = nn.initializers.normal(stddev=1.0)
    return layers.Table(config.vocab_size, config.emb_dim, init, (vocab, "embed"), dtype=config.dtype)


def zero_cache(config: T5Config, batch: int, max_len: int, beams: int) -> tuple:
    """Empty caches of self-attention, one pair `[batch, max_len, beams, heads, head_dim]` per layer."""
    shape = (batch, max_len, beams, config.num_heads, config.head_dim)
    zeros = jnp.zeros(shape, config.dtype)
    return tuple((zeros, zeros) for _ in range(config.num_decoder_layers))

"""BERT's encoder (Devlin et al. 2019): absolute positions, token types, exact GELU, norm after each block."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError
from gr_jax.models import layers, remat
from gr_jax.models.attention import MultiHeadAttention

_init = nn.initializers.normal(stddev=0.02)


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT encoder.

    Attributes:
      max_positions: rows of the position table, the longest text in tokens.
      num_token_types: rows of the token-type table; type 0 where none are given.
      dtype: of activations; parameters, softmax and norms stay float32.
    """

    vocab_size: int = 30522
    emb_dim: int = 384
    num_heads: int = 12
    num_encoder_layers: int = 6
    mlp_dim: int = 1536
    max_positions: int = 512
    num_token_types: int = 2
    activation: str = "gelu_exact"
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    dtype: str = "float32"

    @property
    def head_dim(self) -> int:
        return self.emb_dim // self.num_heads


class BertEncoderLayer(nn.Module):
    """Self-attention and feed-forward, each added to its input and then normed."""

    config: BertConfig

    def setup(self):
        config = self.config
        self.attention = MultiHeadAttention(
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            features=config.emb_dim,
            dropout_rate=config.dropout_rate,
            scaled=True,
            use_bias=True,
            kernel_init=_init,
            dtype=config.dtype,
        )
        self.attention_layer_norm = layers.LayerNorm(config.layer_norm_epsilon, config.dtype)
        self.mlp = layers.FeedForward(
            config.mlp_dim, (config.activation,), 0.0, use_bias=True, kernel_init=_init, dtype=config.dtype
        )
        self.mlp_layer_norm = layers.LayerNorm(config.layer_norm_epsilon, config.dtype)

    def __call__(self, x: Float[Array, "B S d"], mask, deterministic: bool) -> Float[Array, "B S d"]:
        rate = self.config.dropout_rate
        h = self.attention(x, x, mask, deterministic=deterministic)
        x = self.attention_layer_norm(x + layers.dropout(self, h, rate, deterministic))
        h = self.mlp(x, deterministic)
        return layers.constrain(self.mlp_layer_norm(x + layers.dropout(self, h, rate, deterministic)))


class BertEncoder(nn.Module):
    """The stack over embedded tokens; adds positions and token types first."""

    config: BertConfig

    def setup(self):
        config = self.config
        axes = ("abspos_buckets", "embed")
        self.position_embedder = layers.Table(config.max_positions, config.emb_dim, _init, axes, config.dtype)
        self.token_type_embedder = layers.Table(config.num_token_types, config.emb_dim, _init, axes, config.dtype)
        self.embedding_layer_norm = layers.LayerNorm(config.layer_norm_epsilon, config.dtype)
        self.layers = [BertEncoderLayer(config) for _ in range(config.num_encoder_layers)]

    def __call__(
        self,
        embedded: Float[Array, "B S d"],
        mask: Bool[Array, " B #S S"],
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B S d"]:
        """Args: embedded tokens, who may see whom, positions (0, 1, … if absent), token types (0 if absent)."""
        if positions is None:
            if embedded.shape[1] > self.config.max_positions:
                raise InputError(
                    f"a row of {embedded.shape[1]} tokens, and BERT has {self.config.max_positions} positions",
                    "Cut texts shorter.",
                )
            positions = jnp.arange(embedded.shape[1])[None]  # [1, S]
        if token_types is None:
            token_types = jnp.zeros((1, 1), jnp.int32)
        x = embedded + self.position_embedder(positions) + self.token_type_embedder(token_types)
        x = self.embedding_layer_norm(x)
        x = layers.constrain(layers.dropout(self, x, self.config.dropout_rate, deterministic))
        for layer in self.layers:
            x = remat.run(layer, x, mask, deterministic=deterministic)
        return x


def embedding_table(config: BertConfig) -> layers.Table:
    """BERT's token table."""
    return layers.Table(config.vocab_size, config.emb_dim, _init, dtype=config.dtype)

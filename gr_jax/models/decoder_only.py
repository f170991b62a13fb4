"""A decoder-only network: one causal transformer reads a prompt and a query and goes on with the identifier.

A row is [prompt] [query] [start token] [identifier]. In decoding, keys and values are kept in three parts: those of the
prompt are computed once for all queries, those of a query once for all its hypotheses.
"""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError
from gr_jax.models import layers, remat
from gr_jax.models import text_encoder as encoders
from gr_jax.models.attention import causal_mask
from gr_jax.models.rotary import KeysValues, RotaryAttention


@dataclasses.dataclass(frozen=True)
class DecoderOnlyConfig:
    """Sizes of a `DecoderOnly`; the names are T5X's.

    Attributes:
      vocab_size: of what is read and written: text, identifiers and the start token together.
      start_token: what stands between a query and its identifier; no token of either.
      head_dim: even, for rotary positions.
      logits_via_embedding: the output table is the input table, logits scaled by emb_dim**-0.5.
      dropout_rate: on embeddings, attention weights, hidden layers, block outputs and the final state.
      rotary_base: of the positions' frequencies.
      dtype: of activations, "float32" or "bfloat16"; parameters, softmax and norms stay float32.
    """

    vocab_size: int
    start_token: int
    emb_dim: int = 512
    num_heads: int = 8
    head_dim: int = 64
    num_decoder_layers: int = 6
    mlp_dim: int = 2048
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False
    dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-6
    rotary_base: float = 10_000.0
    dtype: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))  # a list has no hash
        if not 0 <= self.start_token < self.vocab_size:
            raise InputError(
                "the start token is outside of the vocabulary", f"Give one below {self.vocab_size}.",
                value=self.start_token,
            )  # fmt: skip
        if self.head_dim % 2:
            raise InputError("rotary positions need an even head_dim", "Choose an even number.", value=self.head_dim)


@struct.dataclass
class PromptedCache:
    """All that decoding a batch of queries needs besides parameters.

    Attributes:
      lengths: int32[batch], tokens of each query.
      queries: per layer keys and values `[batch, Q, heads, head_dim]`, shared by a query's hypotheses.
      prompt: per layer keys and values `[1, P, heads, head_dim]`, shared by all queries; None without a prompt.
      written: per layer keys and values `[batch, max_len, beam, heads, head_dim]`; step t writes `[:, t]`.
    """

    lengths: Int[Array, " batch"]
    queries: tuple[KeysValues, ...]
    prompt: tuple[KeysValues, ...] | None
    written: tuple[KeysValues, ...]


class DecoderLayer(nn.Module):
    """Pre-norm self-attention, then pre-norm feed-forward."""

    config: DecoderOnlyConfig

    def setup(self):
        config = self.config
        norm = functools.partial(layers.RMSNorm, epsilon=config.layer_norm_epsilon, dtype=config.dtype)
        self.pre_self_attention_layer_norm = norm()
        self.self_attention = RotaryAttention(
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            features=config.emb_dim,
            dropout_rate=config.dropout_rate,
            scaled=True,
            dtype=config.dtype,
            rotary_base=config.rotary_base,
        )
        self.pre_mlp_layer_norm = norm()
        self.mlp = layers.FeedForward(config.mlp_dim, config.mlp_activations, config.dropout_rate, dtype=config.dtype)

    def __call__(self, x: Float[Array, "B T d"], positions, mask, prompt, deterministic: bool):
        rate = self.config.dropout_rate
        h, own = self.self_attention.read(
            self.pre_self_attention_layer_norm(x), positions, mask, prompt, deterministic=deterministic
        )
        x = x + layers.dropout(self, h, rate, deterministic)
        h = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
        return layers.constrain(x + layers.dropout(self, h, rate, deterministic)), own

    def step(self, x: Float[Array, "B K d"], *arguments):
        h, written = self.self_attention.step(self.pre_self_attention_layer_norm(x), *arguments)
        x = x + h
        return x + self.mlp(self.pre_mlp_layer_norm(x), deterministic=True), written


class Stack(nn.Module):
    """Token table, layers, final norm and output table; `decoder/…` in checkpoints."""

    config: DecoderOnlyConfig

    def setup(self):
        config = self.config
        init = nn.initializers.normal(stddev=1.0)
        self.token_embedder = layers.Table(config.vocab_size, config.emb_dim, init, dtype=config.dtype)
        self.layers = [DecoderLayer(config) for _ in range(config.num_decoder_layers)]
        self.decoder_norm = layers.RMSNorm(epsilon=config.layer_norm_epsilon, dtype=config.dtype)
        if not config.logits_via_embedding:
            self.logits_dense = layers.OutputKernel(config.emb_dim, config.vocab_size)

    def read(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "#B T"],
        mask: Bool[Array, "#B T T"],
        prompt: tuple[KeysValues, ...] | None = None,
        *,
        deterministic: bool = True,
    ) -> tuple[Float[Array, "B T d"], tuple[KeysValues, ...]]:
        """Features of every position, and each layer's keys and values."""
        rate = self.config.dropout_rate
        x = layers.constrain(layers.dropout(self, self.token_embedder(tokens), rate, deterministic))
        kept = []
        for number, layer in enumerate(self.layers):
            own_prompt = None if prompt is None else prompt[number]
            x, own = remat.run(layer, x, positions, mask, own_prompt, deterministic=deterministic)
            kept.append(own)
        return self._finish(layers.dropout(self, self.decoder_norm(x), rate, deterministic)), tuple(kept)

    def step(self, tokens: Int[Array, "B K"], step, ancestors, cache: PromptedCache):
        """Features of one more token of each hypothesis, and the cache with it."""
        read = 0 if cache.prompt is None else cache.prompt[0][0].shape[1]
        length = cache.queries[0][0].shape[1]
        is_asked = jnp.arange(length) < cache.lengths[:, None]
        x, written = self.token_embedder(tokens), []
        for number, layer in enumerate(self.layers):
            x, own = layer.step(
                x,
                read + cache.lengths + step,
                None if cache.prompt is None else cache.prompt[number],
                cache.queries[number],
                is_asked,
                cache.written[number],
                ancestors,
                step,
            )
            written.append(own)
        return self._finish(self.decoder_norm(x)), dataclasses.replace(cache, written=tuple(written))

    def output_table(self) -> Float[Array, "vocab d"]:
        """One row per token; the scale of tied logits is in the features."""
        return self.token_embedder.embedding if self.config.logits_via_embedding else self.logits_dense().T

    def _finish(self, x: Array) -> Array:
        return x * self.config.emb_dim**-0.5 if self.config.logits_via_embedding else x


class DecoderOnly(nn.Module):
    """A causal transformer over rows of one sequence. Parameters carry T5X's names for such networks: `decoder/…`."""

    config: DecoderOnlyConfig

    def setup(self):
        self.decoder = Stack(self.config)

    def features(
        self,
        tokens: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B T d"]:
        """Features of every position: those of position i say what stands at i + 1.

        Args:
          tokens: rows, padded on the right with anything.
          segment_ids: of packed rows each token's segment (0 is padding); they do not see one another.
          positions: of each token in its segment; default: counted.
          deterministic: without dropout.
        """
        if positions is None:
            one_segment = jnp.ones_like(tokens[:1]) if segment_ids is None else segment_ids
            positions = encoders.positions_in_segments(one_segment)
        mask = causal_mask(tokens.shape[1], segment_ids)
        return self.decoder.read(tokens, positions, mask, deterministic=deterministic)[0]

    def __call__(self, *args, **kwargs) -> Float[Array, "B T vocab"]:
        """Logits, float32; takes what `features` takes."""
        return self.features(*args, **kwargs).astype(jnp.float32) @ self.output_table().T

    def output_table(self) -> Float[Array, "vocab d"]:
        """One row per token."""
        return self.decoder.output_table()

    def read_prompt(self, tokens: Int[Array, "1 P"]) -> tuple[KeysValues, ...]:
        """Keys and values of what all queries begin with, once for all of them."""
        length = tokens.shape[1]
        return self.decoder.read(tokens, jnp.arange(length)[None], causal_mask(length, None))[1]

    def start(
        self,
        tokens: Int[Array, "B Q"],
        lengths: Int[Array, " B"],
        prompt: tuple[KeysValues, ...] | None,
        beams: int,
        max_len: int,
    ) -> PromptedCache:
        """Reads queries behind the prompt and makes the cache for `max_len` steps of `beams` hypotheses each.

        Args:
          tokens: padded on the right with anything.
          lengths: tokens of each.
          prompt: what `read_prompt` gave, or None.
          beams, max_len: see above.
        """
        batch, length = tokens.shape
        first = 0 if prompt is None else prompt[0][0].shape[1]
        mask = causal_mask(length, None)  # padding comes after everything that counts
        _, queries = self.decoder.read(tokens, first + jnp.arange(length)[None], mask, prompt)
        config = self.config
        zeros = jnp.zeros((batch, max_len, beams, config.num_heads, config.head_dim), config.dtype)
        written = tuple((zeros, zeros) for _ in range(config.num_decoder_layers))
        return PromptedCache(lengths, queries, prompt, written)

    def step(
        self,
        tokens: Int[Array, "B K"],
        step: int | Int[Array, ""],
        ancestors: Int[Array, "B K L"],
        cache: PromptedCache,
    ) -> tuple[Float[Array, "B K d"], PromptedCache]:
        """Features after one more token of each live hypothesis, equal to `features` of the whole row; see
        `EncoderDecoder.step`. The token of step 0 is the start token."""
        return self.decoder.step(tokens, step, ancestors, cache)

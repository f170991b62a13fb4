"""An encoder alone: token table and stack, the same parameters that it has inside an encoder-decoder."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from gr_jax.models import bert, layers, t5
from gr_jax.models.attention import padding_mask, segment_mask

EncoderConfig = t5.T5Config | bert.BertConfig
# How the states of a row become one vector: their mean, or the first one.
POOLINGS = ("mean", "cls")


def make_embedder(config: EncoderConfig) -> layers.Table:
    """The token table that goes with a configuration."""
    return bert.embedding_table(config) if isinstance(config, bert.BertConfig) else t5.embedding_table(config)


def make_encoder(config: EncoderConfig) -> nn.Module:
    """The stack that goes with a configuration."""
    return bert.BertEncoder(config) if isinstance(config, bert.BertConfig) else t5.T5Encoder(config)


class TextEncoder(nn.Module):
    """Tokens to one state per token. Parameters: `token_embedder/…`, `encoder/…`."""

    config: EncoderConfig

    def setup(self):
        self.token_embedder = make_embedder(self.config)
        self.encoder = make_encoder(self.config)

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        *,
        deterministic: bool = True,
    ) -> Float[Array, "B S d"]:
        """Args: tokens (0 is padding); for packed rows each token's segment (0 is padding) and its position there."""
        return encode(self.token_embedder, self.encoder, tokens, segment_ids, positions, deterministic)


def encode(embedder, encoder, tokens, segment_ids, positions, deterministic) -> Float[Array, "B S d"]:
    """What both kinds of model do with encoder tokens."""
    if segment_ids is not None and positions is None:
        positions = positions_in_segments(segment_ids)
    return encoder(embedder(tokens), padding_mask(tokens, segment_ids), positions, deterministic=deterministic)


def encode_packed(
    embedder, encoder, tokens: Int[Array, "B S"], segment_ids: Int[Array, "R W"], deterministic: bool
) -> Float[Array, "B S d"]:
    """The same states, without dropout, computed with several rows of tokens in one: short ones need little padding.

    Args:
      tokens: 0 is padding, on the right.
      segment_ids: what lies where in the rows that are computed: n + 1 for the tokens of row n, 0 for padding. All
        tokens of a row lie side by side, in one row.

    Returns:
      A state per token; those of padding mean nothing.
    """
    lies = segment_ids > 0
    positions = jnp.where(lies, positions_in_segments(segment_ids), 0)
    packed = jnp.where(lies, tokens[segment_ids - 1, positions], 0)
    states = encode(embedder, encoder, packed, segment_ids, positions, deterministic)
    start = jnp.argmax(segment_ids.reshape(-1) == 1 + jnp.arange(len(tokens))[:, None], axis=1)  # [B]
    place = start[:, None] + jnp.arange(tokens.shape[1])
    return states.reshape(segment_ids.size, -1)[jnp.minimum(place, segment_ids.size - 1)]


def positions_in_segments(segment_ids: Int[Array, "B S"]) -> Int[Array, "B S"]:
    """0, 1, 2, … from the start of each segment; segments lie one after the other."""
    index = jnp.arange(segment_ids.shape[1])[None]
    starts = jnp.concatenate(
        [jnp.ones_like(segment_ids[:, :1], bool), segment_ids[:, 1:] != segment_ids[:, :-1]], axis=1
    )
    return index - jnp.maximum.accumulate(jnp.where(starts, index, 0), axis=1)


def pool(states: Float[Array, "B S d"], tokens: Int[Array, "B S"], pooling: str) -> Float[Array, "B d"]:
    """One vector per row, float32; see `POOLINGS`. Tokens that are 0 are padding."""
    return mean_pool(states, tokens) if pooling == "mean" else states[:, 0].astype(jnp.float32)


def mean_pool(states: Float[Array, "B S d"], tokens: Int[Array, "B S"]) -> Float[Array, "B d"]:
    """Mean over the tokens that are not padding; zero for a row that is all padding."""
    real = (tokens != 0).astype(states.dtype)
    total = jnp.einsum("bsd,bs->bd", states, real, preferred_element_type=jnp.float32)
    return total / jnp.maximum(jnp.sum(real, axis=1, dtype=jnp.float32), 1.0)[:, None]


def pool_segments(
    states: Float[Array, "B S d"],
    tokens: Int[Array, "B S"],
    segment_ids: Int[Array, "B S"],
    target_segment_ids: Int[Array, "B T"],
    pooling: str,
) -> Float[Array, "B T d"]:
    """For every target position the source states of its own segment as one vector, float32, as `pool` makes it of a
    row; zero for padding."""
    if pooling == "cls":  # the mean of one token
        tokens = jnp.where(positions_in_segments(segment_ids) == 0, tokens, 0)
    member = segment_mask(target_segment_ids, segment_ids) & (tokens != 0)[:, None, :]  # [B, T, S]
    member = member.astype(states.dtype)
    total = jnp.einsum("bts,bsd->btd", member, states, preferred_element_type=jnp.float32)
    return total / jnp.maximum(jnp.sum(member, axis=2, dtype=jnp.float32), 1.0)[:, :, None]


def unit(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """Rows of length 1; zero rows stay zero, with a finite gradient."""
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-12)

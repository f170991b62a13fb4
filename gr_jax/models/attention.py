"""Multi-head attention: over whole sequences, and step by step over caches that beams share.

Legend of shapes: B batch, T target length, S source length, K beams, L decoding steps, H heads, D size of a head.

Cache of self-attention: keys and values `[B, L, K, H, D]`. Step t writes slots `[:, t, :live]` once; nothing is ever
reordered when beams are. Which slot of step j belongs to the path of hypothesis k is looked up in
`ancestors[B, K, L]`. Keys and values of cross-attention are `[B, S, H, D]`, computed once per query.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from gr_jax.models import half_precision, layers

# Finite, so that a row in which everything is masked (padding) stays free of NaN.
MASKED = -1e10


class MultiHeadAttention(nn.Module):
    """Attention with T5X's parameter names: query, key, value, out.

    Attributes:
      scaled: divide logits by sqrt(head_dim) (BERT). T5 does not: it draws its query kernels that much smaller.
    """

    num_heads: int
    head_dim: int
    features: int
    dropout_rate: float
    scaled: bool = False
    use_bias: bool = False
    kernel_init: layers.Initializer = layers.fan_in_normal
    dtype: str = "float32"

    def setup(self):
        heads = functools.partial(
            layers.Dense,
            features=(self.num_heads, self.head_dim),
            kernel_axes=("embed", "joined_kv"),
            use_bias=self.use_bias,
            dtype=self.dtype,
        )

        def query_init(*args):
            return self.kernel_init(*args) / (1.0 if self.scaled else self.head_dim**0.5)

        self.query = heads(kernel_init=query_init)
        self.key = heads(kernel_init=self.kernel_init)
        self.value = heads(kernel_init=self.kernel_init)
        self.out = layers.Dense(
            features=(self.features,),
            kernel_axes=("joined_kv", "embed"),
            contracted=2,
            kernel_init=self.kernel_init,
            use_bias=self.use_bias,
            dtype=self.dtype,
        )

    def __call__(
        self,
        x: Float[Array, "B T d"],
        source: Float[Array, "B S e"],
        mask: Bool[Array, "#B #T S"] | None,
        bias: Float[Array, "... H T S"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B T d"]:
        """Every position of `x` attends to the positions of `source` where `mask` is true."""
        q, (k, v) = self.query(x), self.keys_and_values(source)
        q, k, v = (partitioning.with_sharding_constraint(a, ("batch", "length", "heads", "kv")) for a in (q, k, v))
        logits = self._logits("bthd,bshd->bhts", q, k)  # [B, H, T, S]
        if bias is not None:
            logits = logits + bias
        if mask is not None:
            logits = jnp.where(mask[:, None], logits, MASKED)
        weights = half_precision.softmax(logits, self.dtype)
        weights = layers.dropout(self, weights, self.dropout_rate, deterministic)
        # Not in one einsum: XLA's CPU code for that takes twice as long as with the values laid out by head first.
        mixed = weights @ v.swapaxes(1, 2)  # [B, H, T, D]
        return self.out(mixed.swapaxes(1, 2))

    def keys_and_values(self, source: Float[Array, "B S e"]) -> tuple[Float[Array, "B S H D"], Float[Array, "B S H D"]]:
        """What a cache of cross-attention holds."""
        return self.key(source), self.value(source)

    def step_self(
        self,
        x: Float[Array, "B K d"],
        cached: tuple[Float[Array, "B L M H D"], Float[Array, "B L M H D"]],
        ancestors: Int[Array, "B K L"],
        step: int | Int[Array, ""],
        bias: Float[Array, "H L"],
    ) -> tuple[Float[Array, "B K d"], tuple[Array, Array]]:
        """One position of each of K live hypotheses (K ≤ M slots) attends to its own past and itself.

        Returns the output and the cache with this step written.
        """
        live = x.shape[1]
        q, new = self.query(x), (self.key(x), self.value(x))  # [B, K, H, D]
        keys, values = (
            jax.lax.dynamic_update_slice(old, a[:, None].astype(old.dtype), (0, step, 0, 0, 0))
            for old, a in zip(cached, new, strict=True)
        )
        length = keys.shape[1]
        if isinstance(step, int):  # unrolled: look only at what has been written
            length = step + 1
        steps = jnp.arange(length)
        # A hypothesis' own slot is where it has just written, whatever the table says of this step.
        own = jnp.arange(live)[None, :, None]
        slots = jnp.where(steps == step, own, ancestors[:, :, :length])  # [B, K, L]
        rows = jnp.arange(x.shape[0])[:, None, None]
        k, v = (a[rows, steps[None, None, :], slots] for a in (keys, values))  # [B, K, L, H, D]
        logits = self._logits("bkhd,bklhd->bkhl", q, k) + bias[:, :length]
        logits = jnp.where(steps <= step, logits, MASKED)
        weights = jax.nn.softmax(logits).astype(self.dtype)  # [B, K, H, L]
        return self.out(jnp.einsum("bkhl,bklhd->bkhd", weights, v)), (keys, values)

    def step_cross(
        self,
        x: Float[Array, "B K d"],
        cached: tuple[Float[Array, "B S H D"], Float[Array, "B S H D"]],
        mask: Bool[Array, "B S"],
    ) -> Float[Array, "B K d"]:
        """One position of each of K hypotheses attends to the source of its query; nothing is tiled over beams."""
        k, v = cached
        logits = self._logits("bkhd,bshd->bhks", self.query(x), k)  # [B, H, K, S]
        weights = jax.nn.softmax(jnp.where(mask[:, None, None], logits, MASKED)).astype(self.dtype)
        return self.out(jnp.einsum("bhks,bshd->bkhd", weights, v))

    def _logits(self, contraction: str, q: Array, k: Array) -> Array:
        """Products in the network's type, summed and normalised in float32."""
        if self.scaled:
            q = q * self.head_dim**-0.5
        return half_precision.product(contraction, q, k)


def segment_mask(query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]) -> Bool[Array, "B T S"]:
    """Which key a position may see when several examples share a row; segment 0 is padding and is seen by none."""
    return (query_segments[:, :, None] == key_segments[:, None, :]) & (key_segments != 0)[:, None, :]


def padding_mask(tokens: Int[Array, "B S"], segments: Int[Array, "B S"] | None) -> Bool[Array, "B S_or_1 S"]:
    """Self-attention of an encoder: all but padding (token 0), inside one's own segment."""
    real = (tokens != 0)[:, None, :]  # [B, 1, S]
    return real if segments is None else real & segment_mask(segments, segments)


def causal_mask(length: int, segments: Int[Array, "B T"] | None) -> Bool[Array, "B_or_1 T T"]:
    """Self-attention of a decoder: itself and what came before, inside one's own segment.

    Padding needs no mask: it comes after everything that counts.
    """
    causal = jnp.tril(jnp.ones((1, length, length), bool))
    return causal if segments is None else causal & segment_mask(segments, segments)

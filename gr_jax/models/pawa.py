"""The prefix-aware weight-adaptive head of NCI (Wang et al. 2022, §3.3): an output table for every prefix.

The same token means another cluster under another prefix, and one row of an output table is all that an ordinary
decoder has for it. Here a small causal transformer reads the prefix, and what it makes of it, p_i, changes the table:

    logits_i = h_i · (W + A_i)ᵀ,   A_i[v, k] = Σ_j kernel[v, k, j] · p_i[j]

A_i is linear in p_i as in the authors' code, less its bias, which W has already. No A_i is ever made: it would take
[batch, length, vocabulary, d] numbers. A table of its own for every prefix takes as many numbers in p_i as there are
prefixes: a layer with a nonlinearity may widen it.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen import partitioning
from jaxtyping import Array, Bool, Float, Int

from gr_jax.models import half_precision, t5
from gr_jax.models.layers import ACTIVATIONS, Dense

_TOKENS_AT_ONCE = 8


class PrefixEncoder(nn.Module):
    """Reads prefixes, of whole rows or step by step, and holds the kernel that turns them into changes of the table.

    A T5 decoder that sees one learned vector where others see a query. Parameters: `decoder/…`, `source`, `wider`
    where there is such a layer, and `kernel`, which starts at zero: the output table is then at first as good as it is
    without (centroids of clusters, say).

    Attributes:
      config: sizes of a layer and of the vocabulary, of the main decoder.
      layers: of the transformer.
      feature_dim: width of the output table.
      width: of p, after a layer that widens it; 0 takes the transformer's states as they are, as the authors do.
    """

    config: t5.T5Config
    layers: int
    feature_dim: int
    width: int = 0

    @property
    def sizes(self) -> t5.T5Config:
        """Of the transformer, which has no output table."""
        return dataclasses.replace(self.config, num_decoder_layers=self.layers, logits_via_embedding=True)

    def setup(self):
        config = self.config
        self.decoder = t5.T5Decoder(self.sizes)
        self.source = partitioning.param_with_axes(
            "source", nn.initializers.normal(1.0), (config.emb_dim,), jnp.float32, axes=("embed",)
        )
        if self.width:
            self.wider = Dense((self.width,), ("embed", "kv"))
        shape = (config.vocab_size, self.feature_dim, self.width or config.emb_dim)
        self.kernel = partitioning.param_with_axes(
            "kernel", nn.initializers.zeros, shape, jnp.float32, axes=("written_vocab", "embed", "kv")
        )

    def __call__(
        self, embedded: Float[Array, "B T d"], self_mask: Bool[Array, "#B T T"], *, deterministic: bool
    ) -> Float[Array, "B T p"]:
        """p of every position. Args: embedded decoder inputs, who may see whom."""
        seen = jnp.ones((len(embedded), 1, 1), bool)
        states = self.decoder(embedded, self._sources(len(embedded)), self_mask, seen, deterministic=deterministic)
        return self._widened(states)

    def init_cache(self, batch: int, max_len: int, beams: int) -> tuple:
        """What `step` needs: caches of self-attention, and keys and values of the learned vector."""
        zeros = t5.zero_cache(self.sizes, batch, max_len, beams)
        return zeros, self.decoder.cross_cache(self._sources(batch))

    def step(
        self,
        embedded: Float[Array, "B K d"],
        step: int | Int[Array, ""],
        ancestors: Int[Array, "B K L"],
        cache: tuple,
    ) -> tuple[Float[Array, "B K p"], tuple]:
        """p after one more token of each hypothesis, and the cache; see `EncoderDecoder.step`."""
        written, sources = cache
        seen = jnp.ones((len(embedded), 1), bool)
        prefix, written = self.decoder.step(embedded, step, ancestors, written, sources, seen)
        return self._widened(prefix), (written, sources)

    def _widened(self, states: Float[Array, "B T d"]) -> Float[Array, "B T p"]:
        return ACTIVATIONS["gelu"](self.wider(states)) if self.width else states

    def _sources(self, batch: int) -> Float[Array, "B 1 d"]:
        return jnp.broadcast_to(self.source.astype(self.config.dtype), (batch, 1, len(self.source)))


@struct.dataclass
class AdaptiveTable:
    """An output table that prefixes change. Slices of it are tables of a part of the vocabulary.

    Attributes:
      table: W.
      kernel: what turns prefixes into A.
    """

    table: Float[Array, "vocab f"]
    kernel: Float[Array, "vocab f p"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of W."""
        return self.table.shape

    def __getitem__(self, tokens: slice) -> AdaptiveTable:
        return AdaptiveTable(self.table[tokens], self.kernel[tokens])

    def logits(self, features: Float[Array, "... f_plus_p"]) -> Float[Array, "... vocab"]:
        """Args: features h, and behind them p."""
        width = self.table.shape[1]
        own, prefix = features[..., :width], features[..., width:]
        return own @ self.table.T + bilinear(own, prefix, self.kernel)


Table = Float[Array, "vocab f"] | AdaptiveTable


def logits_of(features: Float[Array, "... f"], table: Table) -> Float[Array, "... vocab"]:
    """Logits, float32, of features under either kind of table; products are of the type of the features, of a table
    that no prefix changes."""
    if isinstance(table, AdaptiveTable):
        return table.logits(features.astype(jnp.float32))
    if features.dtype == jnp.float32:
        return features @ table.T
    rows = features.reshape(-1, features.shape[-1])  # [n, f]
    logits = half_precision.product("nf,vf->nv", rows, table.astype(features.dtype))
    return logits.reshape(*features.shape[:-1], -1)


def bilinear(
    left: Float[Array, "... f"], right: Float[Array, "... d"], kernel: Float[Array, "vocab f d"]
) -> Float[Array, "... vocab"]:
    """leftᵀ · kernel[v] · right for every v, a few v at a time, forward and backward."""
    lead, vocab = left.shape[:-1], len(kernel)
    left, right = (x.reshape(-1, x.shape[-1]) for x in (left, right))  # [n, f], [n, d]
    parts = -(-vocab // _TOKENS_AT_ONCE)
    kernel = jnp.pad(kernel, ((0, parts * _TOKENS_AT_ONCE - vocab), (0, 0), (0, 0)))

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a scan keeps forward and backward apart anyway
    def some(rows: Float[Array, "few f d"]) -> Float[Array, "n few"]:
        return jnp.einsum("nvd,nd->nv", jnp.einsum("nf,vfd->nvd", left, rows), right)

    found = jax.lax.map(some, kernel.reshape(parts, _TOKENS_AT_ONCE, *kernel.shape[1:]))  # [parts, n, few]
    return found.swapaxes(0, 1).reshape(len(left), -1)[:, :vocab].reshape(*lead, vocab)

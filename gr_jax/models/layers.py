"""The small parts that every network here is built of.

Parameters are declared with `flax.linen.partitioning.param_with_axes`: T5X's partitioner, and ours, read the logical
axis names from the collection `params_axes`. Names and shapes are T5X's, so its checkpoints fit as they are: kernels
are matrices `[inputs, outputs]` even where the output is split into heads.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen import partitioning
from jaxtyping import Array, Float, Int

Initializer = Callable[..., Array]

fan_in_normal = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
fan_in_truncated_normal = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")


def gelu_exact(x: Array) -> Array:
    """BERT's GELU. By erf, as the reference does it: `nn.gelu` goes by erfc, which takes 2.7 times as long on CPU."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * np.asarray(2.0**-0.5, x.dtype)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=True),  # T5 1.1's "gated-gelu" is the tanh approximation
    "gelu_exact": gelu_exact,
    "silu": nn.silu,
    "linear": lambda x: x,
}


class Dense(nn.Module):
    """A matrix product over the last axes of the input.

    Attributes:
      features: size of each output axis; the parameter stays a matrix `[inputs, prod(features)]`.
      contracted: how many trailing input axes are summed over.
      kernel_axes: logical names of the two kernel axes.
      use_bias: add a bias `[prod(features)]` (BERT does, T5 does not).
    """

    features: Sequence[int]
    kernel_axes: tuple[str, str]
    contracted: int = 1
    kernel_init: Initializer = fan_in_truncated_normal
    use_bias: bool = False
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        kept, summed = x.shape[: x.ndim - self.contracted], x.shape[x.ndim - self.contracted :]
        outputs = int(np.prod(self.features))
        shape = (int(np.prod(summed)), outputs)
        kernel = partitioning.param_with_axes("kernel", self.kernel_init, shape, jnp.float32, axes=self.kernel_axes)
        # As one matrix product: with several leading axes XLA's CPU code takes a third longer.
        y = x.reshape(-1, shape[0]).astype(self.dtype) @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = partitioning.param_with_axes(
                "bias", nn.initializers.zeros, (outputs,), jnp.float32, axes=self.kernel_axes[1:]
            )
            y = y + bias.astype(self.dtype)
        return y.reshape(*kept, *self.features)


class Table(nn.Module):
    """A table of vectors, one row per token (or position).

    Attributes:
      rows, features: its shape.
      axes: logical names of both axes.
    """

    rows: int
    features: int
    table_init: Initializer
    axes: tuple[str, str] = ("vocab", "embed")
    dtype: str = "float32"

    def setup(self):
        self.embedding = partitioning.param_with_axes(
            "embedding", self.table_init, (self.rows, self.features), jnp.float32, axes=self.axes
        )

    def __call__(self, ids: Int[Array, " ..."]) -> Float[Array, "... d"]:
        # Rows are taken before the cast: the table may be a hundred times larger than what is taken from it.
        return jnp.take(self.embedding, ids, axis=0, mode="clip").astype(self.dtype)


class OutputKernel(nn.Module):
    """The matrix `[d, vocabulary]` of an untied output layer, under T5X's name `logits_dense/kernel`.

    Attributes:
      vocab: the logical name of its second axis.
    """

    inputs: int
    vocab_size: int
    vocab: str = "vocab"

    def setup(self):
        self.kernel = partitioning.param_with_axes(
            "kernel", fan_in_truncated_normal, (self.inputs, self.vocab_size), jnp.float32, axes=("embed", self.vocab)
        )

    def __call__(self) -> Float[Array, "d vocab"]:
        return self.kernel


class RMSNorm(nn.Module):
    """T5's layer norm: neither the mean is subtracted nor a bias added. Computed in float32."""

    epsilon: float = 1e-6
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = partitioning.param_with_axes("scale", nn.initializers.ones, x.shape[-1:], jnp.float32, axes=("embed",))
        return x.astype(self.dtype) * scale.astype(self.dtype)


class LayerNorm(nn.Module):
    """BERT's layer norm, computed in float32."""

    epsilon: float = 1e-12
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        x = x.astype(jnp.float32)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        scale = partitioning.param_with_axes("scale", nn.initializers.ones, x.shape[-1:], jnp.float32, axes=("embed",))
        bias = partitioning.param_with_axes("bias", nn.initializers.zeros, x.shape[-1:], jnp.float32, axes=("embed",))
        return (x * scale + bias).astype(self.dtype)


class FeedForward(nn.Module):
    """A transformer's position-wise block: one activation, or the product of several (gated GELU = gelu × linear).

    Attributes:
      hidden: width between the two products.
      activations: names of `ACTIVATIONS`; with more than one, the first kernels are called wi_0, wi_1, … as in T5X.
    """

    hidden: int
    activations: Sequence[str]
    dropout_rate: float
    use_bias: bool = False
    kernel_init: Initializer = fan_in_truncated_normal
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Float[Array, "... d"], deterministic: bool) -> Float[Array, "... d"]:
        dense = functools.partial(Dense, kernel_init=self.kernel_init, use_bias=self.use_bias, dtype=self.dtype)
        branches = []
        for i, activation in enumerate(self.activations):
            name = "wi" if len(self.activations) == 1 else f"wi_{i}"
            branches.append(ACTIVATIONS[activation](dense((self.hidden,), ("embed", "mlp"), name=name)(x)))
        h = functools.reduce(operator.mul, branches)
        h = dropout(self, h, self.dropout_rate, deterministic)
        h = constrain(h, "mlp")
        return dense((x.shape[-1],), ("mlp", "embed"), name="wo")(h)


class RelativePositionBias(nn.Module):
    """T5's attention bias by bucketed distance; one table per stack, shared by its layers.

    Distances inside a packed segment equal those outside of it, so packing needs no special care.
    """

    num_heads: int
    bidirectional: bool
    num_buckets: int = 32
    max_distance: int = 128

    @nn.compact
    def __call__(
        self, queries: int, keys: int, positions: Int[Array, "B T"] | None = None
    ) -> Float[Array, "... queries keys"]:
        """The bias between places, `[heads, queries, keys]`; with positions of a row's tokens, which stand for the
        numbers of their places, of each row: `[B, heads, T, T]`. These are below `keys`."""
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        table = partitioning.param_with_axes(
            "rel_embedding", init, (self.num_heads, self.num_buckets), jnp.float32, axes=("heads", "relpos_buckets")
        )
        distance = np.arange(keys)[None, :] - np.arange(queries)[:, None]
        buckets = relative_position_bucket(
            distance,
            bidirectional=self.bidirectional,
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        if positions is None:
            return table[:, buckets]
        # The last query has every distance; of what comes later nothing is seen.
        apart = jnp.maximum(positions[:, :, None] - positions[:, None, :], 0)
        return jnp.moveaxis(table[:, jnp.asarray(buckets[-1, ::-1])[apart]], 0, 1)


def relative_position_bucket(
    distance: Int[np.ndarray, " ..."], *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Int[np.ndarray, " ..."]:
    """The bucket of key position − query position (Raffel et al. 2020, §2.1).

    The first half of the buckets holds one distance each, the second half widens logarithmically up to
    `max_distance`, beyond which all share the last. One direction takes half of them if keys lie on both sides;
    otherwise later keys (which a decoder never sees) share bucket 0.
    """
    if bidirectional:
        num_buckets //= 2
        side = (distance > 0) * num_buckets
        distance = np.abs(distance)
    else:
        side = np.zeros_like(distance)
        distance = np.maximum(-distance, 0)
    exact = num_buckets // 2
    # float32 as in the reference implementations: in float64 a few distances would fall one bucket away.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / exact + np.finfo(np.float32).eps)
    ratio = ratio / np.log(max_distance / exact)
    wide = exact + (ratio * (num_buckets - exact)).astype(np.int32)
    return side + np.where(distance < exact, distance, np.minimum(wide, num_buckets - 1))


def dropout(module: nn.Module, x: Array, rate: float, deterministic: bool) -> Array:
    """Inverted dropout whose mask is shared along the length axis (−2), as T5's: a mask per example, not per token."""
    if deterministic or rate == 0.0:
        return x
    shape = (*x.shape[:-2], 1, x.shape[-1])
    keep = jax.random.bernoulli(module.make_rng("dropout"), 1.0 - rate, shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype)).astype(x.dtype)


def constrain(x: Float[Array, "batch length d"], last: str = "embed") -> Array:
    """Tells the partitioner how an activation lies on the mesh; nothing happens outside of one."""
    return partitioning.with_sharding_constraint(x, ("batch", "length", last)) if x.ndim == 3 else x

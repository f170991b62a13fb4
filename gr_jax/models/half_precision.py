"""Products and softmax of networks that compute in half precision.

What is added up is added up in float32; what is remembered for gradients, and what gradients are multiplied from, is of
the network's own type. JAX by itself would remember weights of attention in float32, twice their size, and multiply
cotangents in float32, where an accelerator does half as many products a second or fewer. In float32 both functions are
JAX's own.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def product(contraction: str, a: Float[Array, ...], b: Float[Array, ...]) -> Float[Array, ...]:
    """`einsum` of two arrays of one type, summed in float32 and returned so.

    Args:
      contraction: as for `einsum`, without "..."; every index of an operand stands in the other or in the result.
      a, b: gradients of both are computed from their cotangent rounded to their type.
    """
    if a.dtype == jnp.float32 or b.dtype != a.dtype:
        return jnp.einsum(contraction, a, b, preferred_element_type=jnp.float32)
    return _product(contraction, a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(contraction: str, a: Array, b: Array) -> Array:
    return jnp.einsum(contraction, a, b, preferred_element_type=jnp.float32)


def _product_forward(contraction: str, a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product(contraction, a, b), (a, b)


def _product_backward(contraction: str, kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    operands, result = contraction.split("->")
    (first, second), (a, b) = operands.split(","), kept
    cotangent = cotangent.astype(a.dtype)
    of_a = jnp.einsum(f"{result},{second}->{first}", cotangent, b, preferred_element_type=a.dtype)
    return of_a, jnp.einsum(f"{result},{first}->{second}", cotangent, a, preferred_element_type=b.dtype)


_product.defvjp(_product_forward, _product_backward)


def softmax(logits: Float[Array, "... n"], dtype: str) -> Float[Array, "... n"]:
    """Softmax over the last axis, computed in float32 and rounded to `dtype`, which is all that gradients need."""
    if jnp.dtype(dtype) == jnp.float32:
        return jax.nn.softmax(logits)
    return _softmax(logits, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(logits: Array, dtype: str) -> Array:
    return jax.nn.softmax(logits).astype(dtype)


def _softmax_forward(logits: Array, dtype: str) -> tuple[Array, Array]:
    weights = _softmax(logits, dtype)
    return weights, weights


def _softmax_backward(dtype: str, weights: Array, cotangent: Array) -> tuple[Array]:
    weights, cotangent = weights.astype(jnp.float32), cotangent.astype(jnp.float32)
    return (weights * (cotangent - jnp.sum(weights * cotangent, axis=-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)

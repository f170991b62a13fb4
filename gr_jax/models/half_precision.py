"""Networks that compute in half precision: how one is told to, and their products and softmax.

What is added up is added up in float32; what is remembered for gradients, and what gradients are multiplied from, is of
the network's own type. JAX by itself would remember weights of attention in float32, twice their size, and multiply
cotangents in float32, where an accelerator does half as many products a second or fewer. In float32 both functions are
JAX's own.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from gr_jax.errors import InputError

PRECISIONS = ("float32", "bfloat16")
_Model = TypeVar("_Model")


def with_precision(model: _Model, precision: str) -> _Model:
    """The same model, whose networks compute in bfloat16; in "float32", itself, which computes as it says.

    Args:
      model: a dataclass, in whose fields, or in theirs, a `dtype` says what is computed in.
      precision: one of `PRECISIONS`.

    Raises:
      InputError: another precision, or a model that has no `dtype`.
    """
    if precision not in PRECISIONS:
        raise InputError("unknown precision", f"Use one of {', '.join(PRECISIONS)}.", value=precision)
    if precision == "float32":
        return model
    changed = _with_dtype(model, precision)
    if changed is model:
        raise InputError(
            "this model has no dtype that it computes in", 'Use precision="float32".', value=type(model).__name__
        )
    return changed


def _with_dtype(value: Any, dtype: str) -> Any:
    """The same object where nothing in it has a dtype."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        if field.name in ("parent", "name") or not field.init:  # of a Flax module
            continue
        old = getattr(value, field.name)
        new = dtype if field.name == "dtype" and isinstance(old, str) else _with_dtype(old, dtype)
        if new is not old:
            changes[field.name] = new
    if not changes:
        return value
    return value.clone(**changes) if isinstance(value, nn.Module) else dataclasses.replace(value, **changes)


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

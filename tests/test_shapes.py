"""The checker of shapes accepts what a signature says and nothing else, and leaves a function's own errors alone."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError
from tests.shapes import ShapeError, checked, fits

VECTORS, NUMBERS = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)


def scaled(
    vectors: Float[Array, "n d"], by: Float[Array, " n"] | None = None, *, which: Int[np.ndarray, " n"] | None = None
) -> Float[Array, "n d"]:
    if by is not None and len(by) > 100:
        raise InputError("too many", "Give fewer.")
    return jnp.asarray(vectors) if by is None else jnp.asarray(vectors) * jnp.asarray(by)[:, None]


def pair(vectors: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Bool[Array, " n"]]:
    return vectors, np.zeros(3, bool)


def wrap(function):
    return checked(function, jaxtyping.jaxtyped)


@pytest.mark.parametrize("arguments", [(VECTORS,), (VECTORS, np.ones(2, np.float32)), (jnp.asarray(VECTORS), None)])
def test_what_the_signature_says_passes(arguments):
    assert wrap(scaled)(*arguments, which=NUMBERS).shape == (2, 3)
    assert jax.jit(wrap(scaled))(*arguments).shape == (2, 3)


@pytest.mark.parametrize(
    "arguments, named",
    [
        ((VECTORS[0],), "vectors"),
        ((VECTORS.astype(np.int32),), "vectors"),
        ((VECTORS, np.ones(1, np.float32)), "by"),  # another length of the same axis, which would broadcast
    ],
)
def test_what_it_does_not_say_is_named(arguments, named):
    with pytest.raises(ShapeError, match=f"^{named} of .*scaled"):
        wrap(scaled)(*arguments)


def test_keywords_and_results_are_looked_at():
    with pytest.raises(ShapeError, match="^which of"):
        wrap(scaled)(VECTORS, which=np.zeros(3, np.int32))
    with pytest.raises(ShapeError, match="^return of"):
        wrap(pair)(VECTORS)


def test_a_functions_own_error_comes_first():
    with pytest.raises(InputError, match="too many"):
        wrap(scaled)(VECTORS, np.ones(101, np.float32))


def test_lengths_belong_to_one_call():
    assert wrap(scaled)(VECTORS).shape == (2, 3)
    assert wrap(scaled)(np.zeros((5, 7), np.float32)).shape == (5, 7)


def test_what_is_no_array_fits():
    assert fits(1.0, Float[Array, ""]) and fits(None, Float[Array, " n"]) and fits([1.0], Float[Array, " n"])

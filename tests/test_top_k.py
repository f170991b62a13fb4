import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from gr_jax.top_k import LONG_ROW, top_k

ours = jax.jit(top_k, static_argnums=1)
theirs = jax.jit(lax.top_k, static_argnums=1)


def assert_same(x, k):
    for found, expected in zip(ours(x, k), theirs(x, k), strict=True):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    shape_and_k=st.sampled_from([((2, LONG_ROW), 7), ((3, LONG_ROW + 1), 1), ((20_011,), 30), ((1, 2, 40_000), 100)]),
    values=st.sampled_from([2, 50, 10**6]),
    missing=st.sampled_from([0.0, 0.5, 0.9999, 1.0]),
)
def test_as_lax_top_k_ties_and_impossible_elements_included(seed, shape_and_k, values, missing):
    shape, k = shape_and_k
    rng = np.random.default_rng(seed)
    x = rng.integers(0, values, shape).astype(np.float32)
    x[rng.random(shape) < missing] = -np.inf
    assert_same(x, k)


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, jnp.bfloat16])
def test_other_types(dtype):
    x = np.random.default_rng(0).integers(0, 60_000, (2, 20_000)).astype(dtype)
    assert_same(jnp.asarray(x), 9)


@pytest.mark.parametrize("n, k", [(10, 10), (10, 0), (LONG_ROW, LONG_ROW), (LONG_ROW, 0), (LONG_ROW, 65)])
def test_short_rows_and_many_wanted(n, k):
    assert_same(np.random.default_rng(0).normal(size=(2, n)).astype(np.float32), k)


@pytest.mark.parametrize("shape", [(3, 5, 4000), (2, 20_000)])
def test_no_row_is_sorted_where_the_kth_alone_is_looked_at(shape):
    kth = jax.jit(lambda x: top_k(x, 64)[0][..., -1])
    compiled = kth.lower(jnp.zeros(shape)).compile().as_text()
    sorted_rows = [line for line in compiled.splitlines() if " sort(" in line and "f32[" in line]
    assert "TopK" in compiled and not sorted_rows


def test_long_rows_are_not_looked_through_one_by_one():
    text = str(jax.make_jaxpr(lambda x: top_k(x, 10))(jnp.zeros((1, 100_000))))
    looked_through = [line for line in text.splitlines() if "top_k[" in line]
    assert len(looked_through) == 2 and "100000]" not in "".join(looked_through)

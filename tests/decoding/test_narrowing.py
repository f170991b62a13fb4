"""The loop of several widths, against one that counts them."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.decoding.narrowing import narrower_widths, narrowing_loop


@pytest.mark.parametrize(
    "widest, widths", [(100, [100, 50, 12]), (64, [64, 32, 8]), (20, [20, 10]), (15, [15]), (1, [1])]
)
def test_widths(widest, widths):
    assert narrower_widths(widest) == widths


@settings(max_examples=20)
@given(needed=st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_each_step_is_the_narrowest_that_is_enough(needed):
    """Whether more is needed from step to step, or less."""
    widths = narrower_widths(100)
    table = jnp.asarray([*needed, 0])

    def body(carry, width):
        step, taken = carry
        return step + 1, taken.at[step].set(width)

    def needs_behind(carry, place):
        return table[carry[0]] > place

    run = jax.jit(lambda: narrowing_loop((jnp.int32(0), jnp.zeros(len(needed), jnp.int32)), widths, needs_behind, body))
    steps, taken = run()
    assert int(steps) == len(needed)
    assert taken.tolist() == [min(width for width in widths if width >= count) for count in needed]

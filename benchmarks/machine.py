"""The kind of machine that rows of speed are of, and how fast this one is."""

from __future__ import annotations

import functools
import time

import jax
import jax.numpy as jnp

from gr_jax.evaluation import provenance
from gr_jax.evaluation.processor import processor

_SIZE, _TIMES = 2048, 7


def kind() -> str:
    """What times depend on: "Zen 4, AVX-512, 2 cores". Rows of speed are kept for each kind."""
    found = f"{processor().kind}, {provenance.cores()} cores"
    return found if jax.default_backend() == "cpu" else f"{found}, {provenance.accelerators()}"


def line() -> str:
    """`provenance.hardware_line` and the measured speed."""
    return f"{provenance.hardware_line()}, {gigaflops():.0f} GFLOP/s in float32 products"


@functools.cache
def gigaflops() -> float:
    """10⁹ float32 operations a second of XLA's product of two matrices 2048 × 2048, on JAX' default device; the fastest
    of seven, since what disturbs can only slow it."""
    product = jax.jit(lambda a, b: a @ b)
    a = jnp.ones((_SIZE, _SIZE), jnp.float32)
    seconds = []
    for _ in range(_TIMES + 1):
        start = time.perf_counter()
        jax.block_until_ready(product(a, a))
        seconds.append(time.perf_counter() - start)
    return 2 * _SIZE**3 / min(seconds[1:]) / 1e9

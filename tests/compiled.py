"""Networks of tests, compiled. Run as they are, each of their operations is compiled by itself, which takes longer."""

import functools
from typing import Any

import jax
from flax import linen as nn


def run(module: nn.Module, params: Any, *inputs: Any, method: str | None = None) -> Any:
    """What a network, or a method of it, makes of inputs."""
    return _program(module, method)({"params": params}, *inputs)


@functools.cache
def _program(module: nn.Module, method: str | None) -> Any:
    return jax.jit(functools.partial(module.apply, method=method))

"""What tests run, compiled. Run as it is, each operation is compiled by itself, which takes longer."""

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


def call(owner: Any, method: str, *arrays: Any, **settings: Any) -> Any:
    """What a method of a pytree makes of arrays, under settings that are no arrays."""
    return _method(method, tuple(settings.items()))(owner, *arrays)


@functools.cache
def _method(name: str, settings: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(lambda owner, *arrays: getattr(owner, name)(*arrays, **dict(settings)))

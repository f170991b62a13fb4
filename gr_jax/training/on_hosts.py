"""Arrays that lie on the devices of several processes, whole on every host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def copies(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """NumPy copies of whole arrays, by path; where one is spread over processes all have to come here."""
    return {path: np.array(local(array), copy=True) for path, array in arrays.items()}


def local(array: Any) -> Any:
    """The same array where this process can read it; where it is spread over processes all have to come here."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return array
    if not array.is_fully_replicated:
        assert isinstance(array.sharding, NamedSharding)
        array = _replicate(array.sharding.mesh)(array)  # type: ignore[arg-type]
    return array.addressable_data(0)


@functools.cache
def _replicate(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, PartitionSpec()))

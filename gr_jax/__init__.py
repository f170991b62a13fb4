"""Generative retrieval in JAX: give documents identifiers, train a model to write them, search by constrained decoding.

Importing this package imports nothing heavy: every name below is fetched when it is first used.

    searcher = gr_jax.load("runs/quickstart/index")
    searcher.search("how do I shard an array over a mesh?", k=5)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Name → the module that defines it.
_LAZY = {
    "InputError": "gr_jax.errors",
    "load": "gr_jax.opening",
}

__all__ = ["__version__", *_LAZY]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from gr_jax.errors import InputError as InputError
    from gr_jax.opening import load as load


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_LAZY))}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

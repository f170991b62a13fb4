"""Searches by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from gr_jax import storage
from gr_jax.dense import clustered, exact, scann
from gr_jax.dense.base import SCANN, VectorSearch, usable
from gr_jax.errors import InputError

SEARCHERS: dict[str, Callable[..., VectorSearch]] = {
    "exact": exact.ExactSearch,
    "scann": scann.ScannSearch,
    "clustered": clustered.ClusteredSearch,
}
_KINDS: dict[str, Any] = {
    exact.KIND: exact.ExactSearch,
    scann.KIND: scann.ScannSearch,
    clustered.KIND: clustered.ClusteredSearch,
}
_EXACT_ON_CPU = 200_000  # documents of which a CPU still scores all for every query


def make_searcher(
    name: str,
    vectors: Float[np.ndarray, "n d"],
    *,
    say: Callable[[str], object] | None = None,
    **settings: Any,
) -> VectorSearch:
    """Makes the search of this name.

    Args:
      name: "exact", "scann", "clustered", or "auto": exact on an accelerator and for few documents; else ScaNN where it
        is installed, else clustered where numba is, else exact.
      vectors: float32[n, d]; may be memory-mapped.
      say: is told which one "auto" takes, and why.
      settings: of that search's constructor. "auto" leaves out what the search that it takes does not know.

    Raises:
      InputError: no such search, or one that needs a package that is not installed; a setting that it does not know.
    """
    if name == "auto":
        name, why = _choose(len(vectors))
        if say is not None:
            say(f"vector search: {name}, since {why}")
        settings = {key: value for key, value in settings.items() if key in _parameters(name)}
    if name not in SEARCHERS:
        raise InputError("no such vector search", f"Choose among auto, {', '.join(SEARCHERS)}.", value=name)
    unknown = settings.keys() - _parameters(name)
    if unknown:
        known = ", ".join(sorted(_parameters(name)))
        raise InputError(f"{name} search has no such setting", f"Choose among {known}.", value=sorted(unknown)[0])
    return SEARCHERS[name](vectors, **settings)


def load_searcher(folder: str | os.PathLike, **settings: Any) -> VectorSearch:
    """Reads a search that was saved, whichever it is.

    Args:
      folder: the artefact.
      settings: of that search's `load`.

    Raises:
      InputError: not such a folder, altered, or a search that needs a package that is not installed.
    """
    kind = storage.read_folder(folder, verify=False).kind
    if kind not in _KINDS:
        raise InputError("this folder holds no vector search", "Name one that does.", file=folder, value=kind)
    return _KINDS[kind].load(folder, **settings)


def installed() -> dict[str, Any]:
    """What "auto" looks at besides the number of documents, as JSON values."""
    return {"backend": jax.default_backend(), "packages": [name for name in (SCANN, "numba") if usable(name)]}


def _choose(documents: int) -> tuple[str, str]:
    backend = jax.default_backend()
    if backend != "cpu":
        return "exact", f"JAX runs on a {backend}"
    if documents <= _EXACT_ON_CPU:
        return "exact", f"{documents} documents are few enough to score all of them"
    many = f"{documents} documents are many for a CPU"
    if usable(SCANN):
        return "scann", f"{many} and ScaNN is installed"
    if usable("numba"):
        return "clustered", f"{many}, ScaNN cannot be imported and numba can"
    return "exact", f"neither ScaNN nor numba can be imported (pip install 'gr_jax[search]'), though {many}"


def _parameters(name: str) -> set[str]:
    import inspect

    return set(inspect.signature(SEARCHERS[name]).parameters) - {"vectors"}

"""Walks through whole n-grams, and the views in which they start, of an FM-index of one part or of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int

from gr_jax.errors import InputError


def view_number(names: Sequence[str], view: str | int) -> int:
    """The number of a view: its place in `names`; of "^" and a name, that plus the number of views.

    Raises:
      InputError: no such view.
    """
    every = [*names, *(f"^{name}" for name in names)]
    if view not in every and view not in range(len(every)):
        raise InputError("the index has no such view", f"Choose among {', '.join(every)}.", value=view)
    return every.index(view) if isinstance(view, str) else view


def view_numbers(names: Sequence[str], view: Any, batch: int) -> Int[Array, " batch"]:
    """The number of each row's view; see `FMIndex.initial_state`.

    Raises:
      InputError: no such view, where it is not traced.
    """
    if view is None or isinstance(view, str | int):
        view = view_number(names, 0 if view is None else view)
    elif not isinstance(view, jax.core.Tracer):
        for number in np.unique(view).tolist():
            view_number(names, number)
    return jnp.broadcast_to(jnp.asarray(view, jnp.int32), batch)


def choose(chosen: Bool[Array, ...], one: Any, other: Any) -> Any:
    """The states of `one` where chosen, else those of `other`; leaves may have further axes behind."""

    def of_leaf(a: Array, b: Array) -> Array:
        return jnp.where(chosen.reshape(*chosen.shape, *[1] * (a.ndim - chosen.ndim)), a, b)

    return jax.tree.map(of_leaf, one, other)


def walk(index: Any, ngrams: Int[Array, "batch length"], view: Any = None) -> Any:
    """States [batch, 1] after whole n-grams, padded on the right with −1."""

    def write(state, token):
        return choose(token[:, None] < 0, state, index.advance(state, token[:, None])), None

    return lax.scan(write, index.initial_state(ngrams.shape[0], view), ngrams.T)[0]


def find(index: Any, ngrams: Sequence[Sequence[int]], view: str | int | None = None) -> Any:
    """`walk` of lists of tokens, on the host; leaves [batch, 1].

    Raises:
      InputError: no such view, or a token out of the vocabulary.
    """
    # A length of a power of two lets n-grams of most lengths share one program.
    length = 1 << max(max(map(len, ngrams), default=1) - 1, 0).bit_length()
    rows = np.full((len(ngrams), length), -1, np.int32)
    for row, ngram in zip(rows, ngrams, strict=True):
        row[: len(ngram)] = ngram
        if len(ngram) and not 0 <= min(ngram) <= max(ngram) < index.vocab_size:
            raise InputError("an n-gram with a token out of the vocabulary", "Correct it.", value=list(ngram))
    number = index.view_number(0 if view is None else view)
    return _walk(index, rows, np.full(len(ngrams), number, np.int32))


_walk = jax.jit(walk)

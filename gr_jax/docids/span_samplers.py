"""Spans to learn from: runs of a document's tokens, drawn where they have much in common with a query, or anywhere.

SEAL learns to write spans that were drawn by their overlap with the query (Bevilacqua et al. 2022, section 3.3). Its
released code compares strings of three words by edit distance, and draws by the exp of the sum; here three tokens are
compared by what they share, weighed by how rare it is, and the sum itself is drawn by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax.errors import InputError

WINDOW = 3  # tokens from a span's start that are compared with the query


def uniform_spans(
    document: Int[np.ndarray, " n"],
    starts: Bool[np.ndarray, " n"],
    *,
    count: int,
    length: int,
    rng: np.random.Generator,
) -> list[list[int]]:
    """Spans that start anywhere, all starts alike.

    Args:
      document: its tokens.
      starts: where a span may start: at the first token of a word.
      count: how many; one may be drawn several times.
      length: tokens of each; less at the document's end.
      rng: of the choice.

    Raises:
      InputError: no spans, or spans of nothing, are asked for, or none may start anywhere.
    """
    return _draw(document, starts, np.ones(len(document)), count, length, rng)


def overlapping_spans(
    document: Int[np.ndarray, " n"],
    starts: Bool[np.ndarray, " n"],
    query: Sequence[int],
    rarity: Float[np.ndarray, " vocab"],
    *,
    count: int,
    length: int,
    temperature: float,
    rng: np.random.Generator,
) -> list[list[int]]:
    """Spans whose first tokens are the query's: p(start) ∝ (rarity of the shared tokens)^(1 / temperature). All starts
    are alike where nothing is shared.

    Args:
      document, starts, count, length, rng: see `uniform_spans`.
      query: its tokens.
      rarity: of each token of the vocabulary, 0 for those that are everywhere.
      temperature: the smaller, the more spans start where the overlap is largest.

    Raises:
      InputError: as `uniform_spans`, or a temperature of 0 or less.
    """
    if not temperature > 0:
        raise InputError("spans are drawn at a temperature above 0", "Give temperature > 0.", value=temperature)
    shared = np.where(np.isin(document, np.asarray(query, np.int64)), rarity[document], 0.0)
    sums = np.concatenate([[0.0], np.cumsum(shared)])
    places = np.arange(len(document))
    overlap = sums[np.minimum(places + WINDOW, len(document))] - sums[places]
    overlap = np.where((shared > 0) & starts, overlap, 0.0)  # what a span starts with is what is written first
    most = overlap.max(initial=0.0)
    weights = (overlap / most) ** (1.0 / temperature) if most > 0 else overlap  # so that no power is too large
    return _draw(document, starts, weights, count, length, rng)


def rarity_of(counts: Int[np.ndarray, " vocab"], documents: int) -> Float[np.ndarray, " vocab"]:
    """log(documents / those that have the token), at least 0, and 0 for tokens that none has.

    Args:
      counts: documents that have each token.
      documents: in all.
    """
    found = np.log(np.maximum(documents, 1) / np.maximum(counts, 1))
    return np.where(counts > 0, np.maximum(found, 0.0), 0.0)


def _draw(
    document: np.ndarray, starts: np.ndarray, weights: np.ndarray, count: int, length: int, rng: np.random.Generator
) -> list[list[int]]:
    """Starts drawn by their weights, with replacement."""
    if count < 1 or length < 1:
        raise InputError("no spans are asked for", "Give count ≥ 1 and length ≥ 1.", value=(count, length))
    places = np.flatnonzero(starts)
    if not len(places):
        raise InputError("a document in which no span may start", "Leave it out.", value=len(document))
    share = weights[places]
    share = share / share.sum() if share.sum() > 0 else np.full(len(places), 1 / len(places))
    return [document[place : place + length].tolist() for place in rng.choice(places, count, p=share)]

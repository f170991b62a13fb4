"""Documents of several vectors each: found by the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Int, Int32

from gr_jax.corpus.passages import sentence_passages
from gr_jax.corpus.pieces import text_pieces

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus
    from gr_jax.retrievers.dense_encoder import DenseEncoder

Found = tuple[Int32[np.ndarray, "batch k"], Float32[np.ndarray, "batch k"]]
# Vectors that are looked for at first, for each document that is wanted.
VECTORS_A_DOCUMENT = 4


def passages_of(
    corpus: Corpus, encoder: DenseEncoder, most_sentences: int, pieces: bool
) -> tuple[Sequence[str], Int32[np.ndarray, " passages"]]:
    """The texts of documents that get a vector each, and the document that each belongs to, ascending.

    Args:
      corpus: the documents.
      encoder: that reads them.
      most_sentences: of a document that have vectors beside the document's, see `corpus.passages`; 0: none.
      pieces: long documents are cut into pieces instead, see `corpus.pieces`.
    """
    if pieces:
        return text_pieces(corpus, encoder.token_counts, encoder.room)
    return sentence_passages(corpus, most_sentences)


def best_of_documents(
    search: Callable[[int], Found], owner: Int[np.ndarray, " vectors"], k: int, found: Found | None = None
) -> Found:
    """The best vector of each of the k best documents: searches deeper while some query has met too few documents.

    Args:
      search: so many vectors for every query, best first, −1 where there are fewer; and their scores.
      owner: the document of every vector.
      k: documents, at most.
      found: what a first search gave, if there was one.

    Returns:
      Vectors and scores [batch, k].
    """
    total = len(owner)
    depth = first_depth(owner, k) if found is None else found[0].shape[1]
    while True:
        vectors, scores = search(depth) if found is None else found
        best, values, enough = _first_of_each(vectors, scores, owner, k)
        if depth >= total or enough:
            return best, values
        depth, found = min(total, VECTORS_A_DOCUMENT * depth), None


def first_depth(owner: Int[np.ndarray, " vectors"], k: int) -> int:
    """How many vectors are looked for first."""
    return min(len(owner), VECTORS_A_DOCUMENT * k)


def passage_name(owner: Int[np.ndarray, " vectors"] | None, vector: int, pieces: bool = False) -> str:
    """What a vector is of, for people: "document", or "sentence 3" of those that have vectors; or "piece 3"."""
    number = 0 if owner is None else vector - int(np.searchsorted(owner, owner[vector]))
    return ("document" if not number else f"sentence {number}") if not pieces else f"piece {number + 1}"


def _first_of_each(
    passages: Int32[np.ndarray, "batch depth"],
    scores: Float32[np.ndarray, "batch depth"],
    owner: Int32[np.ndarray, " vectors"],
    k: int,
) -> tuple[Int32[np.ndarray, "batch k"], Float32[np.ndarray, "batch k"], bool]:
    """Of every row the first passage of each of the first k documents, and whether no deeper search would add any."""
    best, values = np.full((len(passages), k), -1, np.int32), np.full((len(passages), k), -np.inf, np.float32)
    enough = True
    for row, (found, its) in enumerate(zip(passages, scores, strict=True)):
        here = found >= 0
        _, first = np.unique(owner[found[here]], return_index=True)
        first = np.sort(first)[:k]
        best[row, : len(first)], values[row, : len(first)] = found[here][first], its[here][first]
        enough &= len(first) == k or not here.all()
    return best, values, enough

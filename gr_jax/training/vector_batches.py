"""Contrastive batches with the vectors of documents, which stay as they are, instead of their tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import grain
import numpy as np
from jaxtyping import Float, Int32

from gr_jax.errors import InputError
from gr_jax.training.contrastive_batches import ContrastiveBatches

_LOOKED_AT = 1024  # rows of vectors that their fingerprint reads


class VectorBatches(grain.IterDataset):
    """`ContrastiveBatches` whose documents are vectors that were made before: what reads queries alone is trained.

    Args:
      batches: queries, their answers and their negatives, made with `document_tokens=False`.
      vectors: of every document of the corpus, any float type, memory-mapped or not.
      name: of the feature; "document_states" where a projection of them is trained.

    Yields:
      What `batches` yields, with document_vectors float32[B·(1+n), d], or what `name` says, for document_position:
      every document's own vector, also where its tokens, which may have been cut, are those of another one; zeros where
      there is none.

    Raises:
      InputError: batches with tokens of documents, or of another corpus.
    """

    def __init__(
        self,
        batches: ContrastiveBatches,
        vectors: Float[np.ndarray, "documents d"],
        name: str = "document_vectors",
    ):
        super().__init__()
        if batches.document_tokens:
            raise InputError("these documents are vectors", "Make the batches with document_tokens=False.")
        if len(vectors) != len(batches.documents):
            raise InputError(
                f"vectors of {len(vectors)} documents, and there are {len(batches.documents)}",
                "Make both from one corpus.",
                value=len(vectors),
            )
        self.batches, self.vectors, self.name = batches, vectors, name
        self.settings = {"batches": batches.settings, "vectors": fingerprint_of_vectors(vectors)}

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the longest batch over all processes, as T5X's `get_initial_variables` wants them."""
        shapes = self.batches.input_shapes
        rows = shapes.pop("document_position")
        return {**shapes, self.name: (*rows, self.vectors.shape[1])}

    def __iter__(self) -> grain.DatasetIterator:
        return Completed(self.batches, self.complete)

    def complete(self, _step: int, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A batch of those inside, with vectors."""
        # Not document_index: documents that begin with the same tokens have one number there, and vectors of their own.
        positions = batch.pop("document_position")
        return {**batch, self.name: vectors_at(self.vectors, positions)}


class Completed(grain.DatasetIterator):
    """Completes the batches of an iterator inside, whose state is its own.

    Args:
      batches: those inside.
      complete: from a batch's step and the batch to what is yielded.
    """

    def __init__(self, batches: ContrastiveBatches, complete: Callable[[int, dict], dict]):
        super().__init__()
        self._inner, self._complete = iter(batches), complete

    def get_state(self) -> dict[str, Any]:
        return self._inner.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._inner.set_state(state)

    def __next__(self) -> dict[str, np.ndarray]:
        step = self._inner.get_state()["step"]
        return self._complete(step, next(self._inner))


def vectors_at(vectors: Float[np.ndarray, "documents d"], index: Int32[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
    """Rows of a matrix, float32; zeros for −1."""
    rows = np.asarray(vectors[np.maximum(index, 0)], np.float32)
    return np.where(index[:, None] >= 0, rows, np.float32(0))


def fingerprint_of_vectors(vectors: Float[np.ndarray, "n d"]) -> str:
    """16 hex digits, of the shape and of rows from all over: there may be more of them than can be read."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, _LOOKED_AT).astype(np.int64))
    found = np.ascontiguousarray(vectors[rows])
    return hashlib.sha256(f"{vectors.shape} {found.dtype}".encode() + found.tobytes()).hexdigest()[:16]

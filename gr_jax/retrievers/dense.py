"""Dense retrieval (DPR, Karpukhin et al. 2020): documents and queries as vectors, the nearest documents first."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool

from gr_jax import dense, storage
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Evidence, Ranking, check_question, checked_allowed
from gr_jax.retrievers.dense_encoder import DenseEncoder

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus

KIND = "dense"


class DenseRetriever:
    """An encoder of queries and a searcher over the documents' vectors.

    Args:
      encoder: that the vectors were made with.
      searcher: over one vector a document, in the corpus' order.

    Raises:
      InputError: vectors and encoder differ in width.
    """

    def __init__(self, encoder: DenseEncoder, searcher: dense.VectorSearch):
        self.encoder, self.searcher = encoder, searcher

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from, removed ones included."""
        return self.searcher.num_documents

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. Scores are inner products; `explain` names them.

        Raises:
          InputError: an empty query, or `k` is not positive.
        """
        check_question(queries, k)
        for number, query in enumerate(queries):
            if not query.strip():
                raise InputError(f"query {number} is empty", "Leave it out, or ask something in words.", value=query)
        mask = checked_allowed(allowed, len(queries), self.num_documents)
        vectors = self.encoder.encode(queries, "query")
        found, scores = self.searcher.search(vectors, min(k, self.num_documents), allowed=mask)
        doc_index = np.full((len(queries), k), -1, np.int32)
        score = np.full((len(queries), k), -np.inf, np.float32)
        doc_index[:, : found.shape[1]], score[:, : found.shape[1]] = found, scores
        evidence = None
        if explain:
            evidence = tuple(
                tuple(
                    (Evidence("similarity", "inner product", value),)
                    for document, value in zip(documents, values, strict=True)
                    if document >= 0
                )
                for documents, values in zip(doc_index.tolist(), score.tolist(), strict=True)
            )
        return Ranking(doc_index, score, evidence)

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> DenseRetriever:
        """Adds and removes documents without training: added ones are encoded and put behind the others.

        Args:
          add: documents; they get the next positions, in their order.
          remove: positions of documents that are no longer found. The other positions stay as they are.

        Returns:
          This retriever, changed.
        """
        added = None if add is None else self.encoder.encode(add.contents, "document")
        if len(remove):  # refuses positions that no document has before anything changes
            self.searcher.remove(np.asarray(remove, np.int64))
        if added is not None:
            self.searcher.add(added)
        return self

    def save(self, path: str | os.PathLike, *, corpus: str) -> None:
        """Writes encoder and vectors; the corpus itself is not in it."""
        with storage.write_folder(path, KIND, corpus=corpus, meta={"documents": self.num_documents}) as folder:
            self.encoder.save(folder / "encoder")
            self.searcher.save(folder / "searcher")

    @classmethod
    def load(cls, path: str | os.PathLike, *, verify: bool = True) -> DenseRetriever:
        """Reads what `save` wrote; vectors are memory-mapped where the searcher can.

        Raises:
          InputError: not such a folder, or altered.
        """
        path = pathlib.Path(path)
        storage.read_folder(path, KIND, verify=verify)
        return cls(DenseEncoder.load(path / "encoder", verify=False), dense.load_searcher(path / "searcher"))

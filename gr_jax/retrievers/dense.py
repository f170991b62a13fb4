"""Dense retrieval (DPR, Karpukhin et al. 2020): documents and queries as vectors, the nearest documents first."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32

from gr_jax import dense, storage
from gr_jax.dense.base import check_positions, check_vectors
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Evidence, Ranking, check_question, checked_allowed
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.passages import best_of_documents, passage_name, passages_of

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus

KIND = "dense"


class DenseRetriever:
    """An encoder of queries and a searcher over the documents' vectors.

    Args:
      encoder: that the vectors were made with.
      searcher: over the vectors of all passages, in the corpus' order.
      owner: the document of every vector, ascending; None where every document has one.
      most_sentences: of a document that have vectors of their own (`corpus.sentence_passages`); 0 where it has one.
        Documents that are added are cut so.
      pieces: vectors are of documents' pieces (`corpus.text_pieces`), and documents that are added are cut so.

    A document with several vectors gets the best of their scores.

    Raises:
      InputError: vectors and encoder differ in width, or `owner` does not fit.
    """

    def __init__(
        self,
        encoder: DenseEncoder,
        searcher: dense.VectorSearch,
        owner: Int32[np.ndarray, " vectors"] | None = None,
        *,
        most_sentences: int = 0,
        pieces: bool = False,
    ):
        if encoder.dimension != searcher.width:
            raise InputError(
                f"vectors of {searcher.width} numbers, and an encoder of {encoder.dimension}",
                "Use the encoder that the vectors were made with.",
            )
        if (owner is None) == bool(most_sentences or pieces) or (
            owner is not None and len(owner) != searcher.num_documents
        ):
            raise InputError("each vector needs the document that it belongs to", "Give the owner of every vector.")
        if owner is not None and len(owner) and (owner[0] < 0 or np.any(owner[1:] < owner[:-1])):
            raise InputError("the documents of the vectors do not ascend", "Give the vectors in the corpus' order.")
        self.encoder, self.searcher, self.most_sentences = encoder, searcher, most_sentences
        owner = None if owner is None else np.asarray(owner, np.int32)
        self._owner, self.pieces = owner, pieces

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from, removed ones included."""
        return self.searcher.num_documents if self._owner is None else int(self._owner[-1]) + 1

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. Scores are inner products; `explain` names them, and the passages.

        Raises:
          InputError: an empty query, or `k` is not positive.
        """
        depth = check_question(queries, k, self.num_documents)
        for number, query in enumerate(queries):
            if not query.strip():
                raise InputError(f"query {number} is empty", "Leave it out, or ask something in words.", value=query)
        mask = checked_allowed(allowed, len(queries), self.num_documents)
        vectors = self.encoder.encode(queries, "query")
        passages, scores = self._search(vectors, depth, mask)
        doc_index = np.full((len(queries), k), -1, np.int32)
        score = np.full((len(queries), k), -np.inf, np.float32)
        found = passages if self._owner is None else np.where(passages >= 0, self._owner[passages], -1)
        doc_index[:, : found.shape[1]], score[:, : found.shape[1]] = found, scores
        evidence = None
        if explain:
            evidence = tuple(
                tuple(
                    (Evidence("similarity", passage_name(self._owner, passage, self.pieces), value),)
                    for passage, value in zip(row, values, strict=True)
                    if passage >= 0
                )
                for row, values in zip(passages.tolist(), scores.tolist(), strict=True)
            )
        return Ranking(doc_index, score, evidence)

    def _search(
        self, vectors: Float[np.ndarray, "batch d"], k: int, mask: np.ndarray | None
    ) -> tuple[Int32[np.ndarray, "batch k"], Float32[np.ndarray, "batch k"]]:
        """Of the k best documents the best vectors."""
        if self._owner is None:
            return self.searcher.search(vectors, k, allowed=mask)
        if mask is not None:
            mask = mask[:, self._owner]
        return best_of_documents(lambda depth: self.searcher.search(vectors, depth, allowed=mask), self._owner, k)

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> DenseRetriever:
        """Adds and removes documents without training: added ones are encoded and put behind the others.

        Args:
          add: documents; they get the next positions, in their order.
          remove: positions of documents that are no longer found. The other positions stay as they are.

        Returns:
          This retriever, changed.

        Raises:
          InputError: a position that no document has, or a vector that is not finite; nothing is changed then.
        """
        positions = check_positions(remove, self.num_documents)
        added = None
        if add is not None:
            texts, owner = passages_of(add, self.encoder, self.most_sentences, self.pieces)
            added = check_vectors(self.encoder.encode(texts, "document"), self.searcher.width)
        if positions.size:
            gone = positions if self._owner is None else np.flatnonzero(np.isin(self._owner, positions))
            self.searcher.remove(gone)
        if added is not None:
            documents = self.num_documents
            self.searcher.add(added)
            if self._owner is not None:
                self._owner = np.concatenate([self._owner, (owner + documents).astype(np.int32)])
        return self

    def save(self, path: str | os.PathLike, *, corpus: str) -> None:
        """Writes encoder and vectors; the corpus itself is not in it."""
        meta = {"documents": self.num_documents, "most_sentences": self.most_sentences, "pieces": self.pieces}
        with storage.write_folder(path, KIND, corpus=corpus, meta=meta) as folder:
            self.encoder.save(folder / "encoder")
            self.searcher.save(folder / "searcher")
            if self._owner is not None:
                np.save(folder / "owner.npy", self._owner)

    @classmethod
    def load(cls, path: str | os.PathLike, *, verify: bool = True) -> DenseRetriever:
        """Reads what `save` wrote; vectors are memory-mapped where the searcher can.

        Raises:
          InputError: not such a folder, or altered.
        """
        path = pathlib.Path(path)
        meta = storage.read_folder(path, KIND, verify=verify).meta
        storage.check_counts(path, meta, "most_sentences")
        cut = {"most_sentences": meta["most_sentences"], "pieces": meta.get("pieces", False)}
        owner = storage.load_array(path / "owner.npy", dtype=np.int32, ndim=1) if any(cut.values()) else None
        searcher = dense.load_searcher(path / "searcher", verify=False)  # as part of this folder it was checked
        return cls(DenseEncoder.load(path / "encoder", verify=False), searcher, owner, **cut)

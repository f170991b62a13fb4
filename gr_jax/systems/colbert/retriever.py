"""ColBERT (Khattab & Zaharia 2020): a vector a token, documents ranked by MaxSim; over a corpus, or over candidates."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import storage
from gr_jax.dense.base import check_positions
from gr_jax.dense.max_sim import MaxSimSearch
from gr_jax.dense.token_vectors import TokenVectors
from gr_jax.errors import InputError
from gr_jax.retrievers.base import Evidence, Ranking, Retriever, check_question, checked_allowed, updatable
from gr_jax.systems.colbert.token_encoder import TokenEncoder

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus

KIND = "late_interaction"


class LateInteractionRetriever:
    """An encoder of tokens and the token vectors of documents.

    Args:
      encoder: that the vectors were made with.
      vectors: of the documents, in the corpus' order.
      first: a retriever whose best `depth` documents are ranked; None ranks all documents, exactly.
      depth: documents taken from `first`.
      resident: keep the documents' vectors on the device; see `MaxSimSearch`.
      **search: further settings of `MaxSimSearch`.

    Raises:
      InputError: encoder, vectors or first stage do not fit together.
    """

    reads_corpus = True

    def __init__(
        self,
        encoder: TokenEncoder,
        vectors: TokenVectors,
        *,
        first: Retriever | None = None,
        depth: int = 100,
        resident: bool | None = None,
        **search: Any,
    ):
        if encoder.dimension != vectors.dimension:
            raise InputError(
                f"the encoder's vectors have {encoder.dimension} numbers, the documents' {vectors.dimension}",
                "Use the encoder that the documents' vectors were made with.",
            )
        size = getattr(first, "num_documents", vectors.num_documents)
        if size != vectors.num_documents:
            raise InputError(
                f"a first stage of {size} documents for token vectors of {vectors.num_documents}",
                "Make both from one corpus.",
            )
        if depth < 1:
            raise InputError("at least one document is ranked", "Set depth to 1 or more.", value=depth)
        self.encoder, self.vectors, self.first, self.depth = encoder, vectors, first, depth
        self.search = MaxSimSearch(vectors, resident=resident, **search)

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from, removed ones included."""
        return self.vectors.num_documents

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. `explain` names, for every token of the query, the document's token that it found,
        and what that contributes.

        Raises:
          InputError: an empty query, or `k` is not positive.
        """
        check_question(queries, k, self.num_documents)
        for number, query in enumerate(queries):
            if not query.strip():
                raise InputError(f"query {number} is empty", "Leave it out, or ask something in words.", value=query)
        mask = checked_allowed(allowed, len(queries), self.num_documents)
        vectors, weights = self.encoder.encode_queries(queries)
        if self.first is None:
            index, score = self.search.search(vectors, weights, k, allowed=mask)
        else:
            proposed = self.first.retrieve(queries, max(k, self.depth), allowed=allowed).doc_index
            scores = self.search.score(vectors, weights, proposed)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            index, score = (np.take_along_axis(array, order, axis=1) for array in (proposed, scores))
            index = np.where(score == -np.inf, -1, index)
        evidence = None
        if explain:
            evidence = tuple(
                tuple(self._evidence(q, w, int(document)) for document in found if document >= 0)
                for q, w, found in zip(vectors, weights, index, strict=True)
            )
        return Ranking(index.astype(np.int32), score, evidence)

    def score(self, queries: Sequence[str], candidates: Int[np.ndarray, "batch c"]) -> Float[np.ndarray, "batch c"]:
        """Scores of each query's own documents; −inf where a candidate is −1."""
        return self.search.score(*self.encoder.encode_queries(queries), candidates)

    @property
    def updatable(self) -> bool:
        """Whether documents can come and go: where there is a first stage, whether it can take and leave them."""
        return self.first is None or updatable(self.first)

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> LateInteractionRetriever:
        """Adds and removes documents; see `DenseRetriever.update`. Only added ones are encoded.

        Raises:
          InputError: a position that no document has, or a first stage that cannot; nothing is changed then.
        """
        if not self.updatable:
            raise InputError("the first stage cannot take or leave documents", "Make the index anew.")
        gone = check_positions(remove, self.num_documents)
        added = None
        if add is not None and len(add):
            added = self.encoder.encode_documents(add.contents, precision=self.vectors.precision)
        if self.first is not None:
            changing: Any = self.first
            changing.update(add=add, remove=remove)
        self.vectors.remove(gone)
        if added is not None:
            self.vectors.add(added)
        return self

    def save(self, path: str | os.PathLike, *, corpus: str) -> None:
        """Writes encoder, vectors and, where there is one, the first stage; the corpus itself is not in it."""
        meta = {"documents": self.num_documents, "depth": self.depth}
        with storage.write_folder(path, KIND, corpus=corpus, meta=meta) as folder:
            self.encoder.save(folder / "encoder")
            self.vectors.save(folder / "vectors", corpus=corpus)
            if self.first is not None:
                self.first.save(folder / "first", corpus=corpus)  # type: ignore[attr-defined]

    @classmethod
    def load(
        cls, path: str | os.PathLike, corpus: Any = None, *, verify: bool = True, resident: bool | None = None
    ) -> LateInteractionRetriever:
        """Reads what `save` wrote; the vectors are memory-mapped.

        Args:
          path: the folder.
          corpus: the documents, for a first stage that reads them.
          verify: check the checksums.
          resident: keep the documents' vectors on the device; see `MaxSimSearch`.

        Raises:
          InputError: not such a folder, or altered.
        """
        from gr_jax.retrievers import index

        path = pathlib.Path(path)
        meta = storage.read_folder(path, KIND, verify=verify).meta
        storage.check_counts(path, meta, "depth")
        first = index.load_retriever(path / "first", corpus, verify=False) if (path / "first").exists() else None
        return cls(
            TokenEncoder.load(path / "encoder", verify=False),
            TokenVectors.load(path / "vectors", verify=False),
            first=first,
            depth=meta["depth"],
            resident=resident,
        )

    def _evidence(
        self, query: Float[np.ndarray, "Q d"], weights: Float[np.ndarray, " Q"], document: int
    ) -> tuple[Evidence, ...]:
        """What each of the document's tokens was found by and contributed, the weightiest first."""
        vectors = self.vectors.document(document)
        tokens = self.vectors.tokens(document)
        products = query @ vectors.T  # [Q, tokens]
        best = products.argmax(axis=1)
        gained = weights * products[np.arange(len(query)), best]
        found: dict[int, float] = {}
        for place, value, weight in zip(best.tolist(), gained.tolist(), weights.tolist(), strict=True):
            if weight:
                found[place] = found.get(place, 0.0) + value
        reasons = []
        for place, value in sorted(found.items(), key=lambda item: (-item[1], item[0])):
            token = int(tokens[place])
            name = "(the whole text)" if token < 0 else self.encoder.vocabulary.decode([token]) or f"token {token}"
            reasons.append(Evidence("token", name, float(value), tokens=(token,) if token >= 0 else ()))
        return tuple(reasons)

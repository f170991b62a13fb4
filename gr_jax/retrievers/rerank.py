"""A cheap retriever proposes documents, a scorer that reads query and document together orders the first of them."""

from __future__ import annotations

import itertools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import storage
from gr_jax.corpus import Corpus
from gr_jax.errors import InputError
from gr_jax.registry import SCORERS
from gr_jax.retrievers.base import Evidence, Ranking, Retriever, check_question, updatable
from gr_jax.text.transforms import get_transform

if TYPE_CHECKING:
    from gr_jax.corpus import Document

KIND = "rerank"
DEPTH = 20


class Scorer(Protocol):
    """Whatever judges pairs: a cross-encoder of ours, `sentence_transformers.CrossEncoder.predict`, a teacher."""

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " pairs"]:
        """A score for each (query, document); higher is better."""
        ...


class RerankRetriever:
    """A first stage whose best documents are ordered anew by a scorer of (query, document) pairs.

    Documents below the first `depth` keep their order, after all of those: their scores fall by 1 from the lowest that
    the scorer gave.

    Args:
      first: the first stage.
      scorer: of pairs; a document is read as "title: text". To save the retriever it needs `save(folder)`.
      corpus: the documents, in the first stage's order.
      depth: documents that are scored.
      transform: of `gr_jax.text.TRANSFORMS`, for queries and documents before they are scored.

    Raises:
      InputError: the first stage is of another corpus, or `depth` is not positive.
    """

    reads_corpus = True

    def __init__(
        self, first: Retriever, scorer: Scorer, corpus: Corpus, *, depth: int = DEPTH, transform: str = "none"
    ):
        if depth < 1:
            raise InputError("at least one document is scored", "Set depth to 1 or more.", value=depth)
        size = getattr(first, "num_documents", len(corpus))
        if size != len(corpus):
            raise InputError(
                f"a first stage of {size} documents for a corpus of {len(corpus)}",
                "Use the corpus that it was made from.",
            )
        self.first, self.scorer, self.depth, self.transform = first, scorer, depth, transform
        self._corpus, self._rewrite = corpus, get_transform(transform)

    @property
    def num_documents(self) -> int:
        """Documents of the corpus that it answers from."""
        return len(self._corpus)

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. What is found is among the first stage's `max(k, depth)` allowed documents.

        `explain` names the scorer's score and the first stage's reasons.
        """
        check_question(queries, k, self.num_documents)
        proposed = self.first.retrieve(queries, max(k, self.depth), allowed=allowed, explain=explain)
        head = proposed.doc_index[:, : self.depth]
        scores = self._scores(queries, head)
        # Stable: equal scores keep the first stage's order, and what was not scored (−inf) stays behind.
        order = np.argsort(-scores, axis=1, kind="stable")
        doc_index, score = proposed.doc_index.copy(), np.full(proposed.score.shape, -np.inf, np.float32)
        doc_index[:, : self.depth] = np.take_along_axis(head, order, axis=1)
        score[:, : self.depth] = np.take_along_axis(scores, order, axis=1)
        below = np.arange(1, doc_index.shape[1] - head.shape[1] + 1, dtype=np.float32)
        score[:, self.depth :] = np.where(
            doc_index[:, self.depth :] >= 0, score[:, head.shape[1] - 1 :][:, :1] - below, -np.inf
        )
        evidence = _evidence(proposed, order, score, k) if explain else None

        def docid_of(query: int, rank: int) -> str:
            before = int(order[query, rank]) if rank < order.shape[1] else rank
            return proposed.docid_of(query, before) if proposed.docid_of is not None else ""

        return Ranking(doc_index[:, :k], score[:, :k], evidence, docid_of)

    def score(self, queries: Sequence[str], candidates: Int[np.ndarray, "batch c"]) -> Float[np.ndarray, "batch c"]:
        """The scorer's opinion of given documents, whatever the first stage makes of them; −inf where there is none
        (−1)."""
        return self._scores(queries, np.asarray(candidates))

    def _scores(self, queries: Sequence[str], head: np.ndarray) -> Float[np.ndarray, "batch depth"]:
        """The scorer's opinion of all proposed pairs, asked for at once; −inf where there is no document."""
        rows, columns = np.nonzero(head >= 0)
        scores = np.full(head.shape, -np.inf, np.float32)
        if not len(rows):
            return scores
        asked = [self._rewrite(query) for query in queries]
        texts = {
            int(document): self._rewrite(pair_text(self._corpus[int(document)]))
            for document in np.unique(head[rows, columns])
        }
        pairs = [(asked[row], texts[int(head[row, column])]) for row, column in zip(rows, columns, strict=True)]
        found = np.asarray(self.scorer(pairs), np.float32)
        if found.shape != (len(pairs),) or not np.isfinite(found).all():
            raise InputError("a scorer gives one finite number for each pair", "Correct the scorer.", value=found.shape)
        scores[rows, columns] = found
        return scores

    @property
    def updatable(self) -> bool:
        """Whether the first stage can take and leave documents."""
        return updatable(self.first)

    def update(self, add: Corpus | None = None, remove: Sequence[int] = ()) -> RerankRetriever:
        """Adds and removes documents in the first stage; see `DenseRetriever.update`.

        Raises:
          InputError: the first stage cannot.
        """
        if not self.updatable:
            raise InputError("the first stage cannot take or leave documents", "Make the index anew.")
        corpus = self._corpus if add is None else Corpus.from_documents(itertools.chain(self._corpus, add))
        changing: Any = self.first
        changing.update(add=add, remove=remove)
        self._corpus = corpus
        return self

    def save(self, path: str | os.PathLike, *, corpus: str) -> None:
        """Writes both stages; the corpus itself is not in it.

        Raises:
          InputError: the first stage or the scorer cannot be saved.
        """
        first, scorer = _saveable(self.first, "first stage"), _saveable(self.scorer, "scorer")
        meta = {"depth": self.depth, "transform": self.transform}
        with storage.write_folder(path, KIND, corpus=corpus, meta=meta) as folder:
            first.save(folder / "first", corpus=corpus)
            scorer.save(folder / "scorer")

    @classmethod
    def load(cls, path: str | os.PathLike, corpus: Corpus | None = None, *, verify: bool = True) -> RerankRetriever:
        """Reads what `save` wrote.

        Args:
          path: the folder.
          corpus: the documents; they are what the scorer reads.
          verify: check the checksums.

        Raises:
          InputError: not such a folder, or altered, or without its documents.
        """
        from gr_jax.retrievers import index

        path = pathlib.Path(path)
        meta = storage.read_folder(path, KIND, verify=verify).meta
        storage.check_counts(path, meta, "depth")
        if corpus is None:
            raise InputError("a reranker reads the documents", "Give the corpus that it answers from.", file=path)
        kind = storage.read_folder(path / "scorer", verify=False).kind
        scorer = SCORERS.find(kind, file=path).load(path / "scorer", verify=False)
        first = index.load_retriever(path / "first", corpus, verify=False)
        return cls(first, scorer, corpus, depth=meta["depth"], transform=meta["transform"])


def pair_text(document: Document) -> str:
    """A document as a scorer of pairs reads it: "title: text"."""
    return f"{document.title}: {document.text}" if document.title else document.text


def _evidence(
    proposed: Ranking, order: Int[np.ndarray, "batch depth"], score: Float[np.ndarray, "batch n"], k: int
) -> tuple[tuple[tuple[Evidence, ...], ...], ...]:
    """The scorer's score, then the first stage's reasons, of every document in its new place."""
    rows = []
    for row, found in enumerate(proposed.evidence or ()):
        places = [place for place in order[row].tolist() if place < len(found)]
        judged = [
            (Evidence("pair", "scorer", float(score[row, rank])), *found[place]) for rank, place in enumerate(places)
        ]
        rows.append((*judged, *found[order.shape[1] :])[:k])
    return tuple(rows)


def _saveable(part: Any, noun: str) -> Any:
    if not hasattr(part, "save"):
        raise InputError(
            f"this {noun} cannot be saved", "Use one that can, or keep the retriever in memory.", value=type(part)
        )
    return part

"""Search for people: queries as texts in, readable hits out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from gr_jax.corpus import Corpus, Qrels, Queries
from gr_jax.corpus.documents import DuplicateDocument
from gr_jax.errors import InputError
from gr_jax.evaluation import temperature
from gr_jax.evaluation.temperature import Calibration
from gr_jax.printing import printable
from gr_jax.retrievers.base import Evidence, Ranking, Retriever, check_question, retrieve_run, updatable
from gr_jax.retrievers.phrases import find_phrase


@dataclasses.dataclass(frozen=True)
class Hit:
    """One answer.

    Attributes:
      doc_id, title, text: the document.
      score: the retriever's; comparable within one answer only.
      docid: the identifier that was generated, as its text or its tokens joined by "-"; "" for retrievers that generate
        none.
      evidence: why it was found, the weightiest first, with the places in `text`; () unless asked for.
      probability: that it is the answer, in 0..1; None unless asked for. `Searcher.calibrate` fits and measures that of
        first hits; those behind follow from the same softmax.
    """

    doc_id: str
    title: str
    text: str
    score: float
    docid: str = ""
    evidence: tuple[Evidence, ...] = ()
    probability: float | None = None

    def __str__(self) -> str:
        docid = f"  [{printable(self.docid)}]" if self.docid else ""
        sure = "" if self.probability is None else f"{self.probability:7.1%}"
        return f"{self.score:8.2f}{sure}  {printable(self.title or self.doc_id)}{docid}"


class Searcher:
    """A retriever together with the documents that it answers from.

    Args:
      retriever: any retriever.
      corpus: the documents, in the retriever's order.
      calibration: how its scores become probabilities; None where that was not measured.
    """

    def __init__(self, retriever: Retriever, corpus: Corpus, calibration: Calibration | None = None):
        self.retriever, self.corpus, self.calibration = retriever, corpus, calibration

    @overload
    def search(self, query: str, k: int = 10, *, explain: bool = False, probability: bool = False) -> list[Hit]: ...

    @overload
    def search(
        self, query: list[str] | tuple[str, ...], k: int = 10, *, explain: bool = False, probability: bool = False
    ) -> list[list[Hit]]: ...

    def search(self, query, k=10, *, explain=False, probability=False):
        """The k best documents, best first.

        Args:
          query: a text; or a list of texts, which are answered in one batch, each with its own list of hits.
          k: how many documents of each query at most.
          explain: say why each was found.
          probability: say how sure each is, among the first `calibration.depth` documents. So many are searched for
            then, and what is searched by a beam may find others first than with the few beams that `k` needs.

        Raises:
          InputError: a query that is empty or no text, no queries at all, a `k` that is not positive, or probabilities
            that were not measured.
        """
        queries = _checked_queries(query)
        k = check_question(queries, min(k, len(self.corpus)) if isinstance(k, int) else k, len(self.corpus))
        depth = min(max(k, self._calibrated().depth), len(self.corpus)) if probability else k
        ranking = self.retriever.retrieve(queries, depth, explain=explain)
        hits = [self._hits(ranking, row, k, probability) for row in range(len(queries))]
        return hits[0] if isinstance(query, str) else hits

    def _hits(self, ranking: Ranking, row: int, k: int, probability: bool) -> list[Hit]:
        """The first k documents of one query."""
        indices, scores = ranking.doc_index[row].tolist(), ranking.score[row].tolist()
        found = len(indices) if -1 not in indices else indices.index(-1)
        sure = self._calibrated().probabilities(ranking.score[row, :found]).tolist() if probability else [None] * found
        hits = []
        for rank, (index, score) in enumerate(zip(indices[: min(k, found)], scores, strict=False)):
            document = self.corpus[index]
            docid = "" if ranking.docid_of is None else ranking.docid_of(row, rank)
            reasons = ranking.evidence[row][rank] if ranking.evidence else ()
            evidence = tuple(_placed(reason, document.text) for reason in reasons)
            hits.append(Hit(document.doc_id, document.title, document.text, score, docid, evidence, sure[rank]))
        return hits

    def calibrate(
        self, queries: Queries, qrels: Qrels, *, depth: int = temperature.DEPTH, progress: bool = False
    ) -> Calibration:
        """Measures how sure an answer is, on queries with judgements that nothing was trained on.

        Args:
          queries: those without a judgement are left out.
          qrels: their judgements.
          depth: documents over which scores are normalised.
          progress: show a bar.

        Returns:
          The calibration, which this searcher uses from now on. `retrievers.index.save_calibration` keeps it.

        Raises:
          InputError: fewer than two queries have judgements and results, or all of their scores are equal.
        """
        depth = check_question([], depth, len(self.corpus))
        asked = queries.select([one for one in queries.ids if one in qrels])
        run = retrieve_run(self.retriever, asked, self.corpus, k=depth, progress=progress)
        self.calibration = temperature.fit(run, qrels, depth)
        return self.calibration

    def _calibrated(self) -> Calibration:
        if self.calibration is None:
            raise InputError(
                "how sure an answer is was not measured for this index",
                "Measure it on queries with judgements: gr-jax calibrate, or Searcher.calibrate.",
            )
        return self.calibration

    def retrieve(
        self, queries: Sequence[str], k: int, *, allowed: np.ndarray | None = None, explain: bool = False
    ) -> Ranking:
        """The retriever's own `retrieve`, for batches."""
        return self.retriever.retrieve(queries, k, allowed=allowed, explain=explain)

    def update(self, add: Corpus | None = None, remove: Sequence[str] = ()) -> Searcher:
        """Adds and removes documents, where the retriever can, without training.

        Args:
          add: documents with ids of their own, which no document has or had; they stand behind the others.
          remove: ids of documents that shall no longer be found; some may have been removed before. They keep their
            place, so that the positions in earlier rankings still name the same documents.

        Returns:
          This searcher, changed. `retrievers.index.save` writes it again. Its calibration is gone: that was measured
          among other documents.

        Raises:
          InputError: an id that is there twice or not at all, or a retriever that cannot be changed.
        """
        if not updatable(self.retriever):
            raise InputError(
                "this retriever cannot take or leave documents", "Make the index anew.", value=type(self.retriever)
            )
        positions = [self.corpus.index_of(doc_id) for doc_id in remove]
        corpus = self.corpus
        if add is not None:
            try:  # before anything changes
                corpus = Corpus.from_documents(itertools.chain(corpus, add))
            except DuplicateDocument as error:
                raise InputError(
                    "a document of this id is in the index, or was until it was removed",
                    "Give the new one an id of its own: removed documents keep their place and name.",
                    value=error.doc_id,
                ) from error
        changing: Any = self.retriever
        changing.update(add=add, remove=positions)
        self.corpus, self.calibration = corpus, None
        return self


def _checked_queries(query: Any) -> list[str]:
    """What is searched for, as texts of which none is empty; whether all are texts is for the retriever to check."""
    if not isinstance(query, str | list | tuple):
        raise InputError("the query is no text", "Give a text, or a list of texts.", value=query)
    queries = [query] if isinstance(query, str) else list(query)
    if not queries:
        raise InputError("the list of queries is empty", "Give at least one text.")
    for number, text in enumerate(queries):
        if isinstance(text, str) and not text.strip():
            which = "the query" if isinstance(query, str) else f"query {number}"
            raise InputError(f"{which} is empty", "Ask something in words.", value=text)
    return queries


def _placed(reason: Evidence, text: str) -> Evidence:
    """An n-gram with the places where it stands: its retriever knows tokens, and not the text."""
    if reason.kind != "ngram" or reason.spans:
        return reason
    return dataclasses.replace(reason, spans=find_phrase(reason.text, text))

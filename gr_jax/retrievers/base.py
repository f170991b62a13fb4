"""What every retriever answers with, and how an answer becomes a TREC run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax import progress as progress_lib
from gr_jax import sharing
from gr_jax.errors import InputError

if TYPE_CHECKING:
    from gr_jax.corpus import Corpus, Queries, Run

MOST = 1_000_000  # columns of an answer from fewer documents


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One reason why a document was found.

    Attributes:
      kind: "docid", "ngram", "term", "similarity" (of vectors), "token" (of late interaction), "part" (of a
        combination) or "pair" (a reranker's).
      text: the reason as a person reads it: a docid's tokens, an n-gram, a word of the query, a part's name.
      score: what it contributed.
      tokens: its token ids, where it has some.
      spans: (start, end) character offsets in the document's text, where it stands there.
      view: of an n-gram, where it stands: "title+body" or "pseudo_query"; "" where there is one view alone.
    """

    kind: str
    text: str
    score: float
    tokens: tuple[int, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    view: str = ""


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The answer to a batch of queries, best first; no document stands twice in one row.

    Attributes:
      doc_index: int32[batch, k], positions in the corpus; −1 where there are fewer than k answers.
      score: float32[batch, k], falling along k; −inf where `doc_index` is −1.
      evidence: for each query, for each rank that holds a document, why; None unless asked for.
      docid_of: (query, rank) → the identifier that was generated for the document there, "" where there is none; None
        of retrievers that generate none. A function, as only the few documents that are shown need it.
    """

    doc_index: Int[np.ndarray, "batch k"]
    score: Float[np.ndarray, "batch k"]
    evidence: tuple[tuple[tuple[Evidence, ...], ...], ...] | None = None
    docid_of: Callable[[int, int], str] | None = None

    def __len__(self) -> int:
        return len(self.doc_index)


class Retriever(Protocol):
    """Text in, ranking out: what every system is in the end."""

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """The k best documents of each query.

        Args:
          queries: texts.
          k: how many documents each gets at most.
          allowed: which documents may be returned, one row for all queries or one for each; None allows all. Exact:
            the answer is the k best among the allowed.
          explain: fill `Ranking.evidence`.
        """
        ...


def updatable(retriever: Any) -> bool:
    """Whether documents can come and go without training; of a retriever around others, whether they all let them."""
    return bool(getattr(retriever, "updatable", hasattr(retriever, "update")))


def stack_rankings(rankings: Sequence[Ranking]) -> Ranking:
    """One ranking of the batches' queries, in order, without `docid_of`; all have the same k."""
    evidence = None
    if all(ranking.evidence is not None for ranking in rankings):
        evidence = tuple(row for ranking in rankings for row in ranking.evidence or ())
    return Ranking(
        np.concatenate([ranking.doc_index for ranking in rankings]),
        np.concatenate([ranking.score for ranking in rankings]),
        evidence,
    )


def ranking_to_run(ranking: Ranking, query_ids: Sequence[str], corpus: Corpus) -> Run:
    """The ranking as query id → [(doc_id, score)], best first; the empty places are left out."""
    from gr_jax.corpus import Run

    if len(query_ids) != len(ranking):
        raise InputError(
            f"{len(query_ids)} query ids for a ranking of {len(ranking)} queries",
            "Give one id for each query, in order.",
        )
    doc_ids = corpus.doc_ids
    return Run(
        {
            query_id: [
                (doc_ids[int(index)], float(score)) for index, score in zip(indices, scores, strict=True) if index >= 0
            ]
            for query_id, indices, scores in zip(query_ids, ranking.doc_index, ranking.score, strict=True)
        }
    )


def retrieve_run(
    retriever: Retriever, queries: Queries, corpus: Corpus, *, k: int, batch_size: int = 64, progress: bool = False
) -> Run:
    """Answers all queries, `batch_size` at a time, and returns the run."""
    return ranking_to_run(retrieve_all(retriever, queries, k, batch_size, progress), queries.ids, corpus)


def retrieve_all(
    retriever: Retriever, queries: Queries, k: int, batch_size: int = 64, progress: bool = False
) -> Ranking:
    """Answers all queries, `batch_size` at a time, which processes share out.

    Raises:
      InputError: there are no queries.
    """

    def answer(part: int) -> dict[str, np.ndarray]:
        ranking = retriever.retrieve(queries.texts[part * batch_size : (part + 1) * batch_size], k)
        return {"doc_index": ranking.doc_index, "score": ranking.score}

    rankings = []
    with progress_lib.bar("Retrieving", len(queries.ids), enabled=progress) as bar:
        for found in sharing.in_parts("retrieving", -(-len(queries.ids) // batch_size), answer, "while retrieving"):
            rankings.append(Ranking(found["doc_index"], found["score"]))
            bar.advance(len(rankings[-1]))
    if not rankings:
        raise InputError("there are no queries to answer", "Name a file or a split that has queries.")
    return stack_rankings(rankings)


def nested(retriever: Any) -> bool:
    """Whether a retriever says that its shorter answers are the beginnings of its longer ones."""
    return bool(getattr(retriever, "nested", False))


def check_question(queries: Sequence[str], k: int, num_documents: int) -> int:
    """How many documents an answer can hold: `k`, or all that there are. To look for more would compile programs for
    every `k`.

    Raises:
      InputError: `retrieve` was given something that is no text, or a `k` far above the documents.
    """
    if isinstance(queries, str):
        raise InputError("`queries` is a sequence of texts", "Write retrieve([query], k).", value=queries)
    for number, query in enumerate(queries):
        if not isinstance(query, str):
            raise InputError(f"query {number} is no text", "Give texts.", value=query)
        try:
            query.encode("utf-8")
        except UnicodeEncodeError as error:  # of a terminal whose bytes are no UTF-8
            raise InputError(
                f"query {number} is no valid Unicode", "Remove half surrogate pairs.", value=query
            ) from error
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError("k is how many documents to return, 1 or more", "Use k=10.", value=k)
    if k > max(num_documents, MOST):
        raise InputError(f"k is far above the {num_documents} documents", f"Use k={num_documents}.", value=k)
    return min(int(k), num_documents)


def checked_allowed(
    allowed: np.ndarray | None, batch: int, num_documents: int
) -> Bool[np.ndarray, "batch documents"] | None:
    """`allowed` with one row for each query; InputError where its type or shape is wrong."""
    if allowed is None:
        return None
    mask = np.asarray(allowed)
    if mask.dtype != np.bool_:
        raise InputError(
            "`allowed` says for every document whether it may be returned",
            "Give booleans, one for each document.",
            value=mask.dtype,
        )
    if mask.shape not in ((num_documents,), (batch, num_documents)):
        raise InputError(
            f"`allowed` does not fit {batch} queries over {num_documents} documents",
            f"Give the shape ({num_documents},) or ({batch}, {num_documents}).",
            value=mask.shape,
        )
    return np.broadcast_to(mask, (batch, num_documents))


def best(scores: Float[np.ndarray, " documents"], k: int, eligible: Bool[np.ndarray, " documents"]) -> np.ndarray:
    """Positions of the k highest scores among the eligible, best first; equal scores in the order of the documents."""
    candidates = np.flatnonzero(eligible)
    values = scores[candidates]
    if len(candidates) > k:
        # The k-th best value decides; everything that equals it stays in, for the sort to break the tie by position.
        keep = values >= np.partition(values, len(values) - k)[len(values) - k]
        candidates, values = candidates[keep], values[keep]
    return candidates[np.argsort(-values, kind="stable")[:k]]

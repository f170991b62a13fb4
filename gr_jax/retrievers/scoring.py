"""How well given documents answer queries, by any retriever: what a teacher says of a student's candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int

from gr_jax.errors import InputError
from gr_jax.retrievers.base import Retriever, check_question


def candidate_scores(
    retriever: Retriever, queries: Sequence[str], candidates: Int[np.ndarray, "batch c"]
) -> Float32[np.ndarray, "batch c"]:
    """Scores of given documents. Higher is better, within one row alone.

    A retriever that has a method `score(queries, candidates)` is asked by it; any other one for its best among the
    candidates.

    Args:
      retriever: of the documents that candidates are positions of.
      queries: texts.
      candidates: int[batch, c], −1 for none; a document twice in a row has one score.

    Returns:
      float32[batch, c], NaN where there is no candidate, and where the retriever does not find it or gives it −∞: it
      comes behind those that have a score.

    Raises:
      InputError: no such document; as many rows of candidates as queries are needed; a retriever that gives NaN or +∞.
    """
    documents = int(getattr(retriever, "num_documents", 0))
    check_question(queries, 1, max(documents, 1))
    candidates = np.asarray(candidates)
    if candidates.ndim != 2 or len(candidates) != len(queries) or candidates.dtype.kind != "i":
        raise InputError(
            f"{len(queries)} queries need as many rows of candidates", "Give int[batch, c].", value=candidates.shape
        )
    wrong = candidates[(candidates < -1) | (candidates >= documents)]
    if len(wrong):
        raise InputError(
            f"no such document among the {documents} that the teacher knows",
            "Take a teacher of the same corpus.",
            value=int(wrong[0]),
        )
    found = np.full(candidates.shape, np.nan, np.float32)
    if not candidates.size:
        return found
    scorer: Any = retriever
    if hasattr(retriever, "score"):
        scores = np.where(candidates >= 0, np.asarray(scorer.score(queries, candidates), np.float32), -np.inf)
        _check_scores(retriever, queries, candidates, scores)
        return np.where(np.isfinite(scores), scores, found)
    rows, columns = np.nonzero(candidates >= 0)
    allowed = np.zeros((len(queries), documents), bool)
    allowed[rows, candidates[rows, columns]] = True
    ranking = retriever.retrieve(queries, candidates.shape[1], allowed=allowed)
    _check_scores(retriever, queries, ranking.doc_index, ranking.score)
    for row, wanted in enumerate(candidates):
        same = (wanted[:, None] == ranking.doc_index[row]) & (wanted[:, None] >= 0)  # --> [c, found]
        has = same.any(axis=1)
        found[row, has] = ranking.score[row, same.argmax(axis=1)[has]]
    return np.where(np.isfinite(found), found, np.float32(np.nan))


def _check_scores(
    retriever: Retriever,
    queries: Sequence[str],
    documents: Int[np.ndarray, "batch c"],
    scores: Float[np.ndarray, "batch c"],
) -> None:
    """Raises InputError where a score is neither finite nor −∞, which would pass for a document that is not found."""
    wrong = np.argwhere(np.isnan(scores) | np.isposinf(scores))
    if len(wrong):
        row, column = wrong[0].tolist()
        given = "NaN" if np.isnan(scores[row, column]) else "infinity"
        raise InputError(
            f"a teacher, {type(retriever).__name__}, gave {given} for the score of document {documents[row, column]}",
            "Correct the teacher: scores are finite, or −∞ for a document that it does not find.",
            value=queries[row],
        )

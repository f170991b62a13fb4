"""Measures of ranked docids for `seqio.Evaluator`: those of `gr-jax evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gr_jax.corpus import Qrels, Run
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate


def top_k_metric(
    docids: Docids, doc_ids: Sequence[str], qrels: Qrels, query_ids: Sequence[str], measures: Sequence[str]
) -> Callable[..., Mapping[str, Any]]:
    """A metric function of seqio's, `(targets, predictions)`, for a model that predicts [batch, k, length] tokens.

    Args:
      docids: of the documents.
      doc_ids: of the documents, in the order of the corpus.
      qrels: what answers.
      query_ids: of the Task's examples, in their order.
      measures: as `gr-jax evaluate` takes them: "Success@10", "RR@10".

    Returns:
      The function. A prediction is k docids, best first; what names no document is passed over, and so is a document
      that came before. Targets are not looked at, for the judgements say what is right. It raises InputError where
      there are more or fewer predictions than questions.
    """

    def metric(targets: Sequence[Any], predictions: Sequence[Sequence[Sequence[int]]]) -> Mapping[str, Any]:
        del targets
        if len(predictions) != len(query_ids):
            raise InputError(
                f"{len(predictions)} predictions for {len(query_ids)} questions", "Predict for every question once."
            )
        ranked = {}
        for query, found in zip(query_ids, predictions, strict=True):
            rows = (docids.row_of(_without_end(tokens, docids.eos_id)) for tokens in found)
            named = [int(one) for row in rows if row is not None for one in docids.documents_of(row)]
            ranked[query] = [(doc_ids[one], -float(place)) for place, one in enumerate(dict.fromkeys(named))]
        return dict(evaluate(Run(ranked), qrels, measures))

    return metric


def _without_end(tokens: Sequence[int], eos_id: int | None) -> list[int]:
    """A docid without EOS and the padding behind it."""
    ids = [int(one) for one in tokens]
    if eos_id is not None and eos_id in ids:
        return ids[: ids.index(eos_id)]
    while ids and ids[-1] == 0:
        ids.pop()
    return ids

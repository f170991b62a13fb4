"""KILT's measures of pages (Petroni et al. 2021, arXiv 2009.02252, section 5), as its `eval_retrieval.py` has them.

What a question needs is a set of pages, its evidence; where there are several sets, each of them alone answers it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gr_jax.corpus.kilt import Question
from gr_jax.errors import InputError
from gr_jax.evaluation.metrics import Evaluation

CUTOFFS = (1, 5, 10, 20, 50, 100)


def r_precision(answers: Sequence[str], evidence: Sequence[Collection[str]]) -> float:
    """The best share of an evidence set that is among as many first answers; 0 where there is no evidence.

    KILT's script leaves a page out only where its record has no "wikipedia_id" at all. A null is a page called "None"
    there. Here it stands for a page that nobody can name, and is left out too.

    Args:
      answers: pages, best first; a page that comes again is passed over.
      evidence: sets of pages. A page without a name is no part of its set here.
    """
    unique = list(dict.fromkeys(answers))
    sets = [frozenset(filter(None, one)) for one in evidence]
    return max((len(one & frozenset(unique[: len(one)])) / len(one) for one in sets if one), default=0.0)


def ranks(answers: Sequence[str], evidence: Sequence[Collection[str]]) -> list[bool]:
    """Whether each rank is a complete evidence set.

    A rank is an evidence set, which stands where its last page does, or a page of none. So a set of several pages takes
    one rank. One that is not complete takes a rank too, at the last of its pages that were found.

    Args:
      answers, evidence: see `evidence_recall`.
    """
    missing = [set(one) for one in _distinct(evidence)]
    found: list[int | bool] = []  # the number of a set that is not complete yet; whether a rank is a complete set
    for page in dict.fromkeys(answers):
        own = [number for number, pages in enumerate(missing) if page in pages]
        for number in own:
            found = [rank for rank in found if rank is True or rank is False or rank != number]
            missing[number].remove(page)
            found.append(number if missing[number] else True)
        if not own:
            found.append(False)
    return [rank is True for rank in found]


def evidence_recall(answers: Sequence[str], evidence: Sequence[Collection[str]], k: int) -> float:
    """The share of evidence sets that are complete within the first k `ranks`; 0 where there is no evidence.

    Args:
      answers: pages, best first; a page that comes again is passed over.
      evidence: sets of pages; equal ones count once. One that is empty, or that has a page without a name, is never
        complete.
      k: ranks.

    Raises:
      InputError: k < 1.
    """
    return measures(answers, evidence, [k])[f"recall@{k}"]


def measures(answers: Sequence[str], evidence: Sequence[Collection[str]], cutoffs: Sequence[int]) -> dict[str, float]:
    """R-precision; and at each cutoff k the precision of `ranks`, the recall of sets, and whether any is complete.

    KILT's script divides by the number of evidence sets. Where there is none, or no answer, all are 0 here as there.

    Args:
      answers, evidence: see `evidence_recall`.
      cutoffs: of ranks.

    Returns:
      "Rprec", "precision@k", "recall@k", "success_rate@k".

    Raises:
      InputError: a cutoff below 1.
    """
    for k in cutoffs:
        if k < 1:
            raise InputError("recall needs a rank", "Give k ≥ 1.", value=k)
    complete, sets = ranks(answers, evidence), len(_distinct(evidence))
    values = {"Rprec": r_precision(answers, evidence)}
    for k in cutoffs:
        hits = sum(complete[:k])
        values[f"precision@{k}"] = hits / k
        values[f"recall@{k}"] = hits / sets if sets else 0.0
        values[f"success_rate@{k}"] = float(hits > 0)
    return values


def evaluate_kilt(
    questions: Sequence[Question],
    answers: Mapping[str, Sequence[str]],
    *,
    key: str = "wikipedia_id",
    cutoffs: Sequence[int] = CUTOFFS,
) -> Evaluation:
    """KILT's measures over a task, means over all its questions.

    Args:
      questions: see `corpus.kilt.read_kilt`.
      answers: id → pages, best first, by the same key; see `corpus.kilt.read_predictions`. More ids are passed over.
      key: "wikipedia_id" or "title".
      cutoffs: of ranks.

    Raises:
      InputError: there is no question, or none has an output, or one is not answered.
    """
    if not any(question.outputs for question in questions):
        raise InputError(
            "no question has an output, so that nothing can be judged",
            "Use a file with evidence: those of KILT's test sets have none.",
            value=len(questions),
        )
    rows = []
    for question in questions:
        if question.id not in answers:
            raise InputError("a question without an answer", "Answer every question of the file.", value=question.id)
        rows.append(measures(answers[question.id], question.evidence(key), cutoffs))
    per_query = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    ids = tuple(question.id for question in questions)
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, ids, per_query)


def _distinct(evidence: Sequence[Collection[str]]) -> list[frozenset[str]]:
    return list(dict.fromkeys(frozenset(one) for one in evidence))

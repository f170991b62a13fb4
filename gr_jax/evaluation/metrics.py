"""Measures of a run against qrels. ir_measures computes every one of them, and its spelling is the name."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gr_jax.corpus.trec import GRADES, Qrels, check_grade
from gr_jax.errors import InputError

if TYPE_CHECKING:
    import ir_measures

DEFAULT_MEASURES = ("Success@1", "Success@10", "R@100", "RR@10", "nDCG@10")
EXAMPLES = "Success@1, Success@10, R@100, RR@10, nDCG@10, AP, Rprec, P@5"

# What the same measures are called elsewhere, so that a wrong name can be answered with the right one.
_OTHER_NAMES = {
    "hits": "Success",
    "hit": "Success",
    "acc": "Success",
    "recall": "R",
    "ndcg": "nDCG",
    "rprecision": "Rprec",
}


class Evaluation(dict[str, float]):
    """What `evaluate` found: measure → its mean over all queries of the qrels (its sum where the measure is a count).

    Attributes:
      query_ids: every query of the qrels, in their order.
      per_query: measure → float64[query], in the order of `query_ids`; queries without results hold 0.
    """

    def __init__(self, mean: Mapping[str, float], query_ids: Sequence[str], per_query: Mapping[str, np.ndarray]):
        super().__init__(mean)
        self.query_ids = tuple(query_ids)
        self.per_query = dict(per_query)


def evaluate(
    run: Mapping[str, Sequence[tuple[str, float]] | Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    measures: str | Iterable[str] = DEFAULT_MEASURES,
) -> Evaluation:
    """Measures a run.

    The order of a query's list is its ranking: scores are not looked at, so ties and float rounding cannot reorder it.
    Queries of the qrels that the run does not answer count 0; queries of the run without qrels are left out.

    Args:
      run: query id → [(doc_id, score)], best first; or doc_id → score, which is sorted, equal scores in their order.
      qrels: query id → doc_id → grade; grades of 1 and more are relevant unless the measure says otherwise.
      measures: names as ir_measures spells them ("Success@10", "AP(rel=2)"), a sequence or one string with spaces.

    Raises:
      InputError: a measure that ir_measures does not know, no qrels, a document twice in one query's list, or a run
        none of whose queries has qrels.
    """
    parsed = parse_measures(measures)
    if not qrels:
        raise InputError("the qrels hold no query", "Name a split that has judged queries.")
    run_ids = list(run)
    if run_ids and not any(query_id in qrels for query_id in run_ids):
        raise InputError(
            "no query of the run is in the qrels",
            f"Use the run and the qrels of one split; the qrels hold queries like {next(iter(qrels))!r}.",
            value=run_ids[0],
        )
    ranked = {query_id: _by_rank(query_id, run[query_id]) for query_id in run_ids if query_id in qrels}
    if not isinstance(qrels, Qrels):  # which has checked its own
        _check_grades(qrels)
    judged = {query_id: {doc: int(grade) for doc, grade in qrels[query_id].items()} for query_id in qrels}
    rows = {query_id: row for row, query_id in enumerate(judged)}
    per_query = {measure: np.zeros(len(rows)) for measure in parsed}
    for metric in _compute(list(parsed.values()), judged, ranked):
        per_query[str(metric.measure)][rows[metric.query_id]] = metric.value
    mean = {}
    for name, measure in parsed.items():
        aggregator = measure.aggregator()
        for value in per_query[name]:
            aggregator.add(float(value))
        mean[name] = float(aggregator.result())
    return Evaluation(mean, tuple(rows), per_query)


def parse_measures(measures: str | Iterable[str]) -> dict[str, ir_measures.Measure]:
    """Measure names → ir_measures' objects, keyed by its own spelling ("MRR@10" becomes "RR@10").

    Raises:
      InputError: not a measure, or parameters that it does not take; the message shows right ones.
    """
    ir_measures = import_ir_measures()
    # A comma or a space separates measures, except within the parentheses of one.
    names = re.split(r"[\s,]+(?![^(]*\))", measures.strip()) if isinstance(measures, str) else list(measures)
    names = [name for name in names if name]
    if not names:
        raise InputError("no measure is named", f"Name measures as ir_measures spells them: {EXAMPLES}.")
    parsed = {}
    for name in names:
        try:
            measure = ir_measures.parse_measure(name)
            measure.validate_params()
            if not ir_measures.DefaultPipeline.supports(measure):
                raise ValueError("no installed package computes it")
        except (NameError, ValueError, AssertionError, TypeError) as error:
            raise InputError(f"not a measure: {error}", _right_spelling(name), value=name) from error
        cutoff = measure.params.get("cutoff")
        if cutoff is not None and (not isinstance(cutoff, int) or cutoff < 1):
            raise InputError("a measure's cutoff is a rank, 1 or more", _right_spelling(name), value=name)
        parsed[str(measure)] = measure
    return parsed


def import_ir_measures() -> Any:
    """The package `ir_measures`, or an InputError that names the extra."""
    try:
        import ir_measures
    except ImportError as error:
        raise InputError("evaluation needs the package ir_measures", "pip install 'gr_jax[eval]'") from error
    return ir_measures


def _by_rank(query_id: str, ranking: Sequence[tuple[str, float]] | Mapping[str, float]) -> dict[str, float]:
    """doc_id → a score that falls by one from rank to rank: the same order for every tool, in float32 too."""
    if isinstance(ranking, Mapping):
        ranking = sorted(ranking.items(), key=lambda hit: -hit[1])
    scores = {doc_id: float(len(ranking) - rank) for rank, (doc_id, _) in enumerate(ranking)}
    if len(scores) != len(ranking):
        counts = collections.Counter(doc_id for doc_id, _ in ranking)
        raise InputError(
            f"a document is listed twice for query {query_id!r}",
            "List each document once, at its best rank.",
            value=counts.most_common(1)[0][0],
        )
    return scores


def _check_grades(judged: Mapping[str, Mapping[str, int]]) -> None:
    for query_id, grades in judged.items():
        for doc_id, grade in grades.items():
            if problem := check_grade(grade):
                raise InputError(problem, GRADES, value=(query_id, doc_id, grade))


def _compute(measures: list, judged: dict[str, dict[str, int]], ranked: dict[str, dict[str, float]]) -> list:
    ir_measures = import_ir_measures()
    try:
        return list(ir_measures.iter_calc(measures, judged, ranked))
    except Exception as error:  # its providers raise whatever their tools raise
        raise InputError(
            f"ir_measures could not compute {' '.join(map(str, measures))}: {error}", f"Ask for others: {EXAMPLES}."
        ) from error


def _right_spelling(name: str) -> str:
    match = re.fullmatch(r"\W*([A-Za-z]+)[_\- ]?@?(\d*)\W*", name.strip())
    if match and match[1].lower() in _OTHER_NAMES:
        right = _OTHER_NAMES[match[1].lower()]
        return f"Write {right if right == 'Rprec' else f'{right}@{match[2] or 10}'}; others are {EXAMPLES}."
    return f"Spell it as ir_measures does: {EXAMPLES}."

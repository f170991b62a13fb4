"""How sure an answer is, and how often that is right: the Brier score and the calibration error.

A system says p̂ of the document that it puts first; whether that document is relevant is seen afterwards. The Brier
score is the mean of (p̂ − 1[relevant])² over queries (*Does generative retrieval break through the limitations of dense
retrieval?*, arXiv 2509.22116, section 4). It compares systems on one set of queries alone.

There are several p̂, and a number means nothing without the name of its own:

| p̂ | of what | where |
|---|---|---|
| `of_list` | softmax of the scores of what was retrieved | any run |
| `of_corpus` | softmax of the scores of all documents | systems that score every document |
| `of_log_probabilities` | what a writer says of a whole docid | runs whose scores are logarithms of probabilities |

Under a constraint's normaliser a writer's probabilities of all docids have the sum 1. Under the vocabulary's it is at
most 1, and under that of a docid's level too: what is left belongs to sequences that are no docid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from gr_jax.errors import InputError

BINS = 15
LEAST = 10  # queries of a bin: a share of fewer says little
_ROUNDING = 1e-3  # of probabilities that are added up, from scores in float32

Lists = Mapping[str, Sequence[tuple[str, float]]]
Judged = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True)
class Confidences:
    """What was said of the first document of each query, and whether it was right.

    Attributes:
      probability: in 0..1.
      right: whether that document is relevant.

    Raises:
      InputError: there is no query, the lengths differ, or a number is no probability.
    """

    probability: Float[np.ndarray, " queries"]
    right: Bool[np.ndarray, " queries"]

    def __post_init__(self):
        if self.probability.shape != self.right.shape or not self.probability.size:
            raise InputError(
                f"{self.probability.size} probabilities of {self.right.size} answers",
                "Give one of each for every query, and one query at least.",
            )
        wrong = ~((self.probability >= 0) & (self.probability <= 1 + 1e-6))  # a NaN is wrong, too
        if wrong.any():
            raise InputError(
                "scores are taken for probabilities, and are none",
                "Use a softmax of them (of_list), or logarithms of probabilities, which are 0 or less.",
                value=float(self.probability[wrong][0]),
            )


def softmax_of_first(scores: Float[np.ndarray, " n"], temperature: float = 1.0) -> float:
    """p̂ of the best of some scores.

    Args:
      scores: at least one, finite.
      temperature: scores are divided by it.

    Raises:
      InputError: the temperature is not above 0.
    """
    if not 0 < temperature < float("inf"):
        raise InputError("a temperature is a number above 0", "Use 1.", value=temperature)
    shifted = (np.asarray(scores, np.float64) - np.max(scores)) / temperature
    return float(1.0 / np.exp(shifted).sum())


def of_list(run: Lists, qrels: Judged, temperature: float = 1.0) -> Confidences:
    """p̂ is the softmax of the scores of what was retrieved for a query.

    Args:
      run: query id → [(doc_id, score)], best first.
      qrels: query id → doc_id → grade; 1 and more is relevant. Queries without results are left out.
      temperature: scores are divided by it.

    Raises:
      InputError: no judged query has results, a score is no number or infinite, or the temperature is not above 0.
    """
    asked = answered(run, qrels)
    for one in asked:
        wrong = [score for _, score in run[one] if not score < math.inf]  # a NaN, too
        if wrong:
            raise InputError(
                f"no probability follows from a score of query {one!r}", "Give numbers below infinity.", value=wrong[0]
            )
    found = [softmax_of_first(np.array([score for _, score in run[one]]), temperature) for one in asked]
    return Confidences(np.array(found), right_of(run, qrels, asked))


def of_log_probabilities(run: Lists, qrels: Judged) -> Confidences:
    """p̂ is e to the score: of a writer without a length penalty, that writes its docids whole.

    Args:
      run, qrels: see `of_list`.

    Raises:
      InputError: no judged query has results, a score is above 0, or what was found for a query is together more
        probable than certain.
    """
    asked = answered(run, qrels)
    for one in asked:
        total = float(np.exp([score for _, score in run[one]]).sum())
        if not total <= 1 + _ROUNDING:  # a NaN, too
            raise InputError(
                f"scores of query {one!r} are taken for logarithms of probabilities, and these have a sum above 1",
                "Use a softmax of them (of_list), or search without a length penalty.",
                value=total,
            )
    return Confidences(np.exp([run[one][0][1] for one in asked]), right_of(run, qrels, asked))


def of_corpus(
    scores: Float[np.ndarray, "queries documents"],
    relevant: Sequence[Sequence[int] | Int[np.ndarray, " some"]],
    temperature: float = 1.0,
) -> Confidences:
    """p̂ is the softmax of the scores of all documents.

    Args:
      scores: of every document.
      relevant: of each query the numbers of documents that answer it.
      temperature: scores are divided by it.
    """
    if len(scores) != len(relevant):
        raise InputError(f"scores of {len(scores)} queries, and answers of {len(relevant)}", "Give both of each.")
    found = np.array([softmax_of_first(row, temperature) for row in scores])
    right = np.array([int(np.argmax(row)) in set(map(int, of)) for row, of in zip(scores, relevant, strict=True)], bool)
    return Confidences(found, right)


def brier(confidences: Confidences) -> float:
    """The mean of (p̂ − 1[right])²: 0 is best."""
    return float(np.mean((confidences.probability - confidences.right) ** 2))


@dataclasses.dataclass(frozen=True)
class Reliability:
    """Queries in bins of equal mass, from those of which the system was least sure.

    Attributes:
      said: mean p̂ of each bin.
      seen: share of right answers of each bin.
      queries: in each bin.
    """

    said: Float[np.ndarray, " bins"]
    seen: Float[np.ndarray, " bins"]
    queries: Int[np.ndarray, " bins"]

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over queries of how far their bin's p̂ is from its share."""
        return float(np.average(np.abs(self.said - self.seen), weights=self.queries))


def reliability(confidences: Confidences, bins: int = BINS) -> Reliability:
    """What was said beside what was seen.

    Args:
      confidences: of queries.
      bins: of as many queries each, up to one; fewer where a bin would have fewer than `LEAST`. Queries of equal p̂ are
        in one bin, so that their order does not matter.

    Raises:
      InputError: bins < 1.
    """
    if bins < 1:
        raise InputError("queries are put into bins", "Give 1 or more.", value=bins)
    order = np.argsort(confidences.probability, kind="stable")
    said = confidences.probability[order]
    bins = min(bins, max(1, len(order) // LEAST))
    ends = np.cumsum([len(part) for part in np.array_split(order, bins)])[:-1]
    ends = np.unique(np.searchsorted(said, said[ends - 1], side="right"))  # behind those of equal p̂
    parts = [part for part in np.split(order, ends) if len(part)]
    return Reliability(
        np.array([confidences.probability[part].mean() for part in parts]),
        np.array([confidences.right[part].mean() for part in parts]),
        np.array([len(part) for part in parts]),
    )


def answered(run: Lists, qrels: Judged) -> list[str]:
    """The judged queries that have results.

    Raises:
      InputError: there is none.
    """
    asked = [query_id for query_id in qrels if run.get(query_id)]
    if not asked:
        raise InputError(
            "no judged query has results", "Use the run and the qrels of one split.", value=next(iter(run), None)
        )
    return asked


def right_of(run: Lists, qrels: Judged, asked: Sequence[str]) -> Bool[np.ndarray, " queries"]:
    """Whether the first document of each query is relevant."""
    return np.array([qrels[one].get(run[one][0][0], 0) > 0 for one in asked], bool)

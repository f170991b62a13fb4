"""One temperature, fitted on questions with judgements, that makes scores say how often they are right.

A temperature changes no ranking. So it is fitted on dev and used on what is asked later; `Calibration` keeps it with
what was measured of it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from gr_jax.errors import InputError
from gr_jax.evaluation import calibration
from gr_jax.evaluation.calibration import Confidences, Judged, Lists

DEPTH = 100  # documents over which scores are normalised
_LEAST = 1e-7  # of a probability whose logarithm is taken
_TEMPERATURES = (1e-3, 1e3)  # times the median spread of a list's scores, between which one is looked for


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A temperature for one index, and what was measured of it.

    A document's probability is the softmax of the scores of the first `depth` documents, divided by the temperature.

    Attributes:
      temperature: above 0.
      depth: documents over which scores are normalised.
      queries: on which the temperature was fitted.
      brier, error: the Brier score and the calibration error of first documents. Each half of the queries is measured
        by the temperature of the other half.
      brier_before, error_before: the same at the temperature 1.

    Raises:
      InputError: a number is out of its range.
    """

    temperature: float
    depth: int
    queries: int
    brier: float
    error: float
    brier_before: float
    error_before: float

    def __post_init__(self):
        if not 0 < self.temperature < math.inf:
            raise InputError("a temperature is a number above 0", "Fit one.", value=self.temperature)
        for name, least in (("depth", 1), ("queries", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} of a calibration is {least} or more", "Fit one.", value=getattr(self, name))
        for name in ("brier", "error", "brier_before", "error_before"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} of a calibration is in 0..1", "Fit one.", value=getattr(self, name))

    def probabilities(self, scores: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """What is said of each document of one answer.

        Args:
          scores: of the documents, falling; those behind `depth` are compared with the first `depth` too.
        """
        if not len(scores):
            return np.zeros(0)
        weights = np.exp((np.asarray(scores, np.float64) - np.max(scores)) / self.temperature)
        return weights / weights[: self.depth].sum()

    def as_json(self) -> dict[str, float]:
        """What `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Calibration:
        """Reads what `as_json` gave.

        Raises:
          InputError: it is something else.
        """
        types = {field.name: int if field.type == "int" else float for field in dataclasses.fields(cls)}
        if not isinstance(value, Mapping) or value.keys() != types.keys():
            raise InputError("this is no calibration", f"It has {', '.join(types)}.", value=value)
        for name, number in value.items():
            allowed = (int,) if types[name] is int else (int, float)
            if isinstance(number, bool) or not isinstance(number, allowed):
                raise InputError(f"{name} of a calibration is a number", "Fit one.", value=number)
            if abs(number) > sys.float_info.max:
                raise InputError(f"{name} of a calibration is a number that a float can be", "Fit one.", value=name)
        numbers: dict[str, Any] = {name: types[name](number) for name, number in value.items()}
        return cls(**numbers)


def fit(run: Lists, qrels: Judged, depth: int = DEPTH) -> Calibration:
    """Fits a temperature, and measures it: of each half of the queries by the temperature of the other.

    Args:
      run: query id → [(doc_id, score)], best first.
      qrels: query id → doc_id → grade; 1 and more is relevant.
      depth: of each list so many documents are used.

    Raises:
      InputError: fewer than 2 judged queries have results, or fewer than 2 lists have scores that differ.
    """
    cut = {one: list(found[:depth]) for one, found in run.items()}
    asked = calibration.answered(cut, qrels)
    if len(asked) < 2:
        raise InputError("a temperature is fitted on some questions and measured on others", "Give 2 or more.")
    # Both halves get lists on which a temperature can be fitted, where there are two.
    asked = sorted(asked, key=lambda one: cut[one][0][1] == cut[one][-1][1])
    halves = [{one: qrels[one] for one in asked[start::2]} for start in (0, 1)]
    said, right = [], []
    for measured, fitted in (halves, halves[::-1]):
        found = calibration.of_list(cut, measured, fit_temperature(cut, fitted))
        said.append(found.probability)
        right.append(found.right)
    after = Confidences(np.concatenate(said), np.concatenate(right))
    before = calibration.of_list(cut, qrels)
    return Calibration(
        temperature=fit_temperature(cut, qrels),
        depth=depth,
        queries=len(asked),
        brier=calibration.brier(after),
        error=calibration.reliability(after).error,
        brier_before=calibration.brier(before),
        error_before=calibration.reliability(before).error,
    )


def fit_temperature(run: Lists, qrels: Judged) -> float:
    """The temperature of `calibration.of_list` under which what is said of these queries is likeliest: it minimises the
    mean of −log p̂ over right answers and −log(1 − p̂) over wrong ones.

    Args:
      run, qrels: see `fit`.

    Raises:
      InputError: no judged query has results, or no list has two scores that differ: then no temperature matters.
    """
    from scipy import optimize

    asked = calibration.answered(run, qrels)
    right = calibration.right_of(run, qrels, asked)
    below = np.full((len(asked), max(len(run[one]) for one in asked)), -np.inf)  # each score less the best of its list
    for place, one in enumerate(asked):
        scores = np.array([score for _, score in run[one]], np.float64)
        below[place, : len(scores)] = scores - scores.max()
    spreads = -np.min(below, axis=1, where=np.isfinite(below), initial=0.0)
    if not (spreads > 0).any():
        raise InputError(
            "no list of these questions has two scores that differ, so that no temperature matters", "Retrieve more."
        )
    unit = float(np.median(spreads[spreads > 0]))

    def cost(logarithm: float) -> float:
        said = 1.0 / np.exp(below / (unit * math.exp(logarithm))).sum(axis=1)
        return float(-np.mean(np.log(np.maximum(np.where(right, said, 1.0 - said), _LEAST))))

    # The cost may have a flat end; a coarse look says where the bounded search is to begin.
    low, high = np.log(_TEMPERATURES)
    points = np.linspace(low, high, 41)
    best = int(np.argmin([cost(point) for point in points]))
    bounds = points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)]
    return unit * math.exp(optimize.minimize_scalar(cost, bounds=bounds, method="bounded").x)


def calibrated(run: Lists, qrels: Judged, dev_run: Lists, dev_qrels: Judged) -> dict[str, float]:
    """How sure a run is of its first documents, by the softmax of its lists, before and after one temperature.

    Args:
      run, qrels: that are measured.
      dev_run, dev_qrels: of the same system on other queries, on which the temperature is fitted.

    Returns:
      "temperature", "depth", and "Brier" and "ECE" (the calibration error) at the temperature 1 and, calibrated, at
      this one. Lists of both are cut to one depth, since a softmax over more documents says less of the first: `DEPTH`,
      or that of the deepest list of the run that has fewer.
    """
    depth = min(DEPTH, *(max(map(len, lists.values()), default=0) for lists in (run, dev_run)))
    run, dev_run = ({one: list(found[:depth]) for one, found in lists.items()} for lists in (run, dev_run))
    return {"depth": float(depth), **measured(run, qrels, fit_temperature(dev_run, dev_qrels))}


def measured(run: Lists, qrels: Judged, temperature: float) -> dict[str, float]:
    """The same, with a temperature that was fitted before."""
    values = {"temperature": temperature}
    for name, at in (("", 1.0), (", calibrated", temperature)):
        found = calibration.of_list(run, qrels, at)
        values |= {f"Brier{name}": calibration.brier(found), f"ECE{name}": calibration.reliability(found).error}
    return values

"""What a report is made of: which system reached what on which split, what that rests on, how it looks from inside."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from gr_jax.corpus.trec import Run
from gr_jax.errors import InputError
from gr_jax.evaluation.metrics import Evaluation
from gr_jax.evaluation.provenance import Provenance
from gr_jax.evaluation.significance import Comparison, bootstrap_interval, compare

SIGNIFICANT = 0.05
HIT_DEPTH = 10  # an example search is a hit where the answer is among so many documents


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """What one system reached on one split; `evaluation` is there where the values of each query are known."""

    system: str
    split: str
    values: Mapping[str, float]
    note: str
    evaluation: Evaluation | None


@dataclasses.dataclass(frozen=True)
class ExampleHit:
    """One answer of an example search; `relevant` as the qrels say."""

    doc_id: str
    title: str
    score: float
    docid: str
    relevant: bool


@dataclasses.dataclass(frozen=True)
class Example:
    """One query and the best answers to it; `answer` is a right document's title, `ranks` where the first right one is
    found by each system, None where it is not."""

    query: str
    system: str
    hits: tuple[ExampleHit, ...]
    answer: str = ""
    ranks: Mapping[str, int | None] = dataclasses.field(default_factory=dict)

    @property
    def where(self) -> str:
        """The answer and its ranks, in words."""
        ranks = [f"{system} {'not found' if rank is None else rank}" for system, rank in self.ranks.items()]
        said = [f"answer: {self.answer}"] * bool(self.answer) + [f"its rank: {', '.join(ranks)}"] * bool(ranks)
        return "; ".join(said)


class Results:
    """Which system reached what on which split, and what that rests on.

    Args:
      title: heading.
      provenance: what all its numbers rest on.
      baseline: the system that the others are tested against.
      introduction: a paragraph under the heading.
    """

    def __init__(self, title: str, provenance: Provenance, *, baseline: str | None = None, introduction: str = ""):
        self.title, self.provenance, self.baseline, self.introduction = title, provenance, baseline, introduction
        self.rows: list[ReportRow] = []
        self.curves: dict[str, list[dict[str, float]]] = {}
        self.survival: dict[str, np.ndarray] = {}
        self.runs: dict[tuple[str, str], Run] = {}
        self.examples: list[Example] = []
        self.remarks: list[str] = []
        self.facts: list[tuple[str, str]] = []
        self._compared: dict[tuple[str, str], list[Comparison]] = {}

    def add(
        self, system: str, split: str, values: Mapping[str, float], *, note: str = "", run: Run | None = None
    ) -> None:
        """Adds a row.

        Args:
          system: its name.
          split: the queries that were answered.
          values: measure → value. An `Evaluation` brings its per-query values, and with them intervals and tests.
          note: a few words shown beside the row.
          run: the answers themselves, for example searches.

        Raises:
          InputError: this system already has a row on this split.
        """
        if any(row.system == system and row.split == split for row in self.rows):
            raise InputError(f"the report already has {system!r} on {split!r}", "Give the row another name.")
        evaluation = values if isinstance(values, Evaluation) else None
        self.rows.append(ReportRow(system, split, dict(values), note, evaluation))
        if run is not None:
            self.runs[system, split] = run

    def add_remark(self, sentence: str) -> None:
        """Adds a sentence under the tables, with commands between backquotes; an empty one adds nothing."""
        self.remarks += [sentence] if sentence else []

    def add_fact(self, name: str, value: str) -> None:
        """Adds a line to what the numbers rest on, under the provenance; an empty value adds nothing."""
        self.facts += [(name, value)] if value else []

    def add_training(self, name: str, metrics: str | os.PathLike | Iterable[Mapping[str, float]]) -> None:
        """Adds the curves of one training: its metrics.jsonl, or the records themselves."""
        is_path = isinstance(metrics, str | os.PathLike)
        self.curves[name] = read_training_metrics(metrics) if is_path else [dict(r) for r in metrics]  # type: ignore[arg-type, union-attr]

    def add_beam_survival(self, name: str, shares: Float[np.ndarray, " depth"] | Sequence[float]) -> None:
        """Adds where beams die: the i-th share is of queries whose gold docid's first i + 1 tokens are in the beam.

        Raises:
          InputError: no shares, or one outside 0..1.
        """
        array = np.asarray(shares, np.float64)
        if array.ndim != 1 or not array.size or not ((array >= 0) & (array <= 1)).all():
            raise InputError(
                "where beams die is one share, 0 to 1, for each depth", "Give a list of shares.", value=shares
            )
        self.survival[name] = array

    def add_example(
        self,
        query: str,
        hits: Iterable[Any],
        *,
        relevant: Collection[str] = (),
        system: str = "",
        answer: str = "",
        ranks: Mapping[str, int | None] | None = None,
    ) -> None:
        """Adds an example search.

        Args:
          query: a text.
          hits: best first; each has doc_id, title and score, and docid where one was generated (`searcher.search`).
          relevant: doc_ids that answer it.
          system: who answered.
          answer: title of a document that answers it.
          ranks: system → rank of the first right document, None where it is not found.
        """
        shown = tuple(
            ExampleHit(hit.doc_id, hit.title, float(hit.score), getattr(hit, "docid", ""), hit.doc_id in relevant)
            for hit in hits
        )
        self.examples.append(Example(query, system, shown, answer, dict(ranks or {})))

    @property
    def rests_on(self) -> list[tuple[str, str]]:
        """(name, value) of all that the numbers rest on, as reports print it."""
        return [*self.provenance.lines(), *self.facts]

    @property
    def splits(self) -> list[str]:
        """Splits in the order in which they were added."""
        return list(dict.fromkeys(row.split for row in self.rows))

    @property
    def measures(self) -> list[str]:
        """Measures in the order in which they were added."""
        return list(dict.fromkeys(measure for row in self.rows for measure in row.values))

    def comparisons(self) -> list[tuple[ReportRow, Comparison]]:
        """Every row against the baseline's row on its split, on every measure whose per-query values both have; on a
        split of one query there is nothing to test."""
        found = []
        for row in self.rows:
            base = self._baseline_of(row)
            if base is None or base.evaluation is None or row.evaluation is None or len(row.evaluation.query_ids) < 2:
                continue
            key = row.system, row.split
            if key not in self._compared:
                shared = [measure for measure in row.evaluation.per_query if measure in base.evaluation.per_query]
                self._compared[key] = [compare(row.evaluation, base.evaluation, measure) for measure in shared]
            found += [(row, comparison) for comparison in self._compared[key]]
        return found

    def intervals(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """(split, system, measure) → 95% bootstrap interval, where the values of each query are known."""
        return {
            (row.split, row.system, measure): bootstrap_interval(values, samples=2000)
            for row in self.rows
            if row.evaluation is not None
            for measure, values in row.evaluation.per_query.items()
            if math.isclose(row.values[measure], float(values.mean()), abs_tol=1e-12)  # a count's sum is no mean
        }

    def values_by_split(self) -> dict[str, dict[str, dict[str, float]]]:
        """split → system → measure → value."""
        table: dict[str, dict[str, dict[str, float]]] = {split: {} for split in self.splits}
        for row in self.rows:
            table[row.split][row.system] = dict(row.values)
        return table

    def _baseline_of(self, row: ReportRow) -> ReportRow | None:
        if row.system == self.baseline:
            return None
        return next((base for base in self.rows if base.system == self.baseline and base.split == row.split), None)


def read_training_metrics(file: str | os.PathLike) -> list[dict[str, float]]:
    """Reads metrics.jsonl: one object with "step" a line, in any order.

    A training that was killed and went on may have written a step twice: the later values stand. A last line that was
    cut off by the kill is left out.

    Raises:
      InputError: the file is not there, or a line is not an object with a step.
    """
    path = pathlib.Path(file)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise InputError(
            f"no training metrics: {error.strerror}", "Name the metrics.jsonl of a training.", file=path
        ) from error
    steps: dict[float, dict[str, float]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            step = record["step"]
            if isinstance(step, bool) or not isinstance(step, int | float) or not abs(step) < math.inf:
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            if number == len(lines):  # no newline follows it
                continue
            raise InputError(
                "not a line of training metrics",
                'Each line is {"step": …, "loss": …}.',
                file=path,
                line=number,
                value=line,
            ) from None
        steps.setdefault(step, {}).update(record)
    return [steps[step] for step in sorted(steps)]

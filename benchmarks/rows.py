"""What a benchmark's table is made of: rows and their bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from benchmarks import records


@dataclasses.dataclass(frozen=True)
class ShareOf:
    """A floor that is a share of what another row of the same benchmark reached.

    Attributes:
      row: name of that row.
      share: how much of its value is to be reached.
      measure: which of its values; "" for the same measure.
    """

    row: str
    share: float
    measure: str = ""


class Ran(Protocol):
    """A system that a row runs."""

    def configs(self) -> Sequence[Mapping[str, Any]]:
        """What decides its results, as JSON: its resolved settings and its data, then those of what it reads."""
        ...

    def versions(self) -> Mapping[str, int]:
        """ "SYSTEM.KIND" → version of each stage that it and what it reads have now."""
        ...


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a benchmark's table.

    Attributes:
      name: unique within the benchmark.
      config: everything that decides the values beside `runs`, as JSON: budget, split. When it changes, what was
        recorded is stale.
      measure: does the work; returns measure → value.
      at_least: measure → the floor that must be reached.
      at_most: measure → the ceiling that must not be exceeded (seconds, bytes).
      note: a few words shown beside the row.
      corpus: fingerprint of the data; part of what makes a record stale. A function is called where rows are measured.
      seeds: of everything random; part of what makes a record stale.
      runs: the systems that it runs. When their settings change, what was recorded is stale; when a stage has another
        version, it is older.
      speed: its values depend on the machine; they are recorded and judged for each kind.
    """

    name: str
    config: Mapping[str, Any]
    measure: Callable[[], Mapping[str, float]]
    at_least: Mapping[str, float | ShareOf] = dataclasses.field(default_factory=dict)
    note: str = ""
    at_most: Mapping[str, float | ShareOf] = dataclasses.field(default_factory=dict)
    corpus: str | Callable[[], str] = ""
    seeds: tuple[int, ...] = ()
    runs: Sequence[Ran] = ()
    speed: bool = False

    def fingerprint(self) -> str:
        """The corpus' fingerprint."""
        return self.corpus() if callable(self.corpus) else self.corpus

    def configs(self) -> tuple[Mapping[str, Any], ...]:
        """What decides the results of all that it runs, in order."""
        return tuple(config for run in self.runs for config in run.configs())

    def versions(self) -> dict[str, int]:
        """Of the stages of all that it runs."""
        return {kind: version for run in self.runs for kind, version in run.versions().items()}

    def key(self, corpus: str) -> str:
        """What a record must have been measured under to count, on documents of this fingerprint."""
        return records.config_key(self.config, corpus, self.seeds, self.configs())

    def bounds(self) -> dict[str, list[tuple[float | ShareOf, bool]]]:
        """measure → its bounds, each with whether it is a floor."""
        found: dict[str, list[tuple[float | ShareOf, bool]]] = {}
        for limits, is_floor in ((self.at_least, True), (self.at_most, False)):
            for measure, limit in limits.items():
                found.setdefault(measure, []).append((limit, is_floor))
        return found


def resolve(bound: float | ShareOf, measure: str, current: Mapping[str, Mapping[str, float]]) -> float | None:
    """A bound as a number; None where it depends on a row that is not in `current` (row → measure → value)."""
    if not isinstance(bound, ShareOf):
        return float(bound)
    value = current.get(bound.row, {}).get(bound.measure or measure)
    return None if value is None else bound.share * value


def holds(value: float | None, limit: float | None, is_floor: bool) -> bool:
    """Whether a value keeps to a bound; one that is not known does not."""
    return value is not None and limit is not None and (value >= limit if is_floor else value <= limit)

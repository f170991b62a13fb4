"""Where the first right document of every question stood: what hours of one run leave behind.

Some rows are of many runs, as a slope with three seeds is. What each run found is recorded when it has answered, in a
file of its own under `benchmarks/results/first_ranks/`. So the runs of such a row can be made on several machines, and
the row itself by whoever has the recorded ranks. Success@k and the reciprocal rank of every question follow from them.

A file knows the settings of a run, and not its parameters. What is asked of one training, such as the same questions
among ever more documents, belongs on one machine. To find ranks again, remove their file: `--again` does not.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks import harness, machine, records
from benchmarks.harness import Row
from gr_jax import evaluation, storage
from gr_jax.errors import InputError
from gr_jax.evaluation import Evaluation

FOLDER = harness.RESULTS / "first_ranks"
DEPTH = 100  # places that are looked at
RECIPROCAL = f"RR@{DEPTH}"
_MEASURE = re.compile(r"(Success|RR)@([1-9]\d*)")


@dataclasses.dataclass(frozen=True)
class FirstRanks:
    """What one run found.

    Attributes:
      ranks: query id → place of its first right document, from 1; 0 where none is among the first `DEPTH`.
      values: what else was measured.
      key: of the settings, data, versions of stages and `DEPTH` that it was found under.
      commit, hardware, date: see `records.Record`.
    """

    ranks: Mapping[str, int]
    values: Mapping[str, float]
    key: str
    commit: str
    hardware: str
    date: str

    def evaluation(self, measures: Sequence[str]) -> Evaluation:
        """Measures of every question: Success@k and RR@k.

        Raises:
          InputError: another measure, or a k above `DEPTH`.
        """
        ranks = np.fromiter(self.ranks.values(), np.int64)
        per_query = {name: _of_ranks(ranks, name) for name in measures}
        return Evaluation({name: float(one.mean()) for name, one in per_query.items()}, tuple(self.ranks), per_query)


def _of_ranks(ranks: np.ndarray, name: str) -> np.ndarray:
    parts = _MEASURE.fullmatch(name)
    if parts is None or int(parts[2]) > DEPTH:
        raise InputError(
            "ranks of first right documents do not say this", f"Use Success@k or RR@k, k ≤ {DEPTH}.", value=name
        )
    found = (0 < ranks) & (ranks <= int(parts[2]))
    return np.where(found, 1 / np.maximum(ranks, 1) if parts[1] == "RR" else 1.0, 0.0)


def ranks_of(found: Evaluation) -> dict[str, int]:
    """Query id → place of the first right document, by id, of an evaluation that has its reciprocal rank."""
    reciprocal = zip(found.query_ids, found.per_query[RECIPROCAL], strict=True)
    return {query: round(1 / value) if value else 0 for query, value in sorted(reciprocal)}


def kept(row: Row, ask: Callable[[], tuple[Evaluation, Mapping[str, float]]]) -> FirstRanks:
    """What a run found: what is recorded of it, or else what is found now, which is then recorded.

    Args:
      row: what decides the result. It stands in no table; its name is that of the file.
      ask: evaluates `RECIPROCAL`, and gives what else was measured.

    Raises:
      InputError: the file is not what this wrote.
    """
    file = FOLDER / (re.sub(r"[^A-Za-z0-9]+", "_", row.name).strip("_") + ".json")
    key = records.digest([row.key(row.fingerprint()), row.versions(), DEPTH])
    recorded = _read(file)
    if recorded is None or recorded.key != key:
        commit = evaluation.commit(ignore=["benchmarks/results"])  # before hours in which the checkout may change
        found, values = ask()
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        recorded = FirstRanks(ranks_of(found), values, key, commit, machine.line(), date)
        file.parent.mkdir(parents=True, exist_ok=True)
        storage.write_text(file, json.dumps(dataclasses.asdict(recorded)) + "\n")
    return recorded


def _read(file: pathlib.Path) -> FirstRanks | None:
    try:
        return FirstRanks(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise InputError(
            f"recorded ranks cannot be read: {error}", "Restore the file from git, or remove it.", file=file
        ) from error

"""Whether a row is recorded as it would be measured now, and if not, why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.records import Record

if TYPE_CHECKING:
    from benchmarks.rows import Row

ELSEWHERE = "none on this kind of machine"


# Stages that rows may have been recorded without: what a system reaches by itself does not depend on its combination
# with BM25, and the corpora that were recorded are read nearly whole: none of their documents is cut into pieces.
_BESIDE = ("hybrid", "pieces")


def state(row: Row, recorded: Mapping[str, Record], *, corpora: bool = False) -> str:
    """ "" where the row is recorded as it would be measured now; else "missing", "stale", "older" or `ELSEWHERE`; why.

    Args:
      row: of a benchmark.
      recorded: its records.
      corpora: also look at the documents. Without, they count as those that were recorded.
    """
    record = recorded.get(row.name)
    if record is None:
        return "missing"
    if row.speed and record.machine != machine.kind():
        return f"{ELSEWHERE}: {machine.kind()}; measured on {record.machine or 'a machine of an unknown kind'}"
    corpus = row.fingerprint() if corpora else record.corpus
    if record.key == row.key(corpus):
        older = _older(record.versions, row.versions())
        return f"older versions of stages: {'; '.join(older)}" if older else ""
    if record.corpus != corpus:
        return f"stale: measured on corpus {record.corpus or '(none)'}, now {corpus or '(none)'}"
    if record.seeds != tuple(row.seeds):
        return f"stale: seeds {list(row.seeds)}, were {list(record.seeds)}"
    return f"stale: {'; '.join(_changes(row, record)) or 'changed since'}"


def current_values(rows: Sequence[Row], recorded: Mapping[str, Record]) -> dict[str, Mapping[str, float]]:
    """row → measure → value, of the rows recorded under their present configuration."""
    return {row.name: recorded[row.name].values for row in rows if not state(row, recorded)}


def _older(then: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    found = []
    for kind in sorted({*then, *now}):
        if kind not in then and kind.partition(".")[2] in _BESIDE:
            continue
        if kind not in then:
            found.append(f"{kind}: not run, now version {now[kind]}")
        elif kind not in now:
            found.append(f"{kind}: version {then[kind]}, not run now")
        elif then[kind] != now[kind]:
            found.append(f"{kind}: version {then[kind]}, now {now[kind]}")
    return found


def _changes(row: Row, record: Record) -> list[str]:
    """The settings that differ from those that were recorded, "a.b: 1 → 2"."""
    from gr_jax.stages.runner import changed_settings

    # As they would be recorded: lists for tuples.
    config, runs = json.loads(json.dumps([row.config, row.configs()]))
    if runs and not record.runs:
        return ["recorded without the settings of what it ran"]
    changes = changed_settings(record.config, config)
    if len(record.runs) != len(runs):
        changes.append(f"runs: {len(record.runs)} → {len(runs)}")
    for before, after in zip(record.runs, runs, strict=False):
        changes += changed_settings(before, after, f"{after['system']}.")
    changes = list(dict.fromkeys(one.replace(".settings.", ".", 1) for one in changes))
    # What follows from another change says nothing beside it.
    return [one for one in changes if ".settings_digest: " not in one] or changes

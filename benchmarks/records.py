"""Recorded rows: one JSON file for each benchmark, into which each row goes the moment it is measured.

"rows" holds what was measured last. What was measured on other kinds of machines, of rows whose values depend on that,
is under "machines", by kind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError

_LEFT_OUT = ("runs", "versions", "digest", "rekeyed", "machine")  # where there are none


@dataclasses.dataclass(frozen=True)
class Record:
    """One measured row.

    Attributes:
      values: measure → value.
      key: `config_key` of what was measured.
      config: the row's configuration, as it was.
      corpus: fingerprint of the data.
      seeds: of everything random.
      commit: of the code.
      hardware: CPU, cores, memory, accelerator, and how fast they were: `machine.line`.
      date: when it was finished, UTC.
      seconds: how long measuring took.
      runs: of each system that it ran, what decided its results: see `rows.Ran.configs`.
      versions: of the stages that these systems have: "SYSTEM.KIND" → version.
      digest: of the versions.
      rekeyed: of a row that was measured before keys were made as they are now: the commit at which its systems were
        shown to be bit-identical, the comparisons that showed it, and what else moved since: names, or the order of
        fields, under equal settings.
      machine: of a row of speed, the kind of machine: `machine.kind`; "" where it was recorded before kinds were.
    """

    values: Mapping[str, float]
    key: str
    config: Mapping[str, Any]
    corpus: str
    seeds: tuple[int, ...]
    commit: str
    hardware: str
    date: str
    seconds: float
    runs: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)
    digest: str = ""
    rekeyed: Mapping[str, Any] | None = None
    machine: str = ""


def config_key(
    config: Mapping[str, Any], corpus: str, seeds: Sequence[int], runs: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Sixteen hex digits that change when any of these does.

    Raises:
      InputError: the configuration is not JSON.
    """
    return digest([config, corpus, list(seeds), *([[digest(one) for one in runs]] if runs else [])])


def digest(value: Any) -> str:
    """Sixteen hex digits of a JSON value, whatever the order of its names.

    Raises:
      InputError: it is not JSON.
    """
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a row's configuration is recorded as JSON: {error}", "Use text, numbers, lists and dicts.", value=value
        ) from error
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def read(file: pathlib.Path, machine: str = "") -> dict[str, Record]:
    """Row name → record; empty where the file is not there yet.

    Args:
      file: of one benchmark.
      machine: a kind of machine, whose records come before those of others; "" for what was measured last.

    Raises:
      InputError: the file is not what `write` writes.
    """
    last, others = _read(file)
    return last | others.get(machine, {})


def machines(file: pathlib.Path) -> list[str]:
    """The kinds of machines that rows of speed were measured on, sorted.

    Raises:
      InputError: the file is not what `write` writes.
    """
    last, others = _read(file)
    return sorted({record.machine for record in last.values()} - {""} | set(others))


def _read(file: pathlib.Path) -> tuple[dict[str, Record], dict[str, dict[str, Record]]]:
    """What was measured last, and what there is of other kinds of machines."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        last, *others = (
            {name: _record(row, raw.get("runs", {})) for name, row in rows.items()}
            for rows in (raw["rows"], *raw.get("machines", {}).values())
        )
        return last, dict(zip(raw.get("machines", {}), others, strict=True))
    except FileNotFoundError:
        return {}, {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"the recorded rows cannot be read: {error}", "Restore the file from git, or remove it.", file=file
        ) from error


def write(file: pathlib.Path, name: str, record: Record) -> None:
    """Adds one row to the file, or replaces it there; the other rows stay, whoever measured them meanwhile."""
    write_all(file, {name: record})


def write_all(file: pathlib.Path, new: Mapping[str, Record]) -> None:
    """`write` of several rows at once."""
    with _lock(file.parent):
        rows, others = _read(file)
        for name, record in new.items():
            others.get(record.machine, {}).pop(name, None)
            before = rows.get(name)
            if before is not None and before.machine not in ("", record.machine):
                others.setdefault(before.machine, {})[name] = before
            rows[name] = record
        tables = [rows, *others.values()]
        # Many rows are of one run: what decided its results stands in the file once.
        runs = {digest(one): one for table in tables for record in table.values() for one in record.runs}
        written, *elsewhere = ({name: _row(record) for name, record in table.items()} for table in tables)
        kept = {kind: table for kind, table in zip(others, elsewhere, strict=True) if table}
        parts = {"rows": written} | ({"machines": kept} if kept else {}) | ({"runs": runs} if runs else {})
        storage.write_json(file, parts)


def _record(row: Mapping[str, Any], runs: Mapping[str, Any]) -> Record:
    found = [runs[one] for one in row.get("runs", ())]
    record = Record(**{**row, "seeds": tuple(row["seeds"]), "runs": tuple(found)})
    if record.digest != (digest(record.versions) if record.versions else ""):
        raise ValueError("the versions of a row's stages are not those of its digest")
    return record


def _row(record: Record) -> dict[str, Any]:
    """As the file has it; what rows that run no system lack is left out."""
    row = dataclasses.asdict(record) | {"runs": [digest(one) for one in record.runs]}
    return {name: value for name, value in row.items() if value or name not in _LEFT_OUT}


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    """Only one process at a time is within; ends with the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # where there is none, rows are measured by one process
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""Recorded rows: one JSON file for each benchmark, into which each row goes the moment it is measured."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax import storage
from gr_jax.errors import InputError


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
      hardware: CPU model, cores, memory, accelerator.
      date: when it was finished, UTC.
      seconds: how long measuring took.
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


def config_key(config: Mapping[str, Any], corpus: str, seeds: tuple[int, ...]) -> str:
    """Sixteen hex digits that change when any of these does.

    Raises:
      InputError: the configuration is not JSON.
    """
    try:
        text = json.dumps([config, corpus, list(seeds)], sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a row's configuration is recorded as JSON: {error}", "Use text, numbers, lists and dicts.", value=config
        ) from error
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def read(file: pathlib.Path) -> dict[str, Record]:
    """Row name → record; empty where the file is not there yet.

    Raises:
      InputError: the file is not what `write` writes.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        return {name: Record(**{**row, "seeds": tuple(row["seeds"])}) for name, row in raw["rows"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"the recorded rows cannot be read: {error}", "Restore the file from git, or remove it.", file=file
        ) from error


def write(file: pathlib.Path, name: str, record: Record) -> None:
    """Adds one row to the file, or replaces it there; the other rows stay, whoever measured them meanwhile."""
    with _lock(file.parent):
        rows = read(file) | {name: record}
        storage.write_json(file, {"rows": {name: dataclasses.asdict(row) for name, row in rows.items()}})


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

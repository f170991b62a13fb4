"""Turns a raw file line by line into another file, so that a conversion that was interrupted goes on where it was.

What is made is appended to a file beside the one that is wanted, which takes its name at the end. A note beside it says
how much of both files belongs together, and at the end that all is there, until it is told to `forget` it. The result
is the same whatever the number of processes and interruptions.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from gr_jax import progress, storage
from gr_jax.corpus import lines
from gr_jax.corpus.records import Place
from gr_jax.datasets import raw, workers
from gr_jax.errors import InputError

LINES = 4096  # of a batch
PARTIAL, NOTE = ".partial", ".partial.json"
MADE = "made"
_NOTED_EVERY = 16  # batches; what was made since the last note is made again

# (line, where it stands) → a line in UTF-8, b"" for none; and what is to be counted: faults, say.
Make = Callable[[str, Place], tuple[bytes, Sequence[str]]]


def convert(
    source: str | os.PathLike,
    made: str | os.PathLike,
    make: Make,
    *,
    version: str,
    processes: int = 1,
    show: bool = True,
) -> Mapping[str, int]:
    """Writes what `make` makes of each line; returns how many lines that were as `MADE`, and what else was counted.

    Args:
      source: file to read, plain or gzipped. Blank lines are passed over.
      made: file to write.
      make: is pickled where there are several processes.
      version: of `make`: what was made by another one is made anew.
      processes: that make lines.
      show: a bar.

    Raises:
      InputError: the file cannot be read, or what `make` raises.
    """
    made = pathlib.Path(made)
    partial, note = (made.with_name(made.name + ending) for ending in (PARTIAL, NOTE))
    key = _key(source, version)
    done = _finished(note, made, key)
    if done is not None:
        return done
    read, written, counts = _noted(note, partial, key)
    work = functools.partial(_converted, make=make, file=os.fspath(source))
    with progress.bar(f"Converting {os.path.basename(source)}", os.path.getsize(source), enabled=show) as bar:

        def wanted() -> Iterator[workers.Batch | None]:
            for batch in workers.batches(source, LINES, lambda at: bar.advance(at - bar.done)):
                if batch[-1][0] <= read:
                    continue
                yield batch

        with storage.explaining(made):
            made.parent.mkdir(parents=True, exist_ok=True)
        with _appending(partial, written) as file:
            for place, (last, counted, data) in enumerate(workers.in_order(work, wanted(), processes), start=1):
                file.write(data)
                written += len(data)
                counts.update(counted)
                if place % _NOTED_EVERY == 0:
                    file.flush()
                    storage.write_json(note, {"key": key, "lines": last, "bytes": written, "counts": counts})
            file.flush()
            os.fsync(file.fileno())
    with storage.explaining(made):
        os.replace(partial, made)
    storage.write_json(note, {"key": key, "finished": True, "bytes": written, "counts": counts})
    return dict(counts)


def forget(made: str | os.PathLike) -> None:
    """Removes the note of a conversion, which is kept so that it is not made again while others are."""
    made = pathlib.Path(made)
    made.with_name(made.name + NOTE).unlink(missing_ok=True)


def _finished(note: pathlib.Path, made: pathlib.Path, key: str) -> Mapping[str, int] | None:
    said: Any = storage.read_note(note)
    whole = isinstance(said, dict) and said.get("finished") and said.get("key") == key
    if not whole or not isinstance(said.get("counts"), dict) or not made.is_file():
        return None
    return said["counts"] if made.stat().st_size == said.get("bytes") else None


def _key(raw_file: str | os.PathLike, version: str) -> str:
    said = [version, LINES, raw.state(raw_file)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _noted(note: pathlib.Path, partial: pathlib.Path, key: str) -> tuple[int, int, collections.Counter[str]]:
    """Lines read, bytes written and counts of a conversion that was interrupted; zeros where there is none."""
    said: Any = storage.read_note(note)
    if isinstance(said, dict) and said.get("key") == key and isinstance(said.get("counts"), dict):
        numbers = [said.get("lines"), said.get("bytes"), *said["counts"].values()]
        whole = all(type(one) is int and one >= 0 for one in numbers)
        if whole and partial.is_file() and partial.stat().st_size >= said["bytes"]:
            return said["lines"], said["bytes"], collections.Counter(said["counts"])
    return 0, 0, collections.Counter({MADE: 0})


@contextlib.contextmanager
def _appending(partial: pathlib.Path, size: int) -> Iterator[BinaryIO]:
    """A file that is cut to `size` bytes, open behind them."""
    storage.refuse_no_file(partial)
    with storage.explaining(partial), open(partial, "r+b" if size else "wb") as file:
        file.truncate(size)
        file.seek(size)
        yield file


def _converted(batch: workers.Batch, make: Make, file: str) -> tuple[int, collections.Counter[str], bytes]:
    """(last line's number, what was counted, bytes) of a batch."""
    made: list[bytes] = []
    counts: collections.Counter[str] = collections.Counter()
    for number, data in batch:
        line = lines.decoded(data, file, number)
        if line and not line.isspace():
            at = Place(file, number)
            try:
                one, counted = make(line, at)
            except InputError as error:
                if error.file is not None:
                    raise
                raise at.error(error.problem, error.remedy, error.value) from error
            if counted:
                counts.update(counted)
            if one:
                made.append(one)
    counts[MADE] = len(made)
    return batch[-1][0], counts, b"".join(one + b"\n" for one in made)

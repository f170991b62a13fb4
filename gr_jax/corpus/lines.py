"""Lines of text files, plain or gzipped, with errors that say which line is at fault."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import orjson

from gr_jax import storage
from gr_jax.errors import InputError

try:  # unzips in a third of the time
    from isal import igzip, isal_zlib

    _GzipFile: Any = igzip.IGzipFile
    _DAMAGED: Any = (zlib.error, isal_zlib.error)
except ImportError:
    _GzipFile, _DAMAGED = gzip.GzipFile, (zlib.error,)

_BUFFER = 1 << 18


def find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """`folder/name`, or `folder/name.gz` where only that exists.

    Raises:
      InputError: what has the name is no file.
    """
    for file in (folder / name, folder / f"{name}.gz"):
        if os.path.lexists(file):
            if not os.path.isfile(file):
                raise InputError("this is no file", "Put the file there, or remove what has its name.", file=file)
            return file
    return None


def digest(file: str | os.PathLike) -> Any:
    """The SHA-256 of a file's bytes, to which more may be added.

    Raises:
      InputError: the file cannot be read.
    """
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", "Name a file that can be read.", file=file) from error


def read_lines(file: str | os.PathLike) -> Iterator[tuple[int, str]]:
    """Streams (1-based number, line without its end) of the lines that are not blank.

    A file is taken for gzip by its first two bytes, whatever its name. A byte order mark is skipped.

    Raises:
      InputError: the file cannot be opened, is a truncated or damaged gzip file, or a line is not UTF-8.
    """
    for number, raw in read_raw_lines(file):
        line = decoded(raw, file, number)
        if line and not line.isspace():
            yield number, line


def read_raw_lines(file: str | os.PathLike, watch: Callable[[int], None] | None = None) -> Iterator[tuple[int, bytes]]:
    """Streams (1-based number, bytes of the line with its end) of the lines that are not blank; see `read_lines`.

    Args:
      file: plain or gzipped.
      watch: is told, before every line, how many bytes of the file were read.

    Raises:
      InputError: the file cannot be opened, or is a truncated or damaged gzip file.
    """
    number = 0
    try:
        with open(file, "rb", opener=_without_waiting) as stored, _unzipped(stored) as stream:
            for number, raw in enumerate(stream, start=1):
                if watch is not None:
                    watch(stored.tell())
                if raw.isspace():  # first, for a file may have millions of empty lines
                    continue
                yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
    except (EOFError, *_DAMAGED, gzip.BadGzipFile) as error:
        raise InputError(
            f"truncated or damaged gzip file after line {number}: {error}",
            "Copy or compress the file again.",
            file=file,
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot be read: {reason}", "Name a file that can be read.", file=file) from error


def decoded(raw: bytes, file: str | os.PathLike, number: int) -> str:
    """A line as text without its end; InputError where it is not UTF-8."""
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"not UTF-8 at byte {error.start + 1} of the line",
            "Save the file as UTF-8.",
            file=file,
            line=number,
            value=raw[max(0, error.start - 20) : error.end + 20],
        ) from error


def read_json_lines(file: str | os.PathLike) -> Iterator[tuple[int, dict[str, Any]]]:
    """Streams (line number, object) of a file with one JSON object a line.

    Raises:
      InputError: as `read_lines`; or a line is not a JSON object.
    """
    for number, line in read_lines(file):
        yield number, parse_json(line, file, number)


def parse_json(line: str | bytes, file: str | os.PathLike, number: int) -> dict[str, Any]:
    """The JSON object that a line holds, as text or in UTF-8; InputError otherwise."""
    try:
        record = _loads(line, file, number)
    except (ValueError, RecursionError) as error:  # ValueError too for integers of thousands of digits
        if isinstance(error, InputError):  # not UTF-8
            raise
        raise InputError(
            f"not JSON: {error}", "Write one JSON object a line.", file=file, line=number, value=line
        ) from error
    if not isinstance(record, dict):
        raise InputError("not a JSON object", "Write one JSON object a line.", file=file, line=number, value=record)
    return record


def loads(line: bytes) -> Any:
    """JSON that this library wrote."""
    return _loads(line, "", 0)


def _loads(line: str | bytes, file: str | os.PathLike, number: int) -> Any:
    """As Python's own parser, sooner; that one takes what orjson refuses: half surrogate pairs, NaN. Whole numbers of
    more than 64 bits become floats."""
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(decoded(line, file, number) if isinstance(line, bytes) else line)


def identifier(record: dict[str, Any], file: str | os.PathLike, number: int) -> str:
    """`_id` of a BEIR record: a string, or an integer that is read as one."""
    value = record.get("_id")
    if isinstance(value, str) or type(value) is int:
        return str(value)
    problem = "no _id" if value is None else "_id is not a string"
    raise InputError(
        problem, 'Give every line an "_id".', file=file, line=number, value=record if value is None else value
    )


def string(record: dict[str, Any], field: str, file: str | os.PathLike, number: int, default: str | None = None) -> str:
    """A string field of a BEIR record; `default` where it is absent or null, if given."""
    value = record.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        problem = f"no {field}" if value is None else f"{field} is not a string"
        raise InputError(problem, f'Give every line a string "{field}".', file=file, line=number, value=value or record)
    return value


def write_lines(file: str | os.PathLike, lines: Iterable[str]) -> None:
    """Writes `lines`, whole or not at all; gzipped where the name ends in .gz, with equal bytes for equal lines."""
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    if os.fspath(file).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    storage.write_bytes(file, data)


@contextlib.contextmanager
def _unzipped(stream: io.BufferedReader) -> Iterator[BinaryIO]:
    """The bytes of an open file, unzipped."""
    os.set_blocking(stream.fileno(), True)
    if stream.peek(2)[:2] == b"\x1f\x8b":
        with io.BufferedReader(_GzipFile(fileobj=stream), _BUFFER) as unzipped:  # type: ignore[type-var]
            yield unzipped
    else:
        yield stream


def _without_waiting(path: str, flags: int) -> int:
    """Opens a pipe that nobody writes into as an empty file, where `open` would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)

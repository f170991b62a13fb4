"""Files that appear whole or not at all: write beside, flush to disk, rename over."""

from __future__ import annotations

import json
import os
import pathlib
import secrets


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes `data` to `path` so that a reader sees the old content or the new one, never a part."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    """`write_bytes` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike, value: object) -> None:
    """`write_text` of indented JSON with sorted keys."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

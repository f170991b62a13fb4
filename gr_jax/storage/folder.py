"""An artefact is a folder with `manifest.json`: what it is, what it was made from, and a checksum of every file.

The folder is filled under another name and renamed when it is complete, so a process that dies in the middle leaves
nothing that could be mistaken for the artefact, and what stood there before stays until that moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Iterator

import numpy as np

from gr_jax.errors import InputError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says.

    Attributes:
      kind: what the folder holds ("docids", "index", "run", …).
      corpus: fingerprint of the corpus that it was made from; "" where there is none.
      made_from: content key of the inputs and the configuration; equal keys mean that making it again would give the
        same folder.
      meta: counts and settings, JSON.
      gin: the full resolved configuration, or "".
      files: relative path → {"sha256", "bytes"}.
      schema: version of this layout.
    """

    kind: str
    corpus: str = ""
    made_from: str = ""
    meta: dict = dataclasses.field(default_factory=dict)
    gin: str = ""
    files: dict[str, dict] = dataclasses.field(default_factory=dict)
    schema: int = SCHEMA_VERSION


@contextlib.contextmanager
def write_folder(
    path: str | os.PathLike,
    kind: str,
    *,
    corpus: str = "",
    made_from: str = "",
    meta: dict | None = None,
    gin: str = "",
) -> Iterator[pathlib.Path]:
    """Yields a folder to fill; on leaving, it is checksummed and takes the place of `path` in one rename.

    `meta` may be filled while the folder is open: it is written at the end. If the body raises (a full disk, an
    interrupt), `path` is left as it was.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    meta = {} if meta is None else meta
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    beside.mkdir()
    try:
        yield beside
        files = {name: _describe(beside / name) for name in _list_files(beside)}
        manifest = Manifest(kind=kind, corpus=corpus, made_from=made_from, meta=meta, gin=gin, files=files)
        text = json.dumps(dataclasses.asdict(manifest), indent=2, sort_keys=True, ensure_ascii=False)
        with open(beside / MANIFEST, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        _replace_folder(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def read_folder(path: str | os.PathLike, kind: str | None = None, *, verify: bool = True) -> Manifest:
    """Reads and checks a folder's manifest.

    Args:
      path: the folder.
      kind: what it must hold; None accepts any kind.
      verify: recompute every checksum. Costs one read of the folder.

    Raises:
      InputError: the folder is not there, was written by something else, is of another kind or schema, or a file of
        it is missing, truncated or altered.
    """
    path = pathlib.Path(path)
    file = path / MANIFEST
    if not file.is_file():
        raise InputError(
            "no such artefact: there is no manifest.json",
            f"Name a folder that holds {'an artefact' if kind is None else f'a finished {kind!r} artefact'}, "
            "or run the stage that writes it.",
            file=path,
        )
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        manifest = Manifest(**raw)
        described = {str(name): (str(entry["sha256"]), int(entry["bytes"])) for name, entry in manifest.files.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"the manifest cannot be read: {error}", "Make the artefact again.", file=file) from error
    if manifest.schema != SCHEMA_VERSION:
        raise InputError(
            f"written with layout version {manifest.schema}, this library reads version {SCHEMA_VERSION}",
            "Make the artefact again with this version.",
            file=file,
        )
    if kind is not None and manifest.kind != kind:
        raise InputError(
            f"this folder holds {manifest.kind!r}, not {kind!r}", f"Name a folder that holds {kind!r}.", file=path
        )
    for name, (sha256, size) in described.items():
        entry = path / name
        if not entry.resolve().is_relative_to(path.resolve()):
            raise InputError("the manifest names a file outside its folder", "Make it again.", file=file, value=name)
        if not entry.is_file():
            raise InputError("a file of this artefact is missing", "Copy it again whole, or make it again.", file=entry)
        if entry.stat().st_size != size:
            raise InputError(
                f"truncated or altered: {entry.stat().st_size} bytes where the manifest says {size}",
                "Copy the artefact again whole, or make it again.",
                file=entry,
            )
        if verify and _sha256(entry) != sha256:
            raise InputError(
                "altered: its checksum is not the manifest's",
                "Copy the artefact again whole, or make it again.",
                file=entry,
            )
    return manifest


def is_complete(path: str | os.PathLike, kind: str, made_from: str) -> bool:
    """Whether `path` already holds this very artefact, whole by sizes (checksums are checked by who loads it)."""
    try:
        return read_folder(path, kind, verify=False).made_from == made_from
    except InputError:
        return False


def load_array(path: str | os.PathLike, *, mmap: bool = False) -> np.ndarray:
    """Loads one `.npy`, memory-mapped read-only if asked; never unpickles."""
    try:
        return np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(
            f"not a readable .npy array: {error}", "Copy the artefact again whole, or make it again.", file=path
        ) from error


def _list_files(folder: pathlib.Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)


def _describe(path: pathlib.Path) -> dict:
    return {"sha256": _sha256(path), "bytes": path.stat().st_size}


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace_folder(new: pathlib.Path, old: pathlib.Path) -> None:
    """Renames `new` to `old`. A folder cannot be renamed over a non-empty one, so that one is first moved aside."""
    if not old.exists():
        os.rename(new, old)
        return
    aside = old.with_name(f".{old.name}.{secrets.token_hex(4)}.replaced")
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise
    shutil.rmtree(aside, ignore_errors=True)

"""An artefact is a folder with `manifest.json`: what it is, what it was made from, and a checksum of every file.

The folder is filled under another name and takes its own when it is complete, so a process that dies in the middle
leaves nothing that could be mistaken for the artefact, and what stood there before stays until that moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import stat
from collections.abc import Callable, Collection, Iterator

from gr_jax.errors import DamagedError, InputError
from gr_jax.storage import beside
from gr_jax.storage.atomic import explain_full_disk, explain_names, render_json, resolved
from gr_jax.storage.checksums import sha256

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
_OWN_CHECKSUM = "manifest_sha256"
_BEGINNING = b'{\n  "corpus": "'  # of every manifest: its names are sorted
_GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


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
    unlisted: Collection[str] = (),
) -> Iterator[pathlib.Path]:
    """Yields a folder to fill; on leaving, it is checksummed and takes the place of `path` in one step.

    `meta` and `unlisted` may be filled while the folder is open: they are read at the end. If the body raises or the
    process is killed, `path` is as it was. A link is followed. Only an artefact or an empty folder is ever replaced.

    Args:
      path, kind, corpus, made_from, meta, gin: see `Manifest`.
      unlisted: files whose checksums stand in a listed file, so that they are not read here.

    Raises:
      InputError: something else than an artefact stands at `path`, the disk is full, or `path` may not be written.
    """
    path = resolved(path)
    meta = {} if meta is None else meta
    with contextlib.ExitStack() as stack:
        stack.enter_context(explain_full_disk(path))
        with explain_names(path):
            refuse_to_replace_others(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            new = stack.enter_context(beside.new_folder(path))
        stack.enter_context(explain_full_disk(path))  # before leaving `new` frees the space again
        yield new
        files = {name: _describe(new / name) for name in _list_files(new) if name not in unlisted}
        manifest = Manifest(kind=kind, corpus=corpus, made_from=made_from, meta=meta, gin=gin, files=files)
        (new / MANIFEST).write_bytes(_render(json.loads(json.dumps(dataclasses.asdict(manifest)))))
        refuse_to_replace_others(path)
        beside.replace_folder(new, path)


def read_folder(
    path: str | os.PathLike,
    kind: str | None = None,
    *,
    verify: bool = True,
    checksum: Callable[[str | os.PathLike], str] = sha256,
) -> Manifest:
    """Reads and checks a folder's manifest.

    Args:
      path: the folder.
      kind: what it must hold; None accepts any kind.
      verify: recompute every checksum. Costs one read of the folder.
      checksum: of a file, as `Checksums` remembers it.

    Raises:
      InputError: the folder was written by something else, or is of another kind or schema.
      DamagedError: the folder is not there, or a file of it is missing, truncated or altered.
    """
    path = pathlib.Path(path)
    with contextlib.suppress(OSError):
        beside.recover(resolved(path))
    while True:
        data = _read_manifest(path, kind)
        try:
            return _check(path, data, kind, checksum if verify else None)
        except InputError:
            # Another process may have put a new artefact in this place between the reading of two files.
            if _read_manifest(path, kind) == data:
                raise


def is_complete(path: str | os.PathLike, kind: str, made_from: str) -> bool:
    """Whether `path` already holds this very artefact, whole by sizes (checksums are checked by who loads it)."""
    try:
        return read_folder(path, kind, verify=False).made_from == made_from
    except InputError:
        return False


def _read_manifest(path: pathlib.Path, kind: str | None) -> bytes:
    try:
        return _bytes_of(path / MANIFEST)
    except _GONE as error:
        raise DamagedError(
            "no such artefact: there is no manifest.json",
            f"Name a folder that holds {'an artefact' if kind is None else f'a finished {kind!r} artefact'}, "
            "or run the stage that writes it.",
            file=path,
        ) from error
    except OSError as error:  # of a disk or its rights: the artefact may be sound
        raise InputError(f"cannot be read: {error}", "Name a folder that can be read.", file=path) from error


def _bytes_of(file: pathlib.Path) -> bytes:
    """Of a file; a pipe would be waited for, and a device may have no end."""
    mode = os.stat(file).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(f"{MANIFEST} is a pipe, a socket or a device")
    return file.read_bytes()


def _check(
    path: pathlib.Path, data: bytes, kind: str | None, checksum: Callable[[str | os.PathLike], str] | None
) -> Manifest:
    """Checks the folder against its manifest `data`, from the cheapest check to the dearest."""
    manifest = _parse(path / MANIFEST, data)
    if kind is not None and manifest.kind != kind:
        raise InputError(
            f"this folder holds {manifest.kind!r}, not {kind!r}", f"Name a folder that holds {kind!r}.", file=path
        )
    _refuse_pipes(path)
    folder = os.path.realpath(path)
    for name, entry in manifest.files.items():
        if not _is_inside(folder, name):
            raise InputError(
                "the manifest names a file outside its folder", "Make the artefact again.", file=path, value=name
            )
        file = path / name
        try:
            found = os.stat(file)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedError("this is no file", "Copy the artefact again whole, or make it again.", file=file)
            size = found.st_size
            if size != entry["bytes"]:
                raise DamagedError(
                    f"truncated or altered: {size} bytes where the manifest says {entry['bytes']}",
                    "Copy the artefact again whole, or make it again.",
                    file=file,
                )
            if checksum is not None and checksum(file) != entry["sha256"]:
                raise DamagedError(
                    "altered: its checksum is not the manifest's",
                    "Copy the artefact again whole, or make it again.",
                    file=file,
                )
        except OSError as error:
            wrong = DamagedError if isinstance(error, _GONE) else InputError
            raise wrong(
                f"a file of this artefact is missing or cannot be read: {error.strerror}",
                "Copy the artefact again whole, or make it again.",
                file=file,
            ) from error
    return manifest


def _parse(file: pathlib.Path, data: bytes) -> Manifest:
    try:
        raw = json.loads(data.decode("utf-8"))
        wrong = DamagedError if _is_altered(raw, data) else InputError
        if not _is_ours(raw):
            raise wrong("this manifest was not written by gr_jax", "Name a folder that gr_jax wrote.", file=file.parent)
        if raw["schema"] != SCHEMA_VERSION:
            raise wrong(
                f"written with layout version {raw['schema']}, this library reads version {SCHEMA_VERSION}",
                "Make the artefact again with this version of gr_jax.",
                file=file,
            )
        raw.pop(_OWN_CHECKSUM, None)
        _check_shape(raw)
        if _render(raw) != data:
            raise DamagedError(
                "altered: the manifest's own checksum does not hold",
                "Copy the artefact again whole, or make it again.",
                file=file,
            )
        return Manifest(**raw)
    except InputError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedError(
            f"the manifest cannot be read: {error}", "Copy the artefact again whole, or make it again.", file=file
        ) from error


_TYPES = {"kind": str, "corpus": str, "made_from": str, "gin": str, "meta": dict, "files": dict}


def _check_shape(raw: dict) -> None:
    """Raises TypeError where a manifest's values are not of the types that `Manifest` names."""
    for name, expected in _TYPES.items():
        if not isinstance(raw.get(name, expected()), expected):
            raise TypeError(f"{name!r} is of another type")
    for name, entry in raw["files"].items():
        if not isinstance(entry, dict) or (type(entry.get("bytes")), type(entry.get("sha256"))) != (int, str):
            raise TypeError(f"it does not say the size and the checksum of {name!r}")


def _refuse_pipes(folder: pathlib.Path) -> None:
    """Who opens a pipe waits for ever for what comes out of it.

    Raises:
      InputError: something in the folder is neither a file nor a folder.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            file = pathlib.Path(parent, name)
            with contextlib.suppress(OSError):  # a link to nothing: who wants to read it will say so
                if not stat.S_ISREG(file.stat().st_mode):
                    raise DamagedError(
                        "this is no file but a pipe, a socket or a device",
                        "Copy the artefact again whole, or make it again.",
                        file=file,
                    )


def _render(raw: dict) -> bytes:
    """The bytes of a manifest: JSON with a checksum of itself, so that one altered byte anywhere shows."""
    own = hashlib.sha256(render_json(raw).encode("utf-8")).hexdigest()
    return render_json({**raw, _OWN_CHECKSUM: own}).encode("utf-8")


def _is_altered(raw: object, data: bytes) -> bool:
    """Whether a manifest has a checksum of itself that does not hold, whatever else it says."""
    if not isinstance(raw, dict) or _OWN_CHECKSUM not in raw:
        return False
    return _render({name: value for name, value in raw.items() if name != _OWN_CHECKSUM}) != data


def _is_ours(raw: object) -> bool:
    return isinstance(raw, dict) and {"kind", "files", "made_from", "schema"} <= raw.keys()


def refuse_to_replace_others(path: pathlib.Path) -> None:
    """A mistyped folder must not cost anybody their files.

    Raises:
      InputError: something else than an artefact or an empty folder stands at `path`.
    """
    while (identity := _identify(path)) is not None:
        try:
            if next(path.iterdir(), None) is None:
                return
            data = _bytes_of(path / MANIFEST)
            if _is_ours(json.loads(data)):
                return
        except OSError:
            # Another writer may have put its folder in this place and removed the one that was being looked at.
            if _identify(path) != identity:
                continue
        except (ValueError, RecursionError):
            if data.startswith(_BEGINNING) or _OWN_CHECKSUM.encode() in data:
                return  # a damaged manifest of ours: an artefact that is being made again
        break
    else:
        return
    raise InputError(
        "this folder holds something that gr_jax did not write, and would be replaced",
        "Name another folder, or move away what is there.",
        file=path,
    )


def _identify(path: pathlib.Path) -> tuple[int, int, int] | None:
    """What tells the folder that has this name now from another that takes its place; None where there is none."""
    with explain_names(path):
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
    if not stat.S_ISDIR(found.st_mode):
        raise InputError("a file stands where a folder is to be written", "Name another folder.", file=path)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _is_inside(folder: str, name: str) -> bool:
    try:
        target = os.path.realpath(os.path.join(folder, name))
    except ValueError:  # a null byte
        return False
    return os.path.commonpath([folder, target]) == folder and target != folder


def _list_files(folder: pathlib.Path) -> list[str]:
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(name for name in names if name != MANIFEST)


def _describe(path: pathlib.Path) -> dict:
    return {"sha256": sha256(path), "bytes": path.stat().st_size}

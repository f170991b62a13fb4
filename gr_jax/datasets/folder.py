"""Folders of built data sets: BEIR's layout, and `about.json`, which says what it is and what it was made of."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from gr_jax import progress, storage
from gr_jax.corpus import beir, lines
from gr_jax.corpus.documents import Document, Identity, check_id
from gr_jax.datasets import convert
from gr_jax.datasets import raw as raw_files
from gr_jax.errors import InputError

ABOUT, CORPUS, QUERIES = "about.json", "corpus.jsonl", "queries.jsonl"
_LOCKS = ".locks"
_NAMES = re.compile(rf"{re.escape(CORPUS)}|{re.escape(QUERIES)}|qrels/[^/\0]+\.tsv")  # of all that builds write
HALVES = "texts with half surrogate pairs, which were replaced"


@dataclasses.dataclass(frozen=True)
class About:
    """What a folder is.

    Attributes:
      dataset, variant: which collection.
      whose: which papers' it is.
      fingerprint: of its documents, as every report says it.
      documents: how many.
      questions: split → judged questions.
      raw: name → bytes of the raw files that it was made of.
      files: name → {"bytes", "sha256"} of its own.
      notes: what was left out or mended, counted.
      settings: by which it was built.
    """

    dataset: str
    variant: str
    whose: str
    fingerprint: str
    documents: int
    questions: Mapping[str, int]
    raw: Mapping[str, int]
    files: Mapping[str, Mapping[str, Any]]
    notes: Mapping[str, int]
    settings: Mapping[str, Any]

    @classmethod
    def load(cls, folder: str | os.PathLike) -> About:
        """Reads what `finish` wrote.

        Raises:
          InputError: there is none, or it is damaged.
        """
        file = pathlib.Path(folder) / ABOUT
        said = storage.read_note(file)
        names = {field.name for field in dataclasses.fields(cls)}
        whole = isinstance(said, dict) and set(said) == names and isinstance(said["files"], dict)
        whole = whole and CORPUS in said["files"] and all(itertools.starmap(_is_entry, said["files"].items()))
        if not whole:
            raise InputError(
                "this folder does not say which data set it is, or another version of this library built it",
                "Name a folder that `gr-jax data build` finished, or build it again.",
                file=file,
            )
        return cls(**said)


def _is_entry(name: str, entry: Any) -> bool:
    sized = isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)
    return sized and _NAMES.fullmatch(name) is not None


@contextlib.contextmanager
def building(folder: pathlib.Path, dataset: str, variant: str) -> Iterator[None]:
    """A folder that this process alone builds. Until `finish` it holds a mark, by which a build goes on that was
    interrupted, and no system takes it for a data set.

    Args:
      folder: to write; what a build finished there before is no data set from now on, and its judgements are gone.
      dataset, variant: which collection.

    Raises:
      InputError: the folder holds what no build put there or another collection that is finished, cannot be written, or
        another process builds it.
    """

    def wait() -> None:
        raise InputError("another process builds this folder", "Wait for it, or name another folder.", file=folder)

    with storage.explaining(folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir() if path.name != _LOCKS)
    before = _finished(folder)
    if names and before is None and beir.BUILDING not in names:
        raise InputError("this folder holds something else", "Name a new folder.", file=folder, value=names[0])
    if before is not None and (before.dataset, before.variant) != (dataset, variant):
        raise InputError(
            f"this folder holds {before.dataset} ({before.variant}), which {dataset} ({variant}) would replace",
            "Name a new folder, or remove this one.",
            file=folder,
        )
    with storage.locked(folder / _LOCKS / "build", wait):
        storage.write_json(folder / beir.BUILDING, {"dataset": dataset, "variant": variant})
        # A split that this build does not make would be read with the others; those of a build that failed stay, too.
        for file in (folder / "qrels").glob("*.tsv"):
            if not file.is_dir():
                file.unlink()
        (folder / ABOUT).unlink(missing_ok=True)
        yield


def _finished(folder: pathlib.Path) -> About | None:
    with contextlib.suppress(InputError):
        return About.load(folder)
    return None


def document_line(document: Document) -> tuple[bytes, tuple[str, ...]]:
    """A line of `corpus.jsonl`, without its end, and what is to be counted.

    Raises:
      InputError: an id that no document can have.
    """
    problem = check_id(document.doc_id, "document")
    if problem:
        raise InputError(problem, "Correct it in the raw file.", value=document.doc_id)
    record = {"_id": document.doc_id, "title": document.title, "text": document.text}
    return json_line(record)


def json_line(record: Mapping[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """A record as a line of JSON; half surrogate pairs, which no file can hold, become question marks, and count."""
    try:
        return orjson.dumps(record), ()
    except TypeError:  # orjson's JSONEncodeError
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        return line.encode("utf-8", "replace"), (HALVES,)


def write_questions(
    folder: pathlib.Path, rows: Iterable[tuple[str | os.PathLike, str, str, Mapping[str, Any]]]
) -> Mapping[str, int]:
    """Writes `queries.jsonl` of (raw file, id, text, metadata); returns what was counted.

    Raises:
      InputError: an id that is none or comes twice, or a question without a text; names the raw file.
    """
    halves, seen = 0, set[str]()
    with storage.writing(folder / QUERIES) as file:
        for raw, identifier, text, more in rows:
            problem = check_question(identifier, text) or ("this id came before" if identifier in seen else None)
            if problem:
                raise InputError(problem, "Correct it in the raw file.", file=raw, value=identifier)
            seen.add(identifier)
            line, counted = json_line({"_id": identifier, "text": text, **({"metadata": dict(more)} if more else {})})
            file.write(line + b"\n")
            halves += len(counted)
    return {HALVES: halves} if halves else {}


def check_question(identifier: str, text: str) -> str | None:
    """What is wrong with a question; None where nothing is."""
    return check_id(identifier, "query") or (None if text.strip() else "a question without a text")


def write_judgements(folder: pathlib.Path, splits: Mapping[str, Iterable[tuple[str, str, int]]]) -> dict[str, int]:
    """Writes `qrels/<split>.tsv` of (question, document, grade); returns split → questions.

    A split without judgements has no file.
    """
    judged = {}
    for split, rows in splits.items():
        pairs = list(rows)
        file = folder / "qrels" / f"{split}.tsv"
        if not pairs:
            file.unlink(missing_ok=True)
            continue
        lines.write_lines(file, ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{grade}" for q, d, grade in pairs)])
        judged[split] = len({question for question, _, _ in pairs})
    return judged


def write_documents(
    folder: pathlib.Path, source: pathlib.Path, make: convert.Make, version: str, processes: int, show: bool
) -> dict[str, int]:
    """Writes `corpus.jsonl` of a raw file's lines; returns what was counted. See `convert.convert`."""
    made = convert.convert(source, folder / CORPUS, make, version=version, processes=processes, show=show)
    return {name: count for name, count in made.items() if name != convert.MADE}


def identity_of(folder: pathlib.Path, show: bool) -> Identity:
    """Of the documents of a folder."""
    identity = Identity()
    for document in documents_of(folder, show):
        identity.add(document)
    return identity


def documents_of(folder: pathlib.Path, show: bool = False) -> Iterator[Document]:
    """Streams the documents of a folder."""
    file = folder / CORPUS
    with progress.bar("Reading documents", os.path.getsize(file), enabled=show) as bar:
        for number, raw in lines.read_raw_lines(file, lambda at: bar.advance(at - bar.done)):
            yield beir.document(lines.parse_json(lines.decoded(raw, file, number), file, number), file, number)


def finish(
    folder: pathlib.Path,
    *,
    dataset: str,
    variant: str,
    whose: str,
    questions: Mapping[str, int],
    raw: Iterable[str | os.PathLike],
    notes: Mapping[str, int],
    settings: Mapping[str, Any] = types.MappingProxyType({}),
    judged_by: Mapping[str, str | os.PathLike] = types.MappingProxyType({}),
    identity: Identity | None = None,
    show: bool = True,
) -> About:
    """Writes `about.json`, which makes a build a finished one.

    Args:
      folder: with documents, questions and judgements.
      dataset, variant, whose, questions, raw, notes, settings: see `About`.
      judged_by: split → the raw file of its judgements, for errors.
      identity: of the documents, where they have been read.
      show: bars.

    Raises:
      InputError: no documents, two of one id, or a judgement of one that is not there.
    """
    identity = identity_of(folder, show) if identity is None else identity
    raw = list(raw)
    if not len(identity.ids):
        raise InputError("no documents", "Name the raw file of documents.", file=raw[0] if raw else folder)
    twice = identity.ids.repeated(document.doc_id for document in documents_of(folder))
    if twice is not None:
        raise InputError(
            "two documents have one id", "Give every document an id of its own.", file=raw[0] if raw else folder,
            value=twice,
        )  # fmt: skip
    for split in questions:
        rows = beir.read_qrels(folder / "qrels" / f"{split}.tsv")
        missing = next((doc_id for _, _, doc_id, _ in rows if doc_id not in identity.ids), None)
        if missing is not None:
            raise InputError(
                f"a judgement of {split} is of a document that is not there", "Take the raw files of one release.",
                file=judged_by.get(split, raw[0] if raw else folder), value=missing,
            )  # fmt: skip
    names = [CORPUS, QUERIES, *(f"qrels/{split}.tsv" for split in questions)]
    written = {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}
    with progress.bar("Computing checksums", sum(written.values()), enabled=show) as bar:
        files = {
            name: {"bytes": size, "sha256": raw_files.hashed(folder / name, "sha256", bar)}
            for name, size in written.items()
        }
    about = About(
        dataset, variant, whose, identity.fingerprint, len(identity.ids), dict(questions),
        _sizes(raw), files, dict(notes),
        dict(settings),
    )  # fmt: skip
    storage.write_json(folder / ABOUT, dataclasses.asdict(about))
    convert.forget(folder / CORPUS)
    (folder / beir.BUILDING).unlink(missing_ok=True)
    return about


def _sizes(raw: Iterable[str | os.PathLike]) -> dict[str, int]:
    """By name; files of one name by their paths."""
    files = [os.fspath(file) for file in raw]
    names = list(map(os.path.basename, files))
    return {
        name if names.count(name) == 1 else file: os.path.getsize(file) for name, file in zip(names, files, strict=True)
    }


def verify(folder: str | os.PathLike, show: bool = True) -> list[str]:
    """What is not as it was when the folder was finished, a sentence each; [] where all is.

    Raises:
      InputError: the folder does not say what it is.
    """
    folder = pathlib.Path(folder)
    about, wrong = About.load(folder), []
    with progress.bar("Checking files", sum(said["bytes"] for said in about.files.values()), enabled=show) as bar:
        for name, said in about.files.items():
            file = folder / name
            if not file.is_file():
                wrong.append(f"{name} is missing.")
            elif file.stat().st_size != said["bytes"]:
                wrong.append(f"{name} has {file.stat().st_size:,} bytes instead of {said['bytes']:,}.")
            elif raw_files.hashed(file, "sha256", bar) != said["sha256"]:
                wrong.append(f"{name} has other content than when it was built.")
    known = {*about.files, ABOUT}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    wrong += [f"{name} is not of this data set." for name in sorted(there - known) if name.startswith("qrels/")]
    return wrong

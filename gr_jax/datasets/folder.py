"""Folders of built data sets: BEIR's layout, and `about.json`, which says what it is and what it was made of."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from gr_jax import progress, storage
from gr_jax.corpus import beir, lines
from gr_jax.corpus.documents import Document, Identity
from gr_jax.datasets import convert
from gr_jax.errors import InputError
from gr_jax.storage import checksums

ABOUT, CORPUS, QUERIES = "about.json", "corpus.jsonl", "queries.jsonl"
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
        if not isinstance(said, dict) or set(said) != names or not isinstance(said["files"], dict):
            raise InputError(
                "this folder does not say which data set it is",
                "Name a folder that `launch.data build` finished.",
                file=file,
            )
        return cls(**said)


def refuse_others(folder: pathlib.Path, ours: Iterable[str]) -> None:
    """Raises InputError for a folder that holds what no build put there: somebody's documents, say.

    Args:
      folder: to be written.
      ours: beginnings of the names of what an unfinished build leaves.
    """
    if not folder.is_dir():
        return
    names = sorted(path.name for path in folder.iterdir())
    begun = tuple(ours)
    if names and ABOUT not in names and not any(name.startswith(begun) for name in names):
        raise InputError("this folder holds something else", "Name a new folder.", file=folder, value=names[0])


def document_line(document: Document) -> tuple[bytes, tuple[str, ...]]:
    """A line of `corpus.jsonl`, without its end, and what is to be counted."""
    record = {"_id": document.doc_id, "title": document.title, "text": document.text}
    return json_line(record)


def json_line(record: Mapping[str, Any]) -> tuple[bytes, tuple[str, ...]]:
    """A record as a line of JSON; half surrogate pairs, which no file can hold, become question marks, and count."""
    try:
        return orjson.dumps(record), ()
    except TypeError:  # orjson's JSONEncodeError
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        return line.encode("utf-8", "replace"), (HALVES,)


def write_questions(folder: pathlib.Path, rows: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Mapping[str, int]:
    """Writes `queries.jsonl` of (id, text, metadata); returns what was counted."""
    halves = 0
    with storage.writing(folder / QUERIES) as file:
        for identifier, text, more in rows:
            line, counted = json_line({"_id": identifier, "text": text, **({"metadata": dict(more)} if more else {})})
            file.write(line + b"\n")
            halves += len(counted)
    return {HALVES: halves} if halves else {}


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
    show: bool = True,
) -> About:
    """Writes `about.json`, which makes a build a finished one.

    Raises:
      InputError: two documents have one id.
    """
    identity = Identity()
    for document in documents_of(folder, show):
        identity.add(document)
    twice = identity.repeated(documents_of(folder))
    if twice is not None:
        raise InputError("two documents have one id", "Give every document an id of its own.", value=twice)
    names = [CORPUS, QUERIES, *(f"qrels/{split}.tsv" for split in questions)]
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": checksums.sha256(folder / name)}
        for name in names
        if (folder / name).is_file()
    }
    about = About(
        dataset, variant, whose, identity.fingerprint, identity.count, dict(questions),
        {os.path.basename(file): os.path.getsize(file) for file in raw}, files, dict(notes),
        dict(settings),
    )  # fmt: skip
    storage.write_json(folder / ABOUT, dataclasses.asdict(about))
    convert.forget(folder / CORPUS)
    return about


def verify(folder: str | os.PathLike) -> list[str]:
    """What is not as it was when the folder was finished, a sentence each; [] where all is.

    Raises:
      InputError: the folder does not say what it is.
    """
    folder = pathlib.Path(folder)
    about, wrong = About.load(folder), []
    for name, said in about.files.items():
        file = folder / name
        if not file.is_file():
            wrong.append(f"{name} is missing.")
        elif file.stat().st_size != said["bytes"]:
            wrong.append(f"{name} has {file.stat().st_size:,} bytes instead of {said['bytes']:,}.")
        elif checksums.sha256(file) != said["sha256"]:
            wrong.append(f"{name} has other content than when it was built.")
    known = {*about.files, ABOUT}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    wrong += [f"{name} is not of this data set." for name in sorted(there - known) if name.startswith("qrels/")]
    return wrong

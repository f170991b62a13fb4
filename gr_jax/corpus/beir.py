"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`, plain or gzipped."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

from gr_jax import storage
from gr_jax.corpus import lines
from gr_jax.corpus.dataset import Dataset
from gr_jax.corpus.documents import Corpus, Document, DuplicateDocument, check_id
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.trec import Qrels, read_qrels
from gr_jax.errors import InputError
from gr_jax.text.transforms import get_transform

# Part of every store's key: raise it when this reader starts to read something else from the same files.
_READER_VERSION = 1
# Stands in a folder that `gr-jax data` has not finished.
BUILDING = ".building.json"


def read_beir(
    folder: str | os.PathLike,
    *,
    store: str | os.PathLike | None = None,
    subset: str | os.PathLike | Iterable[str] | None = None,
    name: str | None = None,
    transform: str = "none",
) -> Dataset:
    """Reads a folder in BEIR's layout. Only `corpus.jsonl` (or `corpus.jsonl.gz`) is required.

    Documents go line by line into columns, so that a corpus larger than memory can be read with `store`.

    Args:
      folder: the folder. Records are {"_id", "title", "text"} in `corpus.jsonl` (no title is ""), {"_id", "text"} in
        `queries.jsonl`; `qrels/*.tsv` hold `query-id<TAB>corpus-id<TAB>score`, one split each.
      store: folder for the columns, which are then memory-mapped; used again when nothing changed.
      subset: ids of the documents to keep, or a file with one id a line, plain or gzipped. Judgements of the others
        are left out, and so are queries that keep no relevant document.
      name: of the data set; the folder's by default.
      transform: `Dataset.transform`.

    Raises:
      InputError: with file, line and value: no corpus, an empty one, a line that is not JSON or not UTF-8, a truncated
        gzip file, a file or `qrels` that cannot be read, an `_id` that is missing, unusable or comes twice, a blank
        query, a judgement of a query or document that is not there, an id of `subset` that is not there.
    """
    folder = pathlib.Path(folder)
    get_transform(transform)
    file, queries_file, splits = find_files(folder)
    queries = Queries((), ()) if queries_file is None else Queries.load(queries_file)
    judged = {split: (path, list(read_qrels(path))) for split, path in splits.items()}
    for path, rows in judged.values():
        for number, query_id, _, _ in rows:
            if query_id not in queries:
                raise InputError(
                    "a judgement of a query that is not there",
                    f"Add the query to {queries_file or folder / 'queries.jsonl'}, or remove the line.",
                    file=path,
                    line=number,
                    value=query_id,
                )
    kept = None if subset is None else _read_subset(subset)
    corpus = _read_corpus(file, store, kept)
    if kept is not None and len(corpus) < len(kept):
        missing = next(doc_id for doc_id in kept if doc_id not in corpus)
        raise InputError("an id of the subset is not in the corpus", "Remove it.", file=file, value=missing)
    qrels = {split: _read_split(path, rows, corpus, file, kept is not None) for split, (path, rows) in judged.items()}
    return Dataset(corpus, queries, qrels, name or folder.resolve().name, transform)


def find_files(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path | None, dict[str, pathlib.Path]]:
    """The files of documents, of queries, and of each split's judgements.

    Raises:
      InputError: there are no documents, something that is no file has the name of one, `qrels` cannot be read, or the
        folder is one that `gr-jax data` has not finished.
    """
    if os.path.lexists(folder / BUILDING):
        raise InputError(
            "this data set is not finished", "The command that builds it goes on where it was.", file=folder
        )
    file = lines.find(folder, "corpus.jsonl")
    if file is None:
        raise InputError(
            "there is neither corpus.jsonl nor corpus.jsonl.gz",
            'Write one {"_id": …, "title": …, "text": …} a line into corpus.jsonl in this folder.',
            file=folder,
        )
    return file, lines.find(folder, "queries.jsonl"), dict(_splits(folder))


def _splits(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """(name, file) of each split; train first, as one wants to read it, then dev, then the rest."""
    names = {name.removesuffix(".gz").removesuffix(".tsv") for name in _names_in(folder / "qrels") if ".tsv" in name}
    first = ["train", "dev"]
    for split in sorted(names, key=lambda name: (first.index(name) if name in first else len(first), name)):
        path = lines.find(folder / "qrels", f"{split}.tsv")
        if path is not None:
            yield split, path


def _names_in(folder: pathlib.Path) -> list[str]:
    """Of what is in a folder; none where there is no such folder."""
    if not os.path.lexists(folder):
        return []
    try:
        return os.listdir(folder)
    except OSError as error:
        raise InputError(
            f"the judgements cannot be read: {error.strerror}",
            "Make it a folder that can be read, with a file for each split; without judgements, remove it.",
            file=folder,
        ) from error


def _read_split(
    path: pathlib.Path, rows: list[tuple[int, str, str, int]], corpus: Corpus, file: pathlib.Path, is_subset: bool
) -> Qrels:
    """The judgements of one split whose documents were kept; refuses documents that are not in the file at all."""
    absent = {doc_id for _, _, doc_id, _ in rows if doc_id not in corpus}
    unknown = set(absent)
    if unknown and is_subset:
        for number, record in lines.read_json_lines(file):
            unknown.discard(lines.identifier(record, file, number))
    for number, _, doc_id, _ in rows:
        if doc_id in unknown:
            raise InputError(
                "a judgement of a document that is not there",
                f"Add the document to {file}, or remove the line.",
                file=path,
                line=number,
                value=doc_id,
            )
    everything = Qrels.from_rows(path, rows)
    kept = {q: {d: grade for d, grade in grades.items() if d not in absent} for q, grades in everything.items()}
    return Qrels({q: grades for q, grades in kept.items() if not absent or any(grade > 0 for grade in grades.values())})


def _read_corpus(file: pathlib.Path, store: str | os.PathLike | None, kept: dict[str, None] | None) -> Corpus:
    key = "" if store is None else _content_key(file, kept)
    if store is not None and storage.is_complete(store, "corpus", key):
        # A store that was damaged since is made again below.
        with contextlib.suppress(InputError):
            return Corpus.load(store)
    try:
        return Corpus.from_documents(_documents(file, kept), store, made_from=key)
    except DuplicateDocument as error:
        raise _locate(error, file) from error
    except InputError as error:
        if error.file is not None:
            raise
        raise InputError(error.problem, 'Write one {"_id", "title", "text"} a line.', file=file) from error


def _content_key(file: pathlib.Path, kept: Iterable[str] | None) -> str:
    digest = lines.digest(file)
    digest.update(json.dumps([_READER_VERSION, None if kept is None else list(kept)]).encode())
    return digest.hexdigest()[:16]


def _documents(file: pathlib.Path, kept: Container[str] | None) -> Iterator[Document]:
    for number, record in lines.read_json_lines(file):
        found = document(record, file, number)
        if kept is None or found.doc_id in kept:
            yield found


def document(record: dict[str, Any], file: str | os.PathLike, number: int) -> Document:
    """The document of a record of `corpus.jsonl`; InputError where it is none."""
    doc_id = lines.identifier(record, file, number)
    title = lines.string(record, "title", file, number, default="")
    text = lines.string(record, "text", file, number)
    problem = check_id(doc_id, "document")
    if problem:
        raise InputError(problem, "Replace white space by '_'.", file=file, line=number, value=doc_id)
    try:
        f"{doc_id}{title}{text}".encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"no valid Unicode: {error.reason}",
            "Remove half surrogate pairs.",
            file=file,
            line=number,
            value=doc_id,
        ) from error
    return Document(doc_id, title, text)


def _locate(error: DuplicateDocument, file: pathlib.Path) -> InputError:
    """The same error with the lines of the two documents, for which the file is read again."""
    found = [number for number, record in lines.read_json_lines(file) if str(record.get("_id")) == error.doc_id]
    return InputError(
        f"this _id stands on line {found[0]} too",
        "Give every document an _id of its own.",
        file=file,
        line=found[1],
        value=error.doc_id,
    )


def _read_subset(subset: str | os.PathLike | Iterable[str]) -> dict[str, None]:
    """The ids in order; a dict serves as an ordered set."""
    if isinstance(subset, str | os.PathLike):
        return {line.strip(): None for _, line in lines.read_lines(subset)}
    return dict.fromkeys(subset)

"""A corpus: documents with an id, a title and a text, in columns that may be larger than memory."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt64

from gr_jax import storage
from gr_jax.corpus.columns import ColumnWriter, TextColumn
from gr_jax.errors import InputError

KIND = "corpus"
_COLUMNS = ("doc_ids", "titles", "texts")
ID_REMEDY = "Give texts as ids, with '_' in place of white space."


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
      doc_id: unique in its corpus; no white space, because TREC files are split at it.
      title: "" where there is none.
      text: what it says, without the title.
    """

    doc_id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text in one string, as every retriever that reads one string gets it."""
        return f"{self.title} {self.text}" if self.title else self.text


class Corpus:
    """Documents in columns: UTF-8 blobs and offsets, in memory or memory-mapped.

    A document is built when it is asked for; iterating over a million of them holds one at a time. Made by
    `from_documents`, `load` or a reader (`read_beir`, `python_docs`).

    Attributes:
      doc_ids, titles, texts: lazy sequences of strings, one for each document.
    """

    def __init__(self, doc_ids: TextColumn, titles: TextColumn, texts: TextColumn, *, fingerprint: str | None = None):
        self.doc_ids, self.titles, self.texts = doc_ids, titles, texts
        if fingerprint is not None:
            self.__dict__["fingerprint"] = fingerprint

    @classmethod
    def from_documents(
        cls, documents: Iterable[Document], store: str | os.PathLike | None = None, *, made_from: str = ""
    ) -> Corpus:
        """Reads `documents` once, in order.

        Args:
          documents: any iterable, consumed one document at a time.
          store: a folder in which the columns are written and from which they are then memory-mapped; None keeps them
            in memory. What stood there is replaced when all is written.
          made_from: content key of what the documents were read from, for the manifest of `store`.

        Raises:
          InputError: no documents; a document id that is empty, holds white space or comes twice; text that is no
            valid Unicode.
        """
        meta: dict = {}
        with contextlib.ExitStack() as stack:
            folder = None
            if store is not None:
                folder = stack.enter_context(storage.write_folder(store, KIND, made_from=made_from, meta=meta))
            writers = [ColumnWriter(folder, name) for name in _COLUMNS]
            digest = hashlib.sha256()
            for document in documents:
                fields = _encode(document)
                for writer, field in zip(writers, fields, strict=True):
                    writer.append(field)
                _update(digest, fields)
            fingerprint = digest.hexdigest()[:16]
            if folder is None:
                corpus = cls(*(writer.column() for writer in writers), fingerprint=fingerprint)
            else:
                for writer in writers:
                    writer.close()
                corpus = cls(*(TextColumn.load(folder, name, mmap=True) for name in _COLUMNS), fingerprint=fingerprint)
            if not len(corpus):
                raise InputError("the corpus is empty", "Give at least one document.")
            corpus._refuse_duplicates()
            meta |= {"documents": len(corpus), "fingerprint": fingerprint}
        # The manifest of this very moment was made from these columns: their checksums need no second reading.
        return corpus if store is None else cls.load(store, verify=False)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> Corpus:
        """Memory-maps what `save` or `store` wrote.

        Args:
          folder: the artefact.
          verify: check the checksums, which reads every byte once.

        Raises:
          InputError: `folder` is no corpus, or a truncated or altered one.
        """
        manifest = storage.read_folder(folder, KIND, verify=verify)
        columns = [TextColumn.load(pathlib.Path(folder), name, mmap=True) for name in _COLUMNS]
        if len({len(column) for column in columns}) != 1 or not len(columns[0]):
            raise InputError("the columns differ in length", "Make the corpus again.", file=folder)
        return cls(*columns, fingerprint=manifest.meta["fingerprint"])

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the columns as an artefact of kind "corpus"."""
        meta = {"documents": len(self), "fingerprint": self.fingerprint}
        with storage.write_folder(folder, KIND, corpus=self.fingerprint, meta=meta) as new:
            for name in _COLUMNS:
                getattr(self, name).save(new, name)

    @functools.cached_property
    def fingerprint(self) -> str:
        """First 16 hex digits of SHA-256 over ids, titles and texts in order."""
        digest = hashlib.sha256()
        for fields in zip(*(getattr(self, name).iter_encoded() for name in _COLUMNS), strict=True):
            _update(digest, fields)
        return digest.hexdigest()[:16]

    @property
    def contents(self) -> Sequence[str]:
        """Title and text of each document in one string, lazily."""
        return _Contents(self)

    def index_of(self, doc_id: str) -> int:
        """The position of a document.

        Raises:
          InputError: no document has this id.
        """
        index = self.find(doc_id)
        if index is None:
            raise InputError("no document of the corpus has this id", "Give an id of the corpus.", value=doc_id)
        return index

    def find(self, doc_id: str) -> int | None:
        """The position of a document; None where no document has this id."""
        hashes, order = self._hashed_ids
        try:
            key = _hash(doc_id.encode("utf-8"))
        except UnicodeEncodeError:
            return None
        place = int(np.searchsorted(hashes, key))
        while place < len(hashes) and int(hashes[place]) == key:
            if self.doc_ids[int(order[place])] == doc_id:
                return int(order[place])
            place += 1
        return None

    def subset(self, indices: Iterable[int]) -> Corpus:
        """The documents at `indices`, in that order, in memory."""
        return Corpus.from_documents(self[int(index)] for index in indices)

    def __len__(self) -> int:
        return len(self.doc_ids)

    def __getitem__(self, index: int) -> Document:
        return Document(self.doc_ids[index], self.titles[index], self.texts[index])

    def __iter__(self) -> Iterator[Document]:
        return map(Document, self.doc_ids, self.titles, self.texts)

    def __contains__(self, doc_id: object) -> bool:
        return isinstance(doc_id, str) and self.find(doc_id) is not None

    def __repr__(self) -> str:
        return f"Corpus({len(self)} documents, fingerprint {self.fingerprint})"

    @functools.cached_property
    def _hashed_ids(self) -> tuple[UInt64[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Sorted hashes of the ids and the documents that they belong to: 16 bytes a document, where a dict has 200."""
        hashes = np.fromiter(map(_hash, self.doc_ids.iter_encoded()), np.uint64, len(self))
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def _refuse_duplicates(self) -> None:
        hashes, order = self._hashed_ids
        first: dict[str, int] = {}
        for place in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
            # Different ids may share a 64-bit hash, if hardly ever: the ids themselves decide.
            for index in order[place : place + 2].tolist():
                doc_id = self.doc_ids[index]
                if first.setdefault(doc_id, index) != index:
                    raise DuplicateDocument(doc_id, first[doc_id], index)


class Ids:
    """Ids that came one by one, in 8 bytes each."""

    def __init__(self) -> None:
        self._hashes = array.array("Q")
        self._sorted: UInt64[np.ndarray, " n"] | None = None

    def add(self, identifier: str) -> None:
        """Takes the next one."""
        self._hashes.append(_hash(identifier.encode("utf-8", "surrogatepass")))

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, identifier: object) -> bool:
        if self._sorted is None or len(self._sorted) < len(self):
            self._sorted = np.sort(np.frombuffer(self._hashes.tobytes(), np.uint64))
        key = np.uint64(_hash(str(identifier).encode("utf-8", "surrogatepass")))
        place = int(np.searchsorted(self._sorted, key))
        return place < len(self._sorted) and bool(self._sorted[place] == key)

    def repeated(self, again: Iterable[str]) -> str | None:
        """One that came twice; None where none did.

        Args:
          again: the same ids, which are read only where one may have.
        """
        hashes = np.sort(np.frombuffer(self._hashes.tobytes(), np.uint64))
        twice = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
        seen: set[str] = set()
        for identifier in again if twice else ():
            if _hash(identifier.encode("utf-8", "surrogatepass")) in twice:
                if identifier in seen:
                    return identifier
                seen.add(identifier)
        return None


class Identity:
    """What identifies documents that come one by one.

    Attributes:
      ids: theirs.
    """

    def __init__(self) -> None:
        self.ids, self._digest = Ids(), hashlib.sha256()

    def add(self, document: Document) -> None:
        """Takes the next one; raises InputError for one that no corpus can hold."""
        _update(self._digest, _encode(document))
        self.ids.add(document.doc_id)

    @property
    def fingerprint(self) -> str:
        """That of a corpus of these documents."""
        return self._digest.hexdigest()[:16]


class DuplicateDocument(InputError):
    """Two documents have one id; `first` and `second` are their positions."""

    def __init__(self, doc_id: str, first: int, second: int):
        super().__init__(
            f"documents {first} and {second} have the same id", "Give every document an id of its own.", value=doc_id
        )
        self.doc_id, self.first, self.second = doc_id, first, second


class _Contents(Sequence[str]):
    """Title and text of each document."""

    def __init__(self, corpus: Corpus):
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def __iter__(self) -> Iterator[str]:
        return (document.contents for document in self._corpus)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self._corpus[i].contents for i in range(*index.indices(len(self)))]
        return self._corpus[index].contents


def check_id(identifier: object, noun: str) -> str | None:
    """What is wrong with a query's or a document's id; None where nothing is."""
    if not isinstance(identifier, str):
        return f"a {noun} id that is no text"
    if not identifier:
        return f"a {noun} without an id"
    if identifier.split() != [identifier]:
        return f"a {noun} id with white space, at which TREC files are split"
    if not identifier.isascii():
        try:
            identifier.encode("utf-8")
        except UnicodeEncodeError as error:
            return f"a {noun} id that is no valid Unicode: {error.reason}"
    return None


def _encode(document: Document) -> tuple[bytes, bytes, bytes]:
    problem = check_id(document.doc_id, "document")
    if problem:
        raise InputError(problem, ID_REMEDY, value=document.doc_id)
    try:
        return document.doc_id.encode("utf-8"), document.title.encode("utf-8"), document.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"a document's text is no valid Unicode: {error.reason}",
            "Remove half surrogate pairs.",
            value=document.doc_id,
        ) from error


def _update(digest, fields: Iterable[bytes]) -> None:
    # Lengths in between: moving a letter from the title to the text is another corpus.
    for field in fields:
        digest.update(struct.pack("<Q", len(field)))
        digest.update(field)


def _hash(doc_id: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(doc_id, digest_size=8).digest(), "little")

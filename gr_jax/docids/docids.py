"""Docids: which document is called what."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from gr_jax import storage
from gr_jax.corpus.columns import TextColumn
from gr_jax.docids import rows
from gr_jax.errors import InputError

KIND = "docids"
DUPLICATES = ("refuse", "share")


@dataclasses.dataclass(frozen=True, eq=False)
class Docids:
    """Identifier token sequences and the documents they stand for.

    Rows are distinct and lexicographically sorted, so the docids under any prefix are a contiguous range of rows.

    Attributes:
      tokens: int32[num_docids, max_len]; ids of the decoder's vocabulary (level offsets applied), without EOS, padded
        with 0, which is no docid token.
      lengths: int32[num_docids].
      vocab_size: rows of the decoder's output table that the scheme needs; every token and `eos_id` is below it.
      eos_id: the token that ends every identifier, in training targets exactly as in decoding; None where no docid is
        a prefix of another, so that nothing has to be written to end it.
      levels: (start, size) of each position's block of tokens, where tokens are position-aware; else None.
      offsets: int64[num_docids + 1] and
      documents: int32[...]; documents[offsets[i]:offsets[i + 1]] are called by docid i.
      num_documents: documents of the corpus; documents are numbered below it.
      scheme: name of the scheme.
      meta: its settings, JSON.
      texts: what each docid reads, where docids are text; else None.
    """

    tokens: Int[np.ndarray, "num_docids max_len"]
    lengths: Int[np.ndarray, " num_docids"]
    vocab_size: int
    eos_id: int | None
    levels: tuple[tuple[int, int], ...] | None
    offsets: Int[np.ndarray, " num_docids_plus_1"]
    documents: Int[np.ndarray, " entries"]
    num_documents: int
    scheme: str
    meta: dict = dataclasses.field(default_factory=dict)
    texts: Sequence[str] | None = None

    @classmethod
    def build(
        cls,
        sequences: Sequence[Sequence[int]] | Int[np.ndarray, "n max_len"],
        *,
        vocab_size: int,
        eos_id: int | None = None,
        levels: Sequence[tuple[int, int]] | None = None,
        documents: Sequence[int] | Int[np.ndarray, " n"] | None = None,
        num_documents: int | None = None,
        names: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        duplicates: str = "refuse",
        scheme: str = "custom",
        meta: dict | None = None,
    ) -> Docids:
        """Sorts token sequences, checks them and groups the documents that share one.

        Args:
          sequences: one token sequence for each entry; lists, or a matrix padded with 0.
          vocab_size, eos_id, levels, scheme, meta: see the class.
          documents: the document that each sequence is for; by default sequence i is for document i.
          num_documents: by default one more than the largest document.
          names: names of the documents, for messages.
          texts: what each sequence reads; of equal ones the first document's is kept.
          duplicates: "refuse": two documents with the same docid are an error that names both. "share": one docid may
            stand for several documents.

        Raises:
          InputError: an empty docid; a token that is 0, EOS or outside of the vocabulary or of its level's block; a
            docid that is a prefix of another without EOS to tell them apart; equal docids under "refuse".
        """
        if duplicates not in DUPLICATES:
            raise InputError(
                "unknown policy for equal docids", f"Use one of {', '.join(DUPLICATES)}.", value=duplicates
            )
        tokens = rows.as_matrix(sequences)
        owner = np.arange(len(tokens)) if documents is None else np.asarray(documents, np.int64)
        if len(owner) != len(tokens):
            raise InputError(f"{len(tokens)} docids for {len(owner)} documents", "Give one document for each docid.")
        if texts is not None and len(texts) != len(tokens):
            raise InputError(f"{len(texts)} texts for {len(tokens)} docids", "Give one text for each docid.")
        if len(tokens) == 0:
            raise InputError("there are no docids", "Give at least one document.")
        if num_documents is None:
            num_documents = int(owner.max()) + 1
        if owner.min() < 0 or owner.max() >= num_documents:
            raise InputError(
                "a docid is for a document that is not there",
                f"Number documents below {num_documents}.",
                value=int(owner.min() if owner.min() < 0 else owner.max()),
            )
        lengths = rows.lengths_of(tokens)
        called = functools.partial(_name_document, owner, names)
        rows.check_tokens(tokens, lengths, vocab_size, eos_id, levels, called)
        order = rows.sort_order(tokens, then=owner)
        tokens, lengths, owner = tokens[order], lengths[order], owner[order]
        called = functools.partial(_name_document, owner, names)
        same = np.all(tokens[1:] == tokens[:-1], axis=1)  # --> [n - 1]
        twice = same & (owner[1:] == owner[:-1])
        if duplicates == "refuse" and (same & ~twice).any():
            first = int(np.argmax(same & ~twice))
            raise InputError(
                f"{called(first)} and {called(first + 1)} have the same docid",
                'Make the docids distinct, or say duplicates="share" where one docid may stand for several documents.',
                value=tokens[first, : lengths[first]].tolist(),
            )
        keep = np.concatenate([[True], ~twice])  # the same docid twice for one document is one entry
        starts = np.flatnonzero(np.concatenate([[True], ~same])[keep])
        tokens, lengths, owner = tokens[keep], lengths[keep], owner[keep]
        if texts is not None:
            texts = TextColumn.of(str(texts[row]) for row in order[keep][starts])
        result = cls(
            tokens=np.ascontiguousarray(tokens[starts, : lengths.max()]),
            lengths=lengths[starts],
            vocab_size=int(vocab_size),
            eos_id=None if eos_id is None else int(eos_id),
            levels=None if levels is None else tuple((int(start), int(size)) for start, size in levels),
            offsets=np.append(starts, len(owner)).astype(np.int64),
            documents=owner.astype(np.int32),
            num_documents=int(num_documents),
            scheme=scheme,
            meta=dict(meta or {}),
            texts=texts,
        )
        rows.check_prefixes(result.tokens, result.lengths, result.eos_id)
        return result

    def for_documents(self, owner: Int[np.ndarray, " parts"], num_documents: int) -> Docids:
        """Docids of documents from docids of their parts: what named part i now names document owner[i].

        A document with several parts has several docids; each part must have had its own.

        Args:
          owner: for each of the `num_documents` parts that this names, its document.
          num_documents: documents of the corpus.

        Raises:
          InputError: another number of parts, or a document that is not there.
        """
        owner = np.asarray(owner)
        if owner.shape != (self.num_documents,):
            raise InputError(
                f"{owner.shape} owners for {self.num_documents} parts",
                "Give one document for each part.",
                value=owner.shape,
            )
        if owner.min() < 0 or owner.max() >= num_documents:
            raise InputError("a part of a document that is not there", f"Number documents below {num_documents}.")
        return dataclasses.replace(self, documents=owner[self.documents].astype(np.int32), num_documents=num_documents)

    def joined(self, more: Docids) -> Docids:
        """These docids and those of further documents: document i of `more` becomes document num_documents + i.

        Raises:
          InputError: another vocabulary, EOS or blocks of tokens; without EOS, a docid that is a prefix of another.
        """
        own, other = (
            (docids.vocab_size, docids.eos_id, docids.levels, docids.texts is None) for docids in (self, more)
        )
        if own != other:
            raise InputError(
                "docids of another vocabulary, EOS, blocks of tokens or without texts cannot be added",
                "Make them by the same scheme.",
                value=other,
            )
        width = max(self.tokens.shape[1], more.tokens.shape[1])
        tokens, texts = [], []
        for docids in (self, more):
            row_of_entry = np.repeat(np.arange(len(docids)), np.diff(docids.offsets))
            tokens.append(np.pad(docids.tokens, ((0, 0), (0, width - docids.tokens.shape[1])))[row_of_entry])
            if docids.texts is not None:
                texts += [docids.texts[row] for row in row_of_entry.tolist()]
        return Docids.build(
            np.concatenate(tokens),
            vocab_size=self.vocab_size,
            eos_id=self.eos_id,
            levels=self.levels,
            documents=np.concatenate([self.documents, more.documents + self.num_documents]),
            num_documents=self.num_documents + more.num_documents,
            texts=texts or None,
            duplicates="share",
            scheme=self.scheme,
            meta=self.meta,
        )

    @property
    def shares(self) -> bool:
        """Whether one docid may stand for several documents: the scheme that made them says so, or one does."""
        said = (self.meta.get("duplicates"), self.meta.get("leaf"), self.meta.get("collisions"))
        return "share" in said or len(self) < len(self.documents)

    def without(self, documents: Sequence[int] | Int[np.ndarray, " n"]) -> Docids:
        """The docids of the other documents, which keep their numbers.

        Raises:
          InputError: no docid is left.
        """
        kept = ~np.isin(self.documents, np.asarray(documents, np.int64))
        if not kept.any():
            raise InputError("no document would be left", "Leave one, or make the index anew.")
        row_of_entry = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        left, counts = np.unique(row_of_entry[kept], return_counts=True)
        lengths = self.lengths[left]
        return dataclasses.replace(
            self,
            tokens=np.ascontiguousarray(self.tokens[left, : lengths.max()]),
            lengths=lengths,
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            documents=self.documents[kept],
            texts=None if self.texts is None else TextColumn.of(self.texts[row] for row in left.tolist()),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def max_steps(self) -> int:
        """Decoding steps of the longest docid, its EOS included."""
        return int(self.lengths.max()) + (self.eos_id is not None)

    def check(self, file: str | os.PathLike | None = None) -> None:
        """Checks everything that a trie relies on; see `build`.

        Raises:
          InputError: shapes or types that do not fit; rows unsorted or equal; what `build` refuses.
        """
        n = len(self.tokens)
        if n == 0:
            raise InputError("there are no docids", "Give at least one document.", file=file)
        if self.lengths.shape != (n,) or self.offsets.shape != (n + 1,):
            raise InputError("lengths or offsets do not fit the tokens", "Make the docids again.", file=file)
        counts = np.diff(self.offsets)
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.documents) or (counts < 1).any():
            raise InputError("offsets do not fit the documents", "Make the docids again.", file=file)
        if self.texts is not None and len(self.texts) != n:
            raise InputError("texts do not fit the tokens", "Make the docids again.", file=file)
        if self.documents.min() < 0 or self.documents.max() >= self.num_documents:
            raise InputError("a docid is for a document that is not there", "Make the docids again.", file=file)
        if (rows.lengths_of(self.tokens) != self.lengths).any():
            raise InputError("lengths do not fit the tokens", "Pad tokens with 0 on the right only.", file=file)
        rows.check_tokens(self.tokens, self.lengths, self.vocab_size, self.eos_id, self.levels, _name_row)
        rows.check_sorted(self.tokens)
        rows.check_prefixes(self.tokens, self.lengths, self.eos_id)

    @functools.cached_property
    def _rows_by_document(self) -> tuple[np.ndarray, np.ndarray]:
        row = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.offsets))
        order = np.argsort(self.documents, kind="stable")
        counts = np.bincount(self.documents, minlength=self.num_documents)
        return np.concatenate([[0], np.cumsum(counts)]), row[order]

    def rows_of(self, document: int) -> Int[np.ndarray, " k"]:
        """Rows of the docids of a document, ascending; empty where it has none."""
        starts, row = self._rows_by_document
        return row[starts[document] : starts[document + 1]]

    def documents_of(self, row: int) -> Int[np.ndarray, " k"]:
        """Documents that a docid stands for, ascending."""
        return self.documents[self.offsets[row] : self.offsets[row + 1]]

    def row_of(self, tokens: Sequence[int]) -> int | None:
        """The row of a docid, given without EOS; None where there is no such docid."""
        if not 0 < len(tokens) <= self.tokens.shape[1] or 0 in tokens:
            return None
        first, end = 0, len(self)
        for position in range(self.tokens.shape[1]):
            token = tokens[position] if position < len(tokens) else 0
            column = self.tokens[first:end, position]  # ascending, for rows are sorted and agree so far
            first, end = (first + int(np.searchsorted(column, token, side)) for side in ("left", "right"))
        return first if first < end else None

    def sequence(self, row: int) -> list[int]:
        """Tokens of a docid, without EOS."""
        return self.tokens[row, : self.lengths[row]].tolist()

    def target(self, row: int) -> list[int]:
        """What a model is trained to write: the tokens, then EOS where decoding ends in it."""
        return self.sequence(row) + ([] if self.eos_id is None else [self.eos_id])

    def name(self, row: int) -> str:
        """A docid for the eye: its text, or codes counted from 0, within their level where there are levels, joined by
        "-"."""
        if self.texts is not None:
            return self.texts[row]
        first = int(self.meta.get("first_token", 0))
        starts = [start for start, _ in self.levels] if self.levels else [first] * self.tokens.shape[1]
        return "-".join(str(token - start) for token, start in zip(self.sequence(row), starts, strict=False))

    def save(self, folder: str | os.PathLike, *, corpus: str = "", made_from: str = "", gin: str = "") -> None:
        """Writes a folder of plain arrays (see `gr_jax.storage`)."""
        meta = {
            "vocab_size": self.vocab_size,
            "eos_id": self.eos_id,
            "levels": self.levels,
            "num_documents": self.num_documents,
            "scheme": self.scheme,
            "settings": self.meta,
            "texts": self.texts is not None,
        }
        with storage.write_folder(folder, KIND, corpus=corpus, made_from=made_from, meta=meta, gin=gin) as path:
            np.save(path / "tokens.npy", self.tokens)
            np.save(path / "lengths.npy", self.lengths)
            np.save(path / "offsets.npy", self.offsets)
            np.save(path / "documents.npy", self.documents)
            if self.texts is not None:
                TextColumn.of(self.texts).save(path, "texts")

    @classmethod
    def load(cls, folder: str | os.PathLike, *, mmap: bool = False) -> Docids:
        """Reads what `save` wrote, checksums and contents verified.

        Raises:
          InputError: the folder is not there, truncated, altered, of another kind, or its contents are no docids.
        """
        manifest = storage.read_folder(folder, KIND)
        arrays = {
            name: storage.load_array(os.path.join(folder, f"{name}.npy"), mmap=mmap)
            for name in ("tokens", "lengths", "offsets", "documents")
        }
        shapes = {"tokens": 2, "lengths": 1, "offsets": 1, "documents": 1}
        for name, array in arrays.items():
            if array.ndim != shapes[name] or array.dtype.kind != "i":
                raise InputError(
                    "not an integer array of the right shape",
                    "Make the docids again.",
                    file=os.path.join(folder, f"{name}.npy"),
                    value=(array.dtype.name, array.shape),
                )
        meta = manifest.meta
        try:
            result = cls(
                **arrays,
                vocab_size=int(meta["vocab_size"]),
                eos_id=None if meta["eos_id"] is None else int(meta["eos_id"]),
                levels=None if meta["levels"] is None else tuple((int(s), int(n)) for s, n in meta["levels"]),
                num_documents=int(meta["num_documents"]),
                scheme=str(meta["scheme"]),
                meta=dict(meta["settings"]),
                texts=TextColumn.load(pathlib.Path(folder), "texts", mmap=mmap) if meta.get("texts") else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the manifest does not describe docids: {error!r}", "Make the docids again.", file=folder
            ) from error
        result.check(file=folder)
        return result


def _name_row(row: int) -> str:
    return f"docid {row}"


def _name_document(owner: np.ndarray, names: Sequence[str] | None, row: int) -> str:
    document = int(owner[row])
    return f"document {document}" if names is None else f"document {names[document]!r}"

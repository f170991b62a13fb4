"""Spans: any run of tokens of a document identifies it (SEAL, Bevilacqua et al. 2022; MINDER, Li et al. 2023).

What may be a span is the token text of the documents' views: title, body, pseudo-queries. It is what an FM-index is
built from.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int32, Int64

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.corpus.documents import Corpus
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.docids.rows import token_type
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import Vocabulary

PARTS = ("title", "body", "pseudo_query")
KIND = "token_text"
_COLUMNS = ("tokens", "offsets", "documents", "views")
_META = ("view_names", "num_documents", "vocab_size", "corpus", "vocabulary")
_TEXTS_AT_A_TIME = 4096
_MOST = 2**31 - 1  # their numbers are int32


@dataclasses.dataclass(frozen=True)
class TokenText:
    """Segments of tokens: a title, a body, a pseudo-query each. No span crosses from one to the next.

    Attributes:
      tokens: unsigned, [num_tokens]; the segments one after the other.
      offsets: int64[segments + 1]; segment i is tokens[offsets[i]:offsets[i + 1]].
      documents: int32[segments]; the document of each.
      views: int32[segments]; the place in `view_names` of the view that each belongs to.
      view_names: the views. Spans of one view are walked without those of another.
      num_documents: of the corpus; some may have no segment.
      vocab_size: tokens are below.
      corpus: fingerprint of the corpus; "" where there is none.
      vocabulary: fingerprint of the vocabulary; "" where there is none.
    """

    tokens: Int[np.ndarray, " num_tokens"]
    offsets: Int64[np.ndarray, " segments_plus_1"]
    documents: Int32[np.ndarray, " segments"]
    views: Int32[np.ndarray, " segments"]
    view_names: tuple[str, ...]
    num_documents: int
    vocab_size: int
    corpus: str = ""
    vocabulary: str = ""

    @classmethod
    def of(
        cls,
        segments: Iterable[Sequence[int]],
        vocab_size: int,
        *,
        documents: Sequence[int] | None = None,
        views: Sequence[int] | None = None,
        view_names: Sequence[str] = ("body",),
        num_documents: int | None = None,
    ) -> TokenText:
        """Token sequences that are at hand.

        Args:
          segments: tokens of each.
          vocab_size: of the decoder.
          documents: of each; default: a document each.
          views: of each; default: the first.
          view_names: see the class.
          num_documents: default: as many as are named.

        Raises:
          InputError: as `check`.
        """
        rows = [np.asarray(segment, np.int64).reshape(-1) for segment in segments]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        owner = np.arange(len(rows)) if documents is None else np.asarray(documents)
        text = cls(
            tokens=np.concatenate([np.zeros(0, np.int64), *rows]),
            offsets=offsets,
            documents=owner.astype(np.int32),
            views=np.zeros(len(rows), np.int32) if views is None else np.asarray(views, np.int32),
            view_names=tuple(view_names),
            num_documents=int(owner.max(initial=-1)) + 1 if num_documents is None else num_documents,
            vocab_size=vocab_size,
        )
        text.check()
        return dataclasses.replace(text, tokens=text.tokens.astype(token_type(vocab_size)))

    def check(self) -> None:
        """Raises:
        InputError: a token, document or view that there is not; columns whose lengths do not fit.
        """
        segments = len(self.offsets) - 1
        if len(self.documents) != segments or len(self.views) != segments:
            raise InputError(
                f"{segments} segments with {len(self.documents)} documents and {len(self.views)} views",
                "Give each segment a document and a view.",
            )
        if segments < 0 or self.offsets[0] != 0 or self.offsets[-1] != len(self.tokens):
            raise InputError("the offsets do not fit the tokens", "Give offsets from 0 to the number of tokens.")
        if (np.diff(self.offsets) < 0).any():
            raise InputError("the offsets of segments descend", "Give ascending offsets.")
        for name, number in (("documents", self.num_documents), ("tokens of the vocabulary", self.vocab_size)):
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number <= _MOST:
                raise InputError(f"no such number of {name}", f"Give 0 to {_MOST}.", value=number)
        for name, column, limit in (
            ("token", self.tokens, self.vocab_size),
            ("document", self.documents, self.num_documents),
            ("view", self.views, len(self.view_names)),
        ):
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < limit:
                wrong = column[(column < 0) | (column >= limit)][0]
                raise InputError(f"a {name} out of range", f"Give {name}s from 0 to {limit - 1}.", value=int(wrong))
        if len(set(self.view_names)) != len(self.view_names) or not self.view_names:
            raise InputError("views need different names", "Name each view once.", value=self.view_names)

    def without(self, documents: Sequence[int]) -> TokenText:
        """The text without the segments of some documents; all positions stay as they are."""
        kept = np.flatnonzero(~np.isin(self.documents, np.asarray(documents, np.int64)))
        lengths = np.diff(self.offsets)
        tokens = np.asarray(self.tokens)[np.repeat(np.isin(np.arange(len(lengths)), kept), lengths)]
        return dataclasses.replace(
            self,
            tokens=tokens,
            offsets=np.concatenate([[0], np.cumsum(lengths[kept])]).astype(np.int64),
            documents=self.documents[kept],
            views=self.views[kept],
            corpus="",
        )

    def between(self, first: int, last: int) -> TokenText:
        """The text of documents first … last − 1, which are numbered from 0.

        Raises:
          InputError: there are no such documents.
        """
        if not 0 <= first <= last <= self.num_documents:
            raise InputError(
                "a range of documents that there is not",
                f"Give numbers from 0 to {self.num_documents}, the first no larger than the last.",
                value=(first, last),
            )
        kept = np.flatnonzero((self.documents >= first) & (self.documents < last))
        lengths = np.diff(self.offsets)[kept]
        offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
        place = np.repeat(np.asarray(self.offsets)[kept] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return dataclasses.replace(
            self,
            tokens=np.asarray(self.tokens)[place],
            offsets=offsets,
            documents=(self.documents[kept] - first).astype(np.int32),
            views=self.views[kept],
            num_documents=last - first,
            corpus=self.corpus if (first, last) == (0, self.num_documents) else "",
        )

    def joined(self, more: TokenText) -> TokenText:
        """The text with that of further documents, which get the next positions.

        Raises:
          InputError: text of another vocabulary, or with a view that this has not.
        """
        unknown = [name for name in more.view_names if name not in self.view_names]
        if unknown or more.vocab_size != self.vocab_size or more.vocabulary != self.vocabulary:
            raise InputError(
                "text of another vocabulary or of other views",
                f"Tokenise it alike, in some of the views {', '.join(self.view_names)}.",
                value=unknown or more.vocabulary,
            )
        views = np.array([self.view_names.index(name) for name in more.view_names], np.int32)[more.views]
        return dataclasses.replace(
            self,
            tokens=np.concatenate([self.tokens, more.tokens]),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + more.offsets[1:]]),
            documents=np.concatenate([self.documents, self.num_documents + more.documents]).astype(np.int32),
            views=np.concatenate([self.views, views]).astype(np.int32),
            num_documents=self.num_documents + more.num_documents,
            corpus="",
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Writes an artefact of kind "token_text"."""
        meta = {name: getattr(self, name) for name in _META}
        with storage.write_folder(folder, KIND, corpus=self.corpus, meta=meta) as new:
            for name in _COLUMNS:
                np.save(new / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> TokenText:
        """Memory-maps what `save` wrote.

        Raises:
          InputError: `folder` holds no token text, or a truncated or altered one.
        """
        manifest = storage.read_folder(folder, KIND, verify=verify)
        folder = pathlib.Path(folder)
        fields: dict[str, Any] = {name: manifest.meta[name] for name in _META}
        fields |= {name: storage.load_array(folder / f"{name}.npy", mmap=True) for name in _COLUMNS}
        text = cls(**{**fields, "view_names": tuple(fields["view_names"])})
        try:
            text.check()
        except InputError as error:
            raise InputError(f"columns that do not fit: {error.problem}", "Make it again.", file=folder) from error
        return text


def token_text(
    corpus: Corpus,
    vocabulary: Vocabulary,
    *,
    views: Sequence[str] = ("title", "body"),
    pseudo_queries: PseudoQueries | None = None,
    progress: bool = False,
) -> TokenText:
    """Tokenises a corpus' views, without special tokens.

    Args:
      corpus: the documents.
      vocabulary: of the decoder.
      views: "title", "body", "pseudo_query", or several in one view, as SEAL has them: "title+body".
      pseudo_queries: needed for the view of that name.
      progress: show a bar.

    Raises:
      InputError: an unknown view; pseudo-queries that are missing or of another corpus.
    """
    parts = [view.split("+") for view in views]
    for part in (part for view in parts for part in view):
        if part not in PARTS:
            raise InputError("no such view", f"Use {', '.join(PARTS)}, joined by + in one view.", value=part)
        if part == "pseudo_query" and pseudo_queries is None:
            raise InputError("there are no pseudo-queries to make a view of", "Give pseudo_queries.")
    if pseudo_queries is not None and pseudo_queries.corpus not in ("", corpus.fingerprint):
        raise InputError("pseudo-queries of another corpus", "Make them of this one.", value=pseudo_queries.corpus)
    own = np.arange(len(corpus), dtype=np.int32)
    sources: dict[str, tuple[Sequence[str], Int32[np.ndarray, " n"]]] = {
        "title": (corpus.titles, own),
        "body": (corpus.texts, own),
    }
    if pseudo_queries is not None:
        sources["pseudo_query"] = pseudo_queries.texts, pseudo_queries.documents
    kind = token_type(vocabulary.size)
    tokens: list[np.ndarray] = [np.zeros(0, kind)]
    lengths: list[int] = []
    documents, of_view = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    total = sum(len(sources[part][1]) for view in parts for part in view)
    with progress_lib.bar("Tokenising", total, enabled=progress) as bar:
        for place, view in enumerate(parts):
            for part in view:
                texts, owners = sources[part]
                for first in range(0, len(owners), _TEXTS_AT_A_TIME):
                    batch = [texts[i] for i in range(first, min(first + _TEXTS_AT_A_TIME, len(owners)))]
                    encoded = vocabulary.encode_batch(batch)
                    lengths += map(len, encoded)
                    tokens.append(np.fromiter((t for ids in encoded for t in ids), kind, sum(map(len, encoded))))
                    bar.advance(len(batch))
                documents.append(np.asarray(owners, np.int32))
                of_view.append(np.full(len(owners), place, np.int32))
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return TokenText(
        tokens=np.concatenate(tokens),
        offsets=offsets,
        documents=np.concatenate(documents),
        views=np.concatenate(of_view),
        view_names=tuple(views),
        num_documents=len(corpus),
        vocab_size=vocabulary.size,
        corpus=corpus.fingerprint,
        vocabulary=vocabulary.fingerprint,
    )

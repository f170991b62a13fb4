"""BM25, the line that every table is read against. bm25s weighs the terms; analysis, filters and storage are here."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.corpus.documents import Corpus
from gr_jax.dense.base import check_positions
from gr_jax.errors import InputError
from gr_jax.retrievers.analyzers import import_package, make_analyzer
from gr_jax.retrievers.base import Evidence, Ranking, check_question, checked_allowed
from gr_jax.retrievers.postings import Postings

if TYPE_CHECKING:
    from gr_jax.docids.pseudo_queries import PseudoQueries

KIND = "bm25"
# By term: weights and documents of its postings, which begin at its offset. By document: the terms that were read, from
# its start on, and whether it was not removed.
_LARGE = ("weights", "documents", "tokens")
_ARRAYS = {
    "weights": "float32", "documents": "int32", "tokens": "int32", "offsets": "int64", "starts": "int64",
    "living": "bool",
}  # fmt: skip

_IDENTIFIER = re.compile(r"(?u)\w+")
_REMEMBERED = 1 << 16  # words of queries whose terms are known


class BM25:
    """BM25 with Lucene's idf over title and text.

    Documents can be added, removed and expanded: `update` weighs all terms anew from what was read of each document,
    and so leaves the index that would have been made of the documents that are left.

    Args:
      corpus: what is searched.
      expansions: queries made from the documents, the terms of which count as if the documents said them (doc2query,
        Nogueira et al. 2019, arXiv 1904.08375).
      k1: how soon a repeated term stops counting; ≥ 0.
      b: how much longer documents are held back; 0 to 1.
      analyzer: "english": lower-cased words of two letters and more, without English stop words, Snowball stems;
        "character_bigrams": lower-cased pairs of neighbouring characters within words, for languages written without
        spaces (there k1=1.2, b=0.75 do better).
      transform: one of `gr_jax.text.TRANSFORMS`, applied to documents and queries first ("split_identifiers" for code).
      progress: show a bar.

    Raises:
      InputError: a setting is out of its range, or the packages bm25s and PyStemmer are missing.
    """

    nested = True  # a shorter answer is the beginning of a longer one
    reads_corpus = True

    def __init__(
        self,
        corpus: Corpus,
        *,
        expansions: PseudoQueries | None = None,
        k1: float = 0.9,
        b: float = 0.4,
        analyzer: str = "english",
        transform: str = "none",
        progress: bool = False,
    ):
        if not (k1 >= 0 and math.isfinite(k1)):
            raise InputError("BM25's k1 is a number of 0 or more", "Use k1=0.9.", value=k1)
        if not 0 <= b <= 1:
            raise InputError("BM25's b lies between 0 and 1", "Use b=0.4.", value=b)
        self.settings: dict[str, Any] = {"k1": float(k1), "b": float(b), "analyzer": analyzer, "transform": transform}
        self._analyzer = make_analyzer(analyzer, transform)
        self._corpus: Corpus | None = corpus
        self.corpus_fingerprint = corpus.fingerprint
        self._terms: dict[str, int] = {}
        self._living = np.ones(len(corpus), bool)
        rows = self._read(corpus, progress)
        _check_expansions(expansions, corpus.fingerprint)
        self._expand(rows, expansions)
        self._weigh(rows)

    @property
    def num_documents(self) -> int:
        """Positions, those of removed documents included."""
        return len(self._living)

    @property
    def postings(self) -> Postings:
        """What is searched."""
        return Postings(self._weights, self._documents, self._offsets, self.num_documents)

    def asked(self, queries: Sequence[str]) -> list[list[int]]:
        """The numbers of each query's terms, of those that some document has."""
        return [
            [number for word in self._analyzer.words(query) if (number := self._number_of(word)) >= 0]
            for query in queries
        ]

    def _number_of(self, word: str) -> int:
        """The number of a word's term; −1 where no document has it, or an update has not weighed it yet."""
        number = self._numbers.get(word)
        if number is None:
            terms = self._analyzer.terms([word])
            number = self._terms.get(terms[0], -1) if terms else -1
            number = number if number < len(self._offsets) - 1 else -1
            if len(self._numbers) >= _REMEMBERED:
                self._numbers.clear()
            self._numbers[word] = number
        return number

    def retrieve(
        self,
        queries: Sequence[str],
        k: int,
        *,
        allowed: Bool[np.ndarray, " documents"] | Bool[np.ndarray, "batch documents"] | None = None,
        explain: bool = False,
    ) -> Ranking:
        """See `Retriever.retrieve`. A document that shares no term with the query is no result, whatever k is.

        Equal scores keep the documents' order. `explain` names the terms, what each contributed, and, where the index
        knows its corpus, where they stand in the text.
        """
        check_question(queries, k, self.num_documents)
        mask = checked_allowed(allowed, len(queries), self.num_documents)
        asked = self.asked(queries)
        if mask is not None and allowed is not None and allowed.ndim == 1:
            mask = mask[:1]  # stands for all
        doc_index, score = self.postings.search(asked, k, mask)
        if not explain:
            return Ranking(doc_index, score)
        names = list(self._terms)
        evidence = [
            tuple(self._explain(terms, int(document), names) for document in row[row >= 0])
            for terms, row in zip(asked, doc_index, strict=True)
        ]
        return Ranking(doc_index, score, tuple(evidence))

    def update(
        self, add: Corpus | None = None, remove: Sequence[int] = (), expansions: PseudoQueries | None = None
    ) -> BM25:
        """Adds, removes and expands documents.

        Args:
          add: documents; they get the next positions, in their order.
          remove: positions of documents that are no longer found, and count in no statistics. The other positions stay
            as they are.
          expansions: queries of the documents that were there, or of those that are added: of the corpus that they say
            they were made from.

        Returns:
          This index, changed.

        Raises:
          InputError: a position that no document has, or expansions of another corpus.
        """
        removed = check_positions(remove, self.num_documents)
        of_added = add is not None and expansions is not None and expansions.corpus == add.fingerprint
        if not of_added:  # before anything is read: terms that were numbered would stay
            _check_expansions(expansions, self.corpus_fingerprint)
        before = self.num_documents
        rows = [tokens.tolist() for tokens in np.split(np.asarray(self._tokens), self._starts[1:-1])]
        added: list[list[int]] = []
        fingerprint, corpus = self.corpus_fingerprint, self._corpus
        if add is not None:
            added = self._read(add, False)
            corpus = None if corpus is None else Corpus.from_documents(itertools.chain(corpus, add))
            fingerprint = "" if corpus is None else corpus.fingerprint  # "": nobody knows the whole corpus
        self._expand(added if of_added else rows, expansions)
        rows += added
        self._living = np.concatenate([self._living, np.ones(len(added), bool)])
        self._living[removed] = False
        for position in np.flatnonzero(~self._living[:before]):
            rows[position] = []
        self._corpus, self.corpus_fingerprint = corpus, fingerprint
        self._weigh(rows)
        return self

    def save(self, path: str | os.PathLike, *, corpus: str | None = None) -> None:
        """Writes the index as a folder; the corpus itself is not in it.

        Args:
          path: the folder.
          corpus: fingerprint of the corpus that it is to be kept with; None for the one that was indexed.

        Raises:
          InputError: `corpus` is another one than was indexed.
        """
        self._check_corpus(corpus, path)
        meta = {**self.settings, "documents": self.num_documents, "terms": len(self._terms)}
        with storage.write_folder(path, KIND, corpus=self.corpus_fingerprint or corpus or "", meta=meta) as folder:
            for name in _ARRAYS:
                np.save(folder / f"{name}.npy", getattr(self, f"_{name}"))
            (folder / "terms.json").write_text(json.dumps(list(self._terms), ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(
        cls, path: str | os.PathLike, corpus: Corpus | None = None, *, verify: bool = True, mmap: bool = False
    ) -> BM25:
        """Reads what `save` wrote.

        Args:
          path: the folder.
          corpus: the corpus that was indexed; only the places in explanations need it.
          verify: check the checksums; False where that was just done.
          mmap: leave the arrays on disk; those of documents are read once, to check them.

        Raises:
          InputError: not such a folder, altered, or made from another corpus.
        """
        path = pathlib.Path(path)
        manifest = storage.read_folder(path, KIND, verify=verify)
        index = cls.__new__(cls)
        try:
            index.settings = {name: manifest.meta[name] for name in ("k1", "b", "analyzer", "transform")}
            terms = json.loads((path / "terms.json").read_text(encoding="utf-8"))
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise InputError(f"not a readable BM25 index: {error}", "Index the corpus again.", file=path) from error
        index._analyzer = make_analyzer(index.settings["analyzer"], index.settings["transform"])
        index._numbers = {}
        index._corpus = corpus
        index.corpus_fingerprint = manifest.corpus
        index._check_corpus(None if corpus is None else corpus.fingerprint, path)
        index._terms = {term: number for number, term in enumerate(terms)}
        for name, dtype in _ARRAYS.items():
            array = storage.load_array(path / f"{name}.npy", mmap=mmap and name in _LARGE, dtype=dtype, ndim=1)
            setattr(index, f"_{name}", array)
        index._living = np.array(index._living)  # updates write into it
        index._check_postings(path)
        return index

    def _check_postings(self, path: pathlib.Path) -> None:
        """The compiled loop looks nothing up twice: what it would read beyond an array's end is refused here."""
        offsets, documents, weights = self._offsets, self._documents, self._weights
        fits = len(offsets) == len(self._terms) + 1 and offsets[0] == 0 and bool((np.diff(offsets) >= 0).all())
        fits = fits and offsets[-1] == len(documents) == len(weights)
        if not fits or (len(documents) and not 0 <= documents.min() <= documents.max() < self.num_documents):
            raise InputError("the postings do not fit the terms and documents", "Index the corpus again.", file=path)

    def _check_corpus(self, fingerprint: str | None, path: str | os.PathLike) -> None:
        if self.corpus_fingerprint and fingerprint not in (None, self.corpus_fingerprint):
            raise InputError(
                f"this index was made from the corpus {self.corpus_fingerprint}, not from the one given",
                "Use the corpus that it was made from, or index this corpus.",
                file=path,
                value=fingerprint,
            )

    def _read(self, corpus: Corpus, progress: bool) -> list[list[int]]:
        """The terms of each document, numbered by first appearance: the same corpus gives the same files."""
        rows: list[list[int]] = []
        with progress_lib.bar("Reading words for BM25", len(corpus), enabled=progress) as bar:
            for text in corpus.contents:
                rows.append(self._number(text))
                bar.advance()
        return rows

    def _number(self, text: str) -> list[int]:
        return [self._terms.setdefault(term, len(self._terms)) for term in self._analyze(text)]

    def _analyze(self, text: str) -> list[str]:
        return self._analyzer.terms(self._analyzer.words(text))

    def _expand(self, rows: list[list[int]], expansions: PseudoQueries | None) -> None:
        """Adds the terms of queries to their documents."""
        if expansions is None:
            return
        for query, document in zip(expansions.texts, np.asarray(expansions.documents).tolist(), strict=True):
            rows[document] += self._number(query)

    def _weigh(self, rows: list[list[int]]) -> None:
        """Keeps what was read, and has every term weighed in every living document."""
        self._starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        self._tokens = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(self._starts[-1]))
        living = np.flatnonzero(self._living)
        weigh = {name: self.settings[name] for name in ("k1", "b")}
        self._weights, places, self._offsets = _weigh((rows[position] for position in living), self._terms, **weigh)
        self._documents = living[places].astype(np.int32)
        self._numbers: dict[str, int] = {}  # of queries' words: none that was asked for before is right now

    def _explain(self, terms: Sequence[int], document: int, names: Sequence[str]) -> tuple[Evidence, ...]:
        """The query's terms in one document, the weightiest first."""
        found = []
        for term, times in Counter(terms).items():
            start, end = int(self._offsets[term]), int(self._offsets[term + 1])
            place = start + int(np.searchsorted(self._documents[start:end], document))
            if place < end and self._documents[place] == document:
                spans = self._spans(names[term], document)
                found.append(Evidence("term", names[term], times * float(self._weights[place]), spans=spans))
        return tuple(sorted(found, key=lambda reason: (-reason.score, reason.text)))

    def _spans(self, term: str, document: int) -> tuple[tuple[int, int], ...]:
        if self._corpus is None:
            return ()
        text = self._corpus[document].text
        if self.settings["analyzer"] == "character_bigrams":
            return tuple(match.span() for match in re.finditer(f"(?i:{re.escape(term)})", text))
        return tuple(match.span() for match in _IDENTIFIER.finditer(text) if term in self._analyze(match[0]))


def _check_expansions(expansions: PseudoQueries | None, fingerprint: str) -> None:
    if expansions is not None and expansions.corpus and fingerprint and expansions.corpus != fingerprint:
        raise InputError(
            f"these queries were made from the corpus {expansions.corpus}, not from {fingerprint}",
            "Make queries from this corpus.",
        )


def _weigh(
    rows: Iterable[list[int]], terms: dict[str, int], k1: float, b: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """BM25's weight of every term in every row, by term: weights float32, rows int32, offsets int64."""
    bm25s = import_package("bm25s")
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    rows = list(rows)
    if not any(rows):
        return np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(len(terms) + 1, np.int64)
    weigher = bm25s.BM25(k1=k1, b=b, method="lucene")
    weigher.index((rows, dict(terms)), create_empty_token=False, show_progress=False)
    scores = weigher.scores
    return (
        np.asarray(scores["data"], np.float32),
        np.asarray(scores["indices"], np.int32),
        np.asarray(scores["indptr"], np.int64),
    )

"""SEAL's scorer: documents from weighted n-grams (Bevilacqua et al. 2022, arXiv 2204.10628, section 3.2).

An n-gram weighs by how much likelier it is after the query than anywhere: w = max(0, logit p(n|q) − logit p(n))^α,
where logit p = log p − log(1 − p) and p(n) = (count + s) / (tokens + s). N-grams that are rare enough nominate
documents. A nominated document takes its n-grams from the weightiest on, each where nothing else stands yet, and each
for w · (1 − β + β · the share of its different tokens that are new to the document); a token that no n-gram covers
counts by its own weight, without α.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from gr_jax.dense.base import optional
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError

_SURE = 1e-10  # log-probabilities are so far below 0 at least: the logit of 1 is infinite


class Ngrams(NamedTuple):
    """N-grams of one query.

    Attributes:
      tokens: int32[n, width]; `lengths` of each count.
      lengths: int32[n], 1 or more.
      roots: int32[n], the view in which each stands; plus the number of views where it must be a whole segment.
      log_probs: float[n], log p(n|q).
      low, high: int32[n] or int32[n, parts], its rows in the index, or in each part of it; see `FMIndex.rows`.
      counts: int64[n], how often it stands in the corpus.
    """

    tokens: Int[np.ndarray, "n width"]
    lengths: Int[np.ndarray, " n"]
    roots: Int[np.ndarray, " n"]
    log_probs: Float[np.ndarray, " n"]
    low: Int[np.ndarray, "n ..."]
    high: Int[np.ndarray, "n ..."]
    counts: Int[np.ndarray, " n"]


class Weighted(NamedTuple):
    """N-grams with their weights, the weightiest first, each once; and the weights of single tokens."""

    ngrams: Ngrams
    weights: Float64[np.ndarray, " n"]
    singles: Float64[np.ndarray, " vocab"]


class Counted(NamedTuple):
    """What counted in a document.

    Attributes:
      tokens: of the n-gram.
      view: its number; None for a token alone.
      score: what it added.
      place: of its first token, among those of the document's segments one after the other.
    """

    tokens: tuple[int, ...]
    view: int | None
    score: float
    place: int


@dataclasses.dataclass(frozen=True)
class NgramScoring:
    """The scorer's settings; defaults are those of SEAL's released code.

    Attributes:
      alpha: power of an n-gram's weight.
      beta: how much of a weight is lost where all tokens of the n-gram are covered: 0 nothing, 1 all.
      smoothing: s of p(n).
      most_occurrences: an n-gram that stands more often nominates no document.
      most_documents: nominated for a query.

    Raises:
      InputError: a number out of its range.
    """

    alpha: float = 2.0
    beta: float = 0.8
    smoothing: float = 5.0
    most_occurrences: int = 1500
    most_documents: int = 1500

    def __post_init__(self) -> None:
        for name, fits, right in (
            ("alpha", self.alpha >= 0, "0 or more"),
            ("beta", 0 <= self.beta <= 1, "0 to 1"),
            ("smoothing", self.smoothing > 0, "above 0"),
            ("most_occurrences", self.most_occurrences >= 1, "1 or more"),
            ("most_documents", self.most_documents >= 1, "1 or more"),
        ):
            if not fits:
                raise InputError(f"{name} is out of range", f"Give {name} {right}.", value=getattr(self, name))


def log_odds(log_prob: Float[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The logit of a probability, from its logarithm."""
    x = np.minimum(np.asarray(log_prob, np.float64), -_SURE)
    return x - np.log(-np.expm1(x))


class NgramScorer:
    """Documents from n-grams.

    Args:
      text: of the index, whose segments are read again to score documents.
      row_documents: the document of each of the index' rows; see `FMIndex`.
      settings: see `NgramScoring`.

    Raises:
      InputError: rows of documents that there are not; the package numba is not installed.
    """

    def __init__(
        self,
        text: TokenText,
        row_documents: Int[np.ndarray, " rows"],
        settings: NgramScoring | None = None,
    ):
        optional("numba", "Scoring documents by n-grams")
        self.settings = NgramScoring() if settings is None else settings
        self.text, self.row_documents = text, np.ascontiguousarray(row_documents, np.int32)
        wrong = (self.row_documents < 0) | (self.row_documents >= text.num_documents)
        if wrong.any():
            raise InputError(
                f"a row of an FM-index leads to a document that is not among the {text.num_documents} of the text",
                "Give the rows and the text of one index.",
                value=int(self.row_documents[wrong][0]),
            )
        self._tokens = np.ascontiguousarray(text.tokens, np.int32)
        self._offsets = np.ascontiguousarray(text.offsets, np.int64)
        self._views = np.ascontiguousarray(text.views, np.int32)
        self._own = np.argsort(text.documents, kind="stable").astype(np.int32)

    @functools.cached_property
    def _starts(self) -> Int[np.ndarray, " documents_plus_1"]:
        """Where each document's segments begin among `_own`. Made when first needed: what was loaded has then been
        compared with its index, and has no more documents than that."""
        ordered = np.asarray(self.text.documents)[self._own]
        return np.searchsorted(ordered, np.arange(self.text.num_documents + 1)).astype(np.int64)

    @functools.cached_property
    def token_counts(self) -> Int[np.ndarray, " vocab"]:
        """How often each token stands in the text."""
        return np.bincount(self._tokens, minlength=self.text.vocab_size)

    @functools.cached_property
    def _longest(self) -> int:
        lengths = np.diff(self._offsets)
        return max(1, int(np.bincount(self.text.documents, lengths, 1).max(initial=1)))

    @property
    def num_views(self) -> int:
        """Of the text."""
        return len(self.text.view_names)

    def weights(self, log_probs: Float[np.ndarray, " n"], counts: Int[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """max(0, logit p(n|q) − logit p(n)), without the power."""
        smooth = self.settings.smoothing
        chance = np.log((np.asarray(counts, np.float64) + smooth) / (len(self._tokens) + smooth))
        return np.maximum(log_odds(log_probs) - log_odds(chance), 0.0)

    def weighted(
        self,
        ngrams: Ngrams,
        single_tokens: Int[np.ndarray, " m"] | None = None,
        single_log_probs: Float[np.ndarray, " m"] | None = None,
    ) -> Weighted:
        """Weighs n-grams; of equal ones the likeliest stays.

        Args:
          ngrams: of one query, in any order.
          single_tokens, single_log_probs: tokens that count where no n-gram covers them; those that are n-grams
            themselves do not.
        """
        weights = np.where(ngrams.counts > 0, self.weights(ngrams.log_probs, ngrams.counts), 0.0)
        weights = np.where(weights > 0, weights**self.settings.alpha, 0.0)  # 0 to the power of 0 is 1
        tokens = np.where(np.arange(ngrams.tokens.shape[1]) < ngrams.lengths[:, None], ngrams.tokens, -1)
        singles = np.zeros(self.text.vocab_size)
        if single_tokens is not None and single_log_probs is not None:
            alone = self.weights(single_log_probs, self.token_counts[single_tokens])
            singles[single_tokens] = np.where(self.token_counts[single_tokens] > 0, alone, 0.0)
            singles[ngrams.tokens[ngrams.lengths == 1, 0]] = 0.0
        order = np.lexsort((*tokens.T[::-1], ngrams.roots, -weights))
        _, once = np.unique(np.column_stack([ngrams.roots, tokens])[order], axis=0, return_index=True)
        order = order[np.sort(once)]
        order = order[weights[order] > 0]
        kept = Ngrams(*(np.ascontiguousarray(column[order]) for column in ngrams))
        return Weighted(kept, weights[order], singles)

    def search(
        self, found: Weighted, k: int, allowed: Bool[np.ndarray, " documents"] | None = None
    ) -> tuple[Int[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """The k best documents and their scores, best first; equal scores by lower position.

        Where no n-gram is rare enough to nominate documents that are allowed, the rarest that does it does.

        Raises:
          InputError: rows that the index does not have.
        """
        from gr_jax.retrievers import ngram_loops  # compiled when a search first needs it

        ngrams = found.ngrams
        if not len(ngrams.lengths):
            return np.zeros(0, np.int32), np.zeros(0)
        if not ((ngrams.low >= 0) & (ngrams.low <= ngrams.high) & (ngrams.high <= len(self.row_documents))).all():
            raise InputError("n-grams of rows that the index does not have", "Index the documents again.")
        rare = ngrams.counts <= self.settings.most_occurrences
        levels = ([rare] if rare.any() else []) + [ngrams.counts == count for count in np.unique(ngrams.counts[~rare])]
        documents, scores = np.empty(k, np.int32), np.empty(k)
        for nominates in levels:
            count = ngram_loops.search(
                *self._arguments(found),
                *(np.ascontiguousarray(rows, np.int32).reshape(len(rows), -1) for rows in (ngrams.low, ngrams.high)),
                self.row_documents,
                nominates,
                *self._texts,
                self.num_views,
                np.zeros(0, bool) if allowed is None else np.ascontiguousarray(allowed),
                self._longest,
                self.settings.most_documents,
                documents,
                scores,
            )
            if count or allowed is None:
                break
        return documents[:count], scores[:count]

    def explain(self, found: Weighted, document: int) -> list[Counted]:
        """What counted in a document, the weightiest first."""
        ngrams = found.ngrams
        counted = []
        for number, score, place in self.parts(found, document):
            if number < 0:
                counted.append(Counted((-1 - number,), None, score, place))
            else:
                tokens = ngrams.tokens[number, : ngrams.lengths[number]].tolist()
                counted.append(Counted(tuple(tokens), int(ngrams.roots[number]) % self.num_views, score, place))
        return counted

    def parts(self, found: Weighted, document: int) -> list[tuple[int, float, int]]:
        """What counted in a document, the weightiest first: the n-gram's number among those that were found, or
        −1 − a token that counts alone; what it added; and the place of its first token."""
        from gr_jax.retrievers import ngram_loops

        parts = ngram_loops.explain(*self._arguments(found), *self._texts, self.num_views, self._longest, int(document))
        return sorted(zip(*(part.tolist() for part in parts), strict=True), key=lambda one: (-one[1], one[2]))

    @property
    def _texts(self) -> tuple[np.ndarray, ...]:
        return self._tokens, self._offsets, self._views, self._own, self._starts

    def _arguments(self, found: Weighted) -> tuple:
        ngrams = found.ngrams
        columns = (np.ascontiguousarray(x, np.int32) for x in (ngrams.tokens, ngrams.lengths, ngrams.roots))
        return *columns, found.weights, found.singles, float(self.settings.beta)

"""Rows of n-grams for lists of candidates, as the network reads them, and batches of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int, Int32

from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.training.ranked_lists import DrawnLists
from gr_jax.training.source_batches import NumberedIterator, TargetBatches

Lists = Int[np.ndarray, "questions documents"]
# Place in a question's lists → the n-grams of the document there, and for which share of its weight each counts.
Parts = Mapping[int, tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]]
SHORTER = (8, 4, 2)  # each length of a row is a program of its own


@dataclasses.dataclass(frozen=True)
class ListRows:
    """Makes rows of questions' views and the n-grams of their candidates.

    Attributes:
      candidates: of all questions.
      sources: what the network reads, a row for each view of each question.
      views: of a question.
      targets: tokens of a row at most.
      ngrams: of a row at most.
      encoded: states of the sources' tokens; None leaves them to the network.
    """

    candidates: Candidates
    sources: Int32[np.ndarray, "rows source"]
    views: int
    targets: int
    ngrams: int
    encoded: Float[np.ndarray, "rows source e"] | None = None

    def batch(self, questions: Sequence[int] | Int[np.ndarray, " questions"], lists: Lists) -> dict[str, np.ndarray]:
        """The n-grams of some lists. Where a row has no room for all, those that documents' scores are made of the
        most stay. Rows are as long as the batch needs: of `targets` tokens and `ngrams` n-grams, or of one of
        `SHORTER` parts of that.

        Args:
          questions: their numbers.
          lists: of each, places among its candidates; −1 is no document.

        Returns:
          What `passage_scores.scores_of_batch` reads.
        """
        views, (count, length) = self.views, lists.shape
        rows = (np.asarray(questions)[:, None] * views + np.arange(views)).ravel()
        parts = [self._parts(int(one), documents.tolist()) for one, documents in zip(questions, lists, strict=True)]
        chosen = [self._chosen(of) for of in parts]
        targets, ngrams = self._size(chosen)
        shape = (count * views, targets)
        batch = {
            "encoder_input_tokens": self.sources[rows],
            **{f"decoder_{name}": np.zeros(shape, np.int32) for name in ("input_tokens", "target_tokens")},
            "decoder_segment_ids": np.zeros(shape, np.int32),
            "log_chance": np.zeros((count * views, ngrams), np.float32),
            "single": np.zeros((count * views, ngrams), bool),
            "coefficients": np.zeros((count, length, views * ngrams), np.float32),
        }
        if self.encoded is not None:
            batch["encoded"] = self.encoded[rows]
        for place, (of, kept) in enumerate(zip(parts, chosen, strict=True)):
            self._fill(batch, place, of, kept)
        return batch

    def held(self, question: int, documents: Sequence[int]) -> Float[np.ndarray, " documents"]:
        """Which share of its score, as it was retrieved, each document of a question's lists has in a batch.

        Args:
          question: its number.
          documents: places among its candidates.
        """
        of = self._parts(question, documents)
        kept = self._chosen(of)
        shares = np.zeros(len(documents))
        for at, (ngrams, coefficients) in of.items():
            there = np.isin(ngrams, kept)
            score = float(np.sum((coefficients * self.candidates.weights[ngrams])[there]))
            shares[at] = score / max(float(self.candidates.scores[question, documents[at]]), 1e-30)
        return shares

    def _parts(self, question: int, documents: Sequence[int]) -> Parts:
        """Place in the lists → the n-grams of the document there, and for which share of its weight each counts."""
        return {at: self.candidates.parts_of(question, one) for at, one in enumerate(documents) if one >= 0}

    def _chosen(self, of: Parts) -> list[int]:
        """The n-grams that rows have room for, those that count for the most of all scores first."""
        total: dict[int, float] = {}
        for ngrams, coefficients in of.values():
            counted = coefficients * self.candidates.weights[ngrams]
            for ngram, score in zip(ngrams.tolist(), counted.tolist(), strict=True):
                total[ngram] = total.get(ngram, 0.0) + score
        at, filled, chosen = [0] * self.views, [0] * self.views, list[int]()
        for ngram in sorted(total, key=lambda one: (-total[one], one)):
            view, size = int(self.candidates.views[ngram]), int(self.candidates.lengths[ngram])
            if at[view] + size <= self.targets and filled[view] < self.ngrams:
                chosen.append(ngram)
                at[view], filled[view] = at[view] + size, filled[view] + 1
        return chosen

    def _size(self, chosen: Sequence[Sequence[int]]) -> tuple[int, int]:
        """Tokens and n-grams of a row: the smallest part of what there is room for that holds every row."""
        longest = fullest = 0
        for kept in chosen:
            views = self.candidates.views[kept]
            longest = max(longest, *np.bincount(views, self.candidates.lengths[kept], self.views).astype(int).tolist())
            fullest = max(fullest, *np.bincount(views, minlength=self.views).tolist())
        for part in SHORTER:
            targets, ngrams = self.targets // part, self.ngrams // part
            if longest <= targets and fullest <= ngrams:
                return targets, ngrams
        return self.targets, self.ngrams

    def _fill(self, batch: dict[str, np.ndarray], place: int, of: Parts, kept: Sequence[int]) -> None:
        ngrams = batch["log_chance"].shape[1]
        at, filled = [0] * self.views, [0] * self.views
        column: dict[int, int] = {}
        for ngram in kept:
            view, size = int(self.candidates.views[ngram]), int(self.candidates.lengths[ngram])
            row, part = place * self.views + view, slice(at[view], at[view] + size)
            tokens = self.candidates.tokens[ngram, :size]
            batch["decoder_target_tokens"][row, part] = tokens
            batch["decoder_input_tokens"][row, part] = [0, *tokens[:-1]]
            batch["decoder_segment_ids"][row, part] = filled[view] + 1
            batch["log_chance"][row, filled[view]] = self.candidates.log_chance[ngram]
            batch["single"][row, filled[view]] = self.candidates.single[ngram]
            column[ngram] = view * ngrams + filled[view]
            at[view], filled[view] = at[view] + size, filled[view] + 1
        for document, (its_own, coefficients) in of.items():
            for ngram, coefficient in zip(its_own.tolist(), coefficients.tolist(), strict=True):
                if ngram in column:
                    batch["coefficients"][place, document, column[ngram]] = coefficient


class ListBatches:
    """Batches of lists without end, and beside each one of what to write; batch n depends on the seed and n alone.

    Args:
      lists: of questions.
      rows: what the network reads of them.
      written: batches of what to write; None: nothing is written.
      batch_size: questions of a batch.
    """

    def __init__(self, lists: DrawnLists, rows: ListRows, written: TargetBatches | None, batch_size: int):
        self._lists, self._rows, self._written, self.batch_size = lists, rows, written, batch_size
        self.settings = {
            "lists": lists.fingerprint, "batch_size": batch_size, "targets": rows.targets, "ngrams": rows.ngrams,
            "written": None if written is None else written.settings,
        }  # fmt: skip

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a batch."""
        return {name: one.shape for name, one in self.batch(0).items()}

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Batch `number`."""
        lists = self._lists.batch(number, self.batch_size)
        batch = self._rows.batch(lists.questions, lists.places.reshape(self.batch_size, -1)) | lists.features
        if self._written is not None:
            its_own = self._written.batch(number)
            assert its_own is not None
            batch |= {f"write_{name}": one for name, one in its_own.items()}
        return batch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return NumberedIterator(self)

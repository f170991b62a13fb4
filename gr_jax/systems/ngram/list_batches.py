"""Rows of n-grams for lists of candidates, as the network reads them, and batches of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int, Int32

from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.prefixes import Prefixes, empty, fewest
from gr_jax.training.batches import own_rows
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
      prefixes: of a row at most; what the network reads of n-grams, see `prefixes.Prefixes`.
      ngrams: of a row at most.
      encoded: states of the sources' tokens; None leaves them to the network.
    """

    candidates: Candidates
    sources: Int32[np.ndarray, "rows source"]
    views: int
    prefixes: int
    ngrams: int
    encoded: Float[np.ndarray, "rows source e"] | None = None

    def batch(self, questions: Sequence[int] | Int[np.ndarray, " questions"], lists: Lists) -> dict[str, np.ndarray]:
        """The n-grams of some lists. Where a row has no room for all, those that documents' scores are made of the
        most stay. Rows are as long as the batch needs: of `prefixes` and `ngrams`, or of one of `SHORTER` parts of
        that.

        Args:
          questions: their numbers.
          lists: of each, places among its candidates; −1 is no document.

        Returns:
          What `passage_scores.scores_of_batch` reads.
        """
        views, (count, length) = self.views, lists.shape
        rows = (np.asarray(questions)[:, None] * views + np.arange(views)).ravel()
        parts = [self._parts(int(one), documents.tolist()) for one, documents in zip(questions, lists, strict=True)]
        kept = [self._kept(of) for of in parts]
        prefixes, ngrams = self._size([tree for trees, _ in kept for tree in trees])
        batch = {
            "encoder_input_tokens": self.sources[rows],
            **empty(count * views, prefixes, ngrams, self.candidates.tokens.shape[1]),
            "log_chance": np.zeros((count * views, ngrams), np.float32),
            "single": np.zeros((count * views, ngrams), bool),
            "coefficients": np.zeros((count, length, views * ngrams), np.float32),
        }
        if self.encoded is not None:
            batch["encoded"] = self.encoded[rows]
        for place, (of, (trees, places)) in enumerate(zip(parts, kept, strict=True)):
            for view, tree in enumerate(trees):
                tree.fill(batch, place * views + view)
            column: dict[int, int] = {}
            for ngram, (view, at) in places.items():
                row, column[ngram] = place * views + view, view * ngrams + at
                batch["log_chance"][row, at] = self.candidates.log_chance[ngram]
                batch["single"][row, at] = self.candidates.single[ngram]
            for document, (its_own, coefficients) in of.items():
                for ngram, coefficient in zip(its_own.tolist(), coefficients.tolist(), strict=True):
                    if ngram in column:
                        batch["coefficients"][place, document, column[ngram]] = coefficient
        return batch

    def held(self, question: int, documents: Sequence[int]) -> Float[np.ndarray, " documents"]:
        """Which share of its score, as it was retrieved, each document of a question's lists has in a batch.

        Args:
          question: its number.
          documents: places among its candidates.
        """
        of = self._parts(question, documents)
        kept = list(self._kept(of)[1])
        shares = np.zeros(len(documents))
        for at, (ngrams, coefficients) in of.items():
            there = np.isin(ngrams, kept)
            score = float(np.sum((coefficients * self.candidates.weights[ngrams])[there]))
            shares[at] = score / max(float(self.candidates.scores[question, documents[at]]), 1e-30)
        return shares

    def _parts(self, question: int, documents: Sequence[int]) -> Parts:
        """Place in the lists → the n-grams of the document there, and for which share of its weight each counts."""
        return {at: self.candidates.parts_of(question, one) for at, one in enumerate(documents) if one >= 0}

    def _kept(self, of: Parts) -> tuple[list[Prefixes], dict[int, tuple[int, int]]]:
        """The n-grams that rows have room for, those that count for the most of all scores first: a row of each view,
        and n-gram → view and place in its row."""
        total: dict[int, float] = {}
        for ngrams, coefficients in of.values():
            counted = coefficients * self.candidates.weights[ngrams]
            for ngram, score in zip(ngrams.tolist(), counted.tolist(), strict=True):
                total[ngram] = total.get(ngram, 0.0) + score
        trees = [Prefixes(self.prefixes, self.ngrams) for _ in range(self.views)]
        places: dict[int, tuple[int, int]] = {}
        for ngram in sorted(total, key=lambda one: (-total[one], one)):
            view, size = int(self.candidates.views[ngram]), int(self.candidates.lengths[ngram])
            if trees[view].add(self.candidates.tokens[ngram, :size].tolist()):
                places[ngram] = view, len(trees[view].ngrams) - 1
        return trees, places

    def _size(self, trees: Sequence[Prefixes]) -> tuple[int, int]:
        """Prefixes and n-grams of a row: the smallest part of what there is room for that holds every row."""
        needed = fewest(trees)
        for part in SHORTER:
            prefixes, ngrams = self.prefixes // part, self.ngrams // part
            if needed[0] <= prefixes and needed[1] <= ngrams:
                return prefixes, ngrams
        return self.prefixes, self.ngrams


class ListBatches:
    """Batches of lists without end, and beside each one of what to write; batch n depends on the seed and n alone.

    Args:
      lists: of questions.
      rows: what the network reads of them.
      written: batches of what to write, of the same process; None: nothing is written.
      batch_size: questions of a batch, over all processes.
      process: (index, count) of this host; None asks JAX.

    Raises:
      InputError: the questions of a batch cannot be split over the processes.
    """

    def __init__(
        self,
        lists: DrawnLists,
        rows: ListRows,
        written: TargetBatches | None,
        batch_size: int,
        *,
        process: tuple[int, int] | None = None,
    ):
        self._local = own_rows(batch_size, process, "questions")
        self._lists, self._rows, self._written, self.batch_size = lists, rows, written, batch_size
        self.settings = {
            "lists": lists.fingerprint, "batch_size": batch_size, "prefixes": rows.prefixes, "ngrams": rows.ngrams,
            "written": None if written is None else written.settings,
        }  # fmt: skip

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of a batch over all processes."""
        shapes = {name: one.shape for name, one in self._ranked(0).items()}
        if self._written is not None:
            shapes |= {f"write_{name}": shape for name, shape in self._written.input_shapes.items()}
        return shapes

    def _ranked(self, number: int) -> dict[str, np.ndarray]:
        """Batch `number` of all processes, without what is written beside it."""
        lists = self._lists.batch(number, self.batch_size)
        return self._rows.batch(lists.questions, lists.places.reshape(self.batch_size, -1)) | lists.features

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """This process's rows of batch `number`: its questions with all of their views."""
        # Made of all questions, as rows are as long in every process as one of them needs.
        batch = {}
        for name, one in self._ranked(number).items():
            each = len(one) // self.batch_size  # rows of a question
            batch[name] = one[self._local.start * each : self._local.stop * each]
        if self._written is not None:
            its_own = self._written.batch(number)
            assert its_own is not None
            batch |= {f"write_{name}": one for name, one in its_own.items()}
        return batch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return NumberedIterator(self)

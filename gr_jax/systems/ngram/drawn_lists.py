"""Ranked lists of a student's candidates, and batches of them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float32, Int

from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.list_batches import ListRows
from gr_jax.training.source_batches import NumberedIterator, TargetBatches

LISTS = 2  # of a question: behind its best document, and behind one at random


@dataclasses.dataclass(frozen=True)
class Drawing:
    """How lists are drawn.

    Attributes:
      length: documents of a list.
      pool: negatives are drawn from so many of the best; None: from all candidates.
      labelled: lists begin with documents that answer the question.
      seed: of the drawing.
    """

    length: int
    pool: int | None
    labelled: bool
    seed: int


class DrawnLists:
    """Lists of questions whose order can be learned. A question has two: the first begins with its best document, the
    second with one at random; both have the student's best other document, and others at random, as the teacher orders
    them.

    Labelled, what a list begins with answers the question, and the rest does not. A question is left out where nothing
    that was found answers it, where there are fewer other documents than a list needs, and where the best that answers
    is above all others by the margin already (DGR's released code). Without labels, the teacher's best document is the
    first, and all of a list are in its order.

    Args:
      dataset: the documents and the labels, of train.
      found: candidates of the questions of train, in their order.
      teacher: float32[questions, candidates], NaN behind all others; None: the student's order.
      drawing: see `Drawing`.
      margin: of the student's scores, by which a question is learned already.

    Raises:
      InputError: a teacher's scores do not fit; no question has a list.
    """

    def __init__(
        self,
        dataset: Dataset,
        found: Candidates,
        teacher: Float32[np.ndarray, "questions c"] | None,
        drawing: Drawing,
        margin: float,
    ):
        if teacher is not None and teacher.shape != found.documents.shape:
            raise InputError(
                f"a teacher's scores of {teacher.shape}, and candidates of {found.documents.shape}", "Ask it again."
            )
        if teacher is not None and np.isinf(teacher).any():
            raise InputError("a teacher's scores are not finite", "Correct the teacher.", value=float("inf"))
        self._found, self.drawing = found, drawing
        self._scores = np.asarray(found.scores if teacher is None else teacher)
        self._relevant = _relevant(dataset, found)
        self.left_out: dict[str, int] = {}
        self.questions = np.array([i for i in range(len(found)) if self._counts(i, margin)], np.int64)
        if not len(self.questions):
            raise InputError(
                f"no question has a list to learn from: {self.left_out}",
                "Find more candidates, shorten the lists, or leave labels out (Distilling.labelled = False).",
            )

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all that lists are drawn from."""
        digest = hashlib.sha256(repr((self.drawing, self.questions.tolist())).encode())
        for array in (self._found.documents, self._scores, self._relevant):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def counts(self) -> dict[str, int]:
        """Questions with lists, and those that were left out, by why."""
        return {"questions": len(self.questions), **self.left_out}

    def draw(
        self, question: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "lists length"], Float32[np.ndarray, "lists length"]]:
        """Places among the question's candidates in the order that is to be learned, and the teacher's scores."""
        count = int((self._found.documents[question] >= 0).sum())
        places = np.arange(count)
        positive = places[self._relevant[question, :count]] if self.drawing.labelled else places[:0]
        others = places[~self._relevant[question, :count]] if self.drawing.labelled else places
        pool = others if self.drawing.pool is None else others[: self.drawing.pool + (not self.drawing.labelled)]
        number = self.drawing.length - (1 if self.drawing.labelled else 0)
        lists = np.empty((LISTS, self.drawing.length), np.int64)
        for row in range(LISTS):
            first = pool[:1]
            if not self.drawing.labelled and row == 0:
                best = pool[self._by_teacher(question, pool)[:1]]
                first = np.unique(np.concatenate([first, best]))[: max(1, number)]
            rest = rng.permutation(np.setdiff1d(pool, first))[: number - len(first)]
            chosen = np.concatenate([first, rest])
            ordered = chosen[self._by_teacher(question, chosen)]
            if not self.drawing.labelled:
                lists[row] = ordered
                continue
            head = 0 if row == 0 else int(rng.integers(len(positive)))
            lists[row] = np.concatenate([positive[head : head + 1], ordered])
        return lists, self._scores[question][lists]

    def _by_teacher(self, question: int, places: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The order of some candidates, best first; those without a score last, in the student's order."""
        scores = np.where(np.isnan(self._scores[question, places]), -np.inf, self._scores[question, places])
        return np.lexsort((places, -scores))

    def _counts(self, question: int, margin: float) -> bool:
        """Whether a question has lists; notes why where it has none."""
        count = int((self._found.documents[question] >= 0).sum())
        relevant, scores = self._relevant[question, :count], self._found.scores[question, :count]
        why = ""
        if not self.drawing.labelled:
            if count < self.drawing.length:
                why = "fewer candidates than a list has"
        elif not relevant.any():
            why = "nothing found answers them"
        elif (~relevant).sum() < self.drawing.length - 1:
            why = "fewer other candidates than a list has"
        elif scores[relevant][0] >= scores[~relevant][0] + margin:
            why = "learned already"
        if why:
            self.left_out[why] = self.left_out.get(why, 0) + 1
        return not why


def _relevant(dataset: Dataset, found: Candidates) -> Bool[np.ndarray, "questions c"]:
    relevant = np.zeros(found.documents.shape, bool)
    for row, grades in enumerate(dataset.split("train").values()):
        right = [dataset.corpus.index_of(doc_id) for doc_id, grade in grades.items() if grade > 0]
        relevant[row] = np.isin(found.documents[row], right)
    return relevant


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
        order, seed = self._lists.questions, self._lists.drawing.seed
        per_epoch = -(-len(order) // self.batch_size)
        epoch, place = divmod(number, per_epoch)
        shuffled = np.random.default_rng([seed, epoch]).permutation(order)
        chosen = shuffled[place * self.batch_size : (place + 1) * self.batch_size]
        drawn = [self._lists.draw(int(one), np.random.default_rng([seed, epoch, int(one)])) for one in chosen]
        length = self._lists.drawing.length
        places = np.full((self.batch_size, LISTS, length), -1, np.int64)
        teacher = np.full(places.shape, np.nan, np.float32)
        for row, (own, scores) in enumerate(drawn):
            places[row], teacher[row] = own, scores
        questions = np.concatenate([chosen, np.repeat(chosen[:1], self.batch_size - len(chosen))])
        batch = self._rows.batch(questions, places.reshape(self.batch_size, -1))
        batch |= {"list_valid": places >= 0, "list_teacher": teacher}
        if self._written is not None:
            its_own = self._written.batch(number)
            assert its_own is not None
            batch |= {f"write_{name}": one for name, one in its_own.items()}
        return batch

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return NumberedIterator(self)

"""Ranked lists of documents that a student found, in the order that a teacher gives them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from gr_jax.errors import InputError
from gr_jax.losses.ranking import RankedLists, RankingLoss

LISTS = 2  # of a question: behind its best document, and behind one at random


class Found(Protocol):
    """Documents of each question as a student found them, best first.

    Attributes:
      documents: int32[questions, c], −1 where fewer were found.
      scores: float32[questions, c], as they were retrieved; anything where there is no document.
    """

    @property
    def documents(self) -> Int32[np.ndarray, "questions c"]: ...
    @property
    def scores(self) -> Float32[np.ndarray, "questions c"]: ...


class BatchOfLists(NamedTuple):
    """The lists of a batch of questions.

    Attributes:
      questions: int64[batch], their numbers; the last ones of an epoch are filled up with the first, without a list.
      places: int64[batch, lists, length], places among each question's candidates in the order that is to be learned,
        −1 for no document.
      teacher: float32[batch, lists, length], the teacher's scores; NaN where it has none.
    """

    questions: Int[np.ndarray, " batch"]
    places: Int[np.ndarray, "batch lists length"]
    teacher: Float32[np.ndarray, "batch lists length"]

    @property
    def features(self) -> dict[str, np.ndarray]:
        """What `ranking_cost` reads."""
        return {"list_valid": self.places >= 0, "list_teacher": self.teacher}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """How lists are drawn.

    Attributes:
      length: documents of a list.
      pool: negatives are drawn from so many of the best; None: from all candidates.
      labelled: lists begin with documents that answer the question, where any does.
      seed: of the drawing.
      teacher_labels: for a question that nobody has judged, the teacher's best document of those that its lists are
        drawn from is one that answers it.
    """

    length: int
    pool: int | None
    labelled: bool
    seed: int
    teacher_labels: bool = False


class DrawnLists:
    """Lists of questions whose order can be learned. A question has two: the first begins with its best document, the
    second with one at random; both have the student's best other document, and others at random, as the teacher orders
    them.

    Labelled, what a list begins with answers the question, and the rest does not. A question is left out where nothing
    that was found answers it, where there are fewer other documents than a list needs, and where the best that answers
    is above all others by the margin already (DGR's released code). Without labels, the teacher's best document of
    those that lists are drawn from is the first, and all of a list are in its order. So it is for a question that
    nobody has judged, too.

    Grades of answers count where a question has several: its best document is then one of the highest grade, and behind
    what a list begins with stands one answer of every lower grade, before what does not answer. For a loss that knows
    one right document of a list, as `TwoMargins` does, give answers without grades.

    Args:
      answers: the documents that answer each question, with their grades where there are some; None where nobody has
        judged any.
      found: candidates of the questions, in their order.
      teacher: float32[questions, candidates], NaN behind all others; None: the student's order.
      drawing: see `Drawing`.
      margin: of the student's scores, by which a question is learned already.

    Attributes:
      questions: those that have lists.
      left_out: why others have none → how many.
      unscored: of the questions that have lists, those of which the teacher has no score: answers stand before the rest
        in the student's order.

    Raises:
      InputError: the student's or a teacher's scores are no finite numbers, or do not fit; no question has a list.
    """

    def __init__(
        self,
        answers: Sequence[Collection[int] | None],
        found: Found,
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
        if len(answers) != len(found.documents):
            raise InputError(
                f"answers of {len(answers)} questions, and candidates of {len(found.documents)}", "Give both."
            )
        there = np.asarray(found.documents) >= 0
        if not np.isfinite(np.asarray(found.scores)[there]).all():
            raise InputError("the student's scores are not finite", "Train it with a smaller learning rate.")
        if teacher is not None and np.isnan(teacher[there]).all():
            raise InputError(
                "the teacher has no score for any document that the student found", "Name another teacher."
            )
        self._found, self.drawing = found, drawing
        self._scores = np.asarray(found.scores if teacher is None else teacher)
        self._judged = np.zeros(len(answers), bool)
        self._grades, self._labelled = self._labels(answers)
        self._relevant = self._grades > 0
        self.left_out: dict[str, int] = {}
        self.questions = np.array([i for i in range(len(found.documents)) if self._counts(i, margin)], np.int64)
        if not len(self.questions):
            raise InputError(
                f"no question has a list to learn from: {self.left_out}",
                "Find more candidates, shorten the lists, or leave labels out (labelled = False).",
            )
        silent = (np.isnan(self._scores) | ~there).all(axis=1)
        self.unscored = int(silent[self.questions].sum()) if teacher is not None else 0

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all that lists are drawn from."""
        digest = hashlib.sha256(repr((self.drawing, self.questions.tolist())).encode())
        several = self._relevant & (self._grades < self._grades.max(axis=1, keepdims=True, initial=0))
        grades = [self._grades] if several.any() else []  # else nothing is drawn by them
        for array in (self._found.documents, self._scores, self._relevant, self._labelled, *grades):
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
        labelled = bool(self._labelled[question])
        positive = places[self._relevant[question, :count]] if labelled else places[:0]
        others = places[~self._relevant[question, :count]] if labelled else places
        pool = self._pool_of(others, int(not labelled))
        number = self.drawing.length - labelled
        lists = np.empty((LISTS, self.drawing.length), np.int64)
        for row in range(LISTS):
            first = pool[:1]
            if not labelled and row == 0:
                best = pool[self._by_teacher(question, pool)[:1]]
                first = np.unique(np.concatenate([first, best]))[: max(1, number)]
            rest = rng.permutation(np.setdiff1d(pool, first))[: number - len(first)]
            chosen = np.concatenate([first, rest])
            heads = self._heads(question, positive, None if row == 0 else rng) if labelled else positive
            chosen = chosen[: self.drawing.length - len(heads)]  # what is drawn last makes room
            lists[row] = np.concatenate([heads, chosen[self._by_teacher(question, chosen)]])
        return lists, self._scores[question][lists]

    def _heads(
        self, question: int, positive: Int[np.ndarray, " n"], rng: np.random.Generator | None
    ) -> Int[np.ndarray, " m"]:
        """What a labelled list begins with: a candidate that answers, and one of every lower grade, highest grade
        first; at most so many that one is left which does not answer.

        Args:
          positive: candidates that answer, at least one.
          rng: draws them. None: the student's best, the first one of the highest grade.
        """
        grades = self._grades[question, positive]
        head = int(grades.argmax()) if rng is None else int(rng.integers(len(positive)))
        heads = [head]
        for grade in np.unique(grades[grades < grades[head]])[::-1][: self.drawing.length - 2]:
            same = np.flatnonzero(grades == grade)
            heads.append(int(same[0 if rng is None else rng.integers(len(same))]))
        return positive[heads]

    def batch(self, number: int, batch_size: int) -> BatchOfLists:
        """The lists of batch `number`, which depend on the seed and the number alone. Every epoch goes once through the
        questions.

        Args:
          number: from 0 on, without end.
          batch_size: questions of a batch.
        """
        seed = self.drawing.seed
        epoch, place = divmod(number, -(-len(self.questions) // batch_size))
        chosen = self._order(epoch)[place * batch_size : (place + 1) * batch_size]
        places = np.full((batch_size, LISTS, self.drawing.length), -1, np.int64)
        teacher = np.full(places.shape, np.nan, np.float32)
        for row, question in enumerate(chosen.tolist()):
            places[row], teacher[row] = self.draw(question, np.random.default_rng([seed, epoch, question]))
        questions = np.concatenate([chosen, np.repeat(chosen[:1], batch_size - len(chosen))])
        return BatchOfLists(questions, places, teacher)

    def drawn(self, batches: int, batch_size: int) -> Int[np.ndarray, " m"]:
        """The questions that stand in the first so many batches, in ascending order."""
        return np.sort(self._order(0)[: batches * batch_size])  # of a whole epoch or more: all

    def _order(self, epoch: int) -> Int[np.ndarray, " questions"]:
        return np.random.default_rng([self.drawing.seed, epoch]).permutation(self.questions)

    def _pool_of(self, places: Int[np.ndarray, " n"], more: int) -> Int[np.ndarray, " m"]:
        """What lists are drawn from: the best of some places."""
        return places if self.drawing.pool is None else places[: self.drawing.pool + more]

    def _by_teacher(self, question: int, places: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """The order of some candidates, best first; those without a score last, in the student's order."""
        scores = np.where(np.isnan(self._scores[question, places]), -np.inf, self._scores[question, places])
        return np.lexsort((places, -scores))

    def _labels(
        self, answers: Sequence[Collection[int] | None]
    ) -> tuple[Int32[np.ndarray, "questions c"], Bool[np.ndarray, " questions"]]:
        """The grades of candidates, above 0 where they answer their question, and which questions have lists that begin
        with one of these."""
        documents = np.asarray(self._found.documents)
        grades, labelled = np.zeros(documents.shape, np.int32), np.zeros(len(documents), bool)
        if not self.drawing.labelled:
            return grades, labelled
        for question, right in enumerate(answers):
            self._judged[question] = right is not None
            labelled[question] = right is not None or self.drawing.teacher_labels
            if right is not None:
                known = right if isinstance(right, Mapping) else dict.fromkeys(right, 1)
                grades[question] = [known.get(document, 0) for document in documents[question].tolist()]
            elif self.drawing.teacher_labels:
                pool = self._pool_of(np.flatnonzero(documents[question] >= 0), 1)
                grades[question, self._by_teacher(question, pool)[:1]] = 1
        return grades, labelled

    def _counts(self, question: int, margin: float) -> bool:
        """Whether a question has lists; notes why where it has none."""
        count = int((self._found.documents[question] >= 0).sum())
        relevant, scores = self._relevant[question, :count], self._found.scores[question, :count]
        why = ""
        if not self._judged[question] and count and np.isnan(self._scores[question, :count]).all():
            why = "nobody has judged them, and the teacher has no score"
        elif not self._labelled[question]:
            if count < self.drawing.length:
                why = "fewer candidates than a list has"
        elif not relevant.any():
            why = "nothing found answers them"
        elif (~relevant).sum() < self.drawing.length - 1:
            why = "fewer other candidates than a list has"
        elif self._judged[question]:
            best = self._grades[question, :count] == self._grades[question].max()
            if scores[best][0] >= scores[~best][0] + margin:
                why = "learned already"
        if why:
            self.left_out[why] = self.left_out.get(why, 0) + 1
        return not why


def shuffled(
    found: Found, scores: Float32[np.ndarray, "questions c"], share: float, seed: int
) -> Float32[np.ndarray, "questions c"]:
    """A teacher's scores, of which a share of every question's has been dealt out anew among the candidates that had
    them: a control of what the order teaches. With a share of 1 it says nothing.

    Args:
      found: the candidates.
      scores: NaN where the teacher has none; that is dealt out too.
      share: from 0, which leaves the scores as they are, to 1.
      seed: of the choice and of the order.
    """
    if not share:
        return scores
    dealt = np.array(scores)
    for question, documents in enumerate(np.asarray(found.documents)):
        rng = np.random.default_rng([seed, question, 1, 1])
        there = np.flatnonzero(documents >= 0)
        chosen = np.sort(rng.permutation(there)[: round(share * len(there))])
        dealt[question, chosen] = scores[question, rng.permutation(chosen)]
    return dealt


def ranking_cost(
    loss: RankingLoss,
    scores: Float[Array, "batch documents"],
    valid: Bool[Array, "batch lists length"],
    teacher: Float[Array, "batch lists length"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The sum over questions of the mean over their lists, and how many questions have lists.

    Args:
      loss: of ranked lists.
      scores: the student's of each document of each list, in the loss's unit.
      valid, teacher: see `RankedLists`.
    """
    costs = loss(scores.reshape(valid.shape), RankedLists(valid, teacher))  # --> [batch, lists]
    real = jnp.any(valid, axis=(1, 2)).astype(jnp.float32)
    return jnp.sum(jnp.mean(costs, axis=1) * real), jnp.sum(real)

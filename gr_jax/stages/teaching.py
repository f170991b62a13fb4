"""A teacher's order of what a student found, and how a student learns from it: what all students have in common."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from gr_jax import processes, storage
from gr_jax.corpus import Dataset, Queries
from gr_jax.errors import InputError
from gr_jax.losses.ranking import (
    RANKING_LOSSES,
    DistilledRankNet,
    RankingLoss,
    TwoMargins,
    reads_teacher,
)
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.scoring import candidate_scores
from gr_jax.stages import training
from gr_jax.stages.asked import answers_of, any_answered, asked_by_people, asked_questions, check_asked, load_asked
from gr_jax.stages.blocks import Advance, in_blocks
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import setting
from gr_jax.training.ranked_lists import Drawing, DrawnLists, Found, shuffled

FAR = 10  # the rank whose distance from the first is the measure of margins
_NATS = 3.0  # of that distance, for losses that read scores as logits
FOUND = "found"  # the folder of a stage of candidates that holds them
_TEACHER = "teacher_scores"
_SCORES = "scores.npy"
_BLOCK = 64  # questions that a teacher is asked at a time


@dataclasses.dataclass(frozen=True)
class ListLearning(training.Optimization):
    """How a student learns from ranked lists; and all that `Optimization` has.

    Attributes:
      batch_size: questions of an update, two lists each.
      loss: "distilled_ranknet" (DGR), "two_margins" (LTRGR), or another of `losses.ranking`.
      margin: of neighbours, in medians of the distance between the student's ranks 1 and 10.
      margins: (base, gap) as they are, in the place of `margin`; the gap is else a third of the margin.
      candidates: documents that are found for a question, and scored by the teacher.
      length: documents of a list.
      pool: the negatives of a list are drawn from so many of the best; None draws from all candidates.
      labelled: a list begins with a document that answers the question, where it has a label. False: the teacher's
        order is all that is known.
      questions: so many of the questions of train are asked, drawn at random; None asks all. Finding documents for one
        takes longer than learning from it, and an update takes `batch_size` of them.
      unlabelled: so many questions that have no judgement in any split are asked too. Their lists are the teacher's
        order alone.
      made: so many of the queries that were made from documents are asked in the same way.
      teacher_labels: the teacher's best document is the label of a question that has none, as a control.
      generation: weight of learning to write, as before, beside a ranking loss in units of the margin.
      shuffled: the share of the teacher's order of every question's candidates that is permuted, as a control: with 1
        the order says nothing.
    """

    steps: int = 150
    batch_size: int = 8
    learning_rate: float = 1e-4
    warmup_steps: int = 15
    weight_decay: float = 0.01
    evaluate_every: int | None = 75
    dev_queries: int | None = 300
    checkpoint_every: int | None = 75
    loss: str = setting("distilled_ranknet", choices=tuple(RANKING_LOSSES))
    margin: float = setting(1.0, above=0)
    margins: tuple[float, float] | None = setting(None, at_least=0)
    candidates: int = setting(32, at_least=2)
    length: int = setting(8, at_least=2)
    pool: int | None = setting(15, at_least=1)
    labelled: bool = True
    questions: int | None = setting(2000, at_least=1)
    unlabelled: int = setting(0, at_least=0)
    made: int = setting(0, at_least=0)
    teacher_labels: bool = False
    generation: float = setting(1.0, at_least=0)
    shuffled: float = setting(0.0, at_least=0, at_most=1, neutral=0.0)

    def check(self) -> None:
        super().check()
        name = type(self).__name__
        training.check_keep_best(f"{name}.keep_best", self.keep_best, ("dev",))
        if self.teacher_labels and not self.labelled:
            raise InputError(
                "labels of a teacher, and lists without labels", f"Set {name}.labelled, or not {name}.teacher_labels."
            )
        if self.margins is not None and not self.margins[0] > 0:
            raise InputError("the base of margins is the unit of scores", "Give a base above 0.", value=self.margins[0])
        pool = self.candidates - 1 if self.pool is None else self.pool
        if pool < self.length - 1 or self.candidates < self.length:
            raise InputError(
                f"lists of {self.length} documents, and {min(pool + 1, self.candidates)} to draw them from",
                f"Set {name}.length to {min(pool + 1, self.candidates)} or fewer.",
                value=self.length,
            )

    def check_alone(self) -> None:
        """Raises InputError where no teacher orders what is found, and yet something is to be learned of it."""
        name = type(self).__name__
        for field, off in (("unlabelled", 0), ("made", 0), ("teacher_labels", False), ("labelled", True)):
            if getattr(self, field) != off:
                raise InputError(
                    "there is no teacher, and labels alone say what is right",
                    f"Use a system with a teacher, such as DGR, or set {name}.{field} = {off}.",
                    value=getattr(self, field),
                )
        if reads_teacher(RANKING_LOSSES[self.loss]):
            raise InputError(
                "there is no teacher, and this loss reads its scores: the student would learn its own",
                f"Use a system with a teacher, such as DGR, or set {name}.loss to one that reads the order alone: "
                '"two_margins".',
                value=self.loss,
            )

    def check_data(self, student: str, dataset: Dataset) -> None:
        """Raises InputError where a student of this name cannot learn from these documents and questions."""
        name = type(self).__name__
        if not len(dataset.qrels.get("train", ())) and not self.unlabelled and not self.made:
            raise InputError(
                f"{student} ranks documents for training questions, and there are none",
                f"Add queries.jsonl and qrels/train.tsv, or set {name}.unlabelled or {name}.made.",
            )
        if self.labelled and not self.unlabelled and not self.made and not any_answered(dataset, self.questions):
            every = "" if not any_answered(dataset) else f", or set {name}.questions = None, which asks all"
            raise InputError(
                f"lists of {student} begin with documents that answer, and no training question that is asked has one "
                "of a grade above 0",
                f"Give documents that answer a grade of 1 or more in qrels/train.tsv{every}.",
                value=self.questions,
            )
        check_asked(dataset, self.unlabelled, f"{name}.unlabelled")
        if len(dataset.corpus) < self.length:
            raise InputError(
                f"lists of {self.length} documents, and there are {len(dataset.corpus)}",
                f"Set {name}.length to {len(dataset.corpus)} or fewer.",
                value=self.length,
            )

    def asked(self, corpus: Stage, made: Stage | None) -> Stage:
        """The stage of the questions for which documents are found.

        Args:
          corpus: the documents.
          made: queries that were made from them; None: there are none.
        """
        return asked_questions(
            corpus, made if self.made else None,
            labelled=self.questions, unlabelled=self.unlabelled, made=self.made, setting=type(self).__name__,
        )  # fmt: skip

    @property
    def drawing(self) -> Drawing:
        """How lists are drawn."""
        return Drawing(self.length, self.pool, self.labelled, self.seed, self.teacher_labels)


@dataclasses.dataclass(frozen=True)
class FoundDocuments:
    """Documents of each question, best first.

    Attributes:
      documents: int32[questions, c], −1 where fewer were found.
      scores: float32[questions, c], as they were retrieved; 0 where there is no document.
    """

    documents: Int32[np.ndarray, "questions c"]
    scores: Float32[np.ndarray, "questions c"]

    @classmethod
    def load(cls, folder: pathlib.Path) -> FoundDocuments:
        """Of a finished stage of candidates, whatever else it keeps of them.

        Raises:
          InputError: it was altered.
        """
        storage.read_folder(folder / FOUND)
        return cls(*(storage.load_array(folder / FOUND / f"{name}.npy", mmap=True) for name in ("documents", "scores")))


def margins_of(settings: ListLearning, found: Found) -> tuple[float, float]:
    """(base, gap) of margins: as they are given, or by how far a student's ranks 1 and 10 are apart in the median."""
    if settings.margins is not None:
        return settings.margins
    base = settings.margin * rank_distance(found)
    return base, base / 3


def rank_distance(found: Found) -> float:
    """The median distance of scores between ranks 1 and 10, or the last where there are fewer.

    Raises:
      InputError: no question has two documents of different scores.
    """
    counts = (found.documents >= 0).sum(axis=1)
    several = np.flatnonzero(counts > 1)
    last = np.minimum(counts[several], FAR) - 1
    distances = found.scores[several, 0] - found.scores[several, last]
    if not len(distances) or np.median(distances) <= 0:
        raise InputError("the student ranks nothing: no question has documents of different scores", "Train it longer.")
    return float(np.median(distances))


def teacher_distance(found: Found, scores: Float32[np.ndarray, "questions c"] | None) -> float:
    """The median distance of a teacher's scores between ranks 1 and 10, as of `rank_distance`; 1 where it ranks
    nothing, and the student's own where there is no teacher."""
    if scores is None:
        return rank_distance(found)
    ordered = -np.sort(np.where(np.isnan(scores), np.inf, -scores), axis=1)  # those without a score last
    counts = np.isfinite(ordered).sum(axis=1)
    several = np.flatnonzero(counts > 1)
    distances = ordered[several, 0] - ordered[several, np.minimum(counts[several], FAR) - 1]
    median = float(np.median(distances)) if len(distances) else 0.0
    return median if median > 0 else 1.0


def make_loss(
    settings: ListLearning, found: Found, scores: Float32[np.ndarray, "questions c"] | None = None
) -> RankingLoss:
    """The loss that settings name, of scores in units of the margin's base.

    What reads scores as logits gets both sides in the same unit, whatever the teacher's is: ranks 1 and 10 are three
    nats apart.
    """
    base, gap = margins_of(settings, found)
    kind = RANKING_LOSSES[settings.loss]
    if kind in (DistilledRankNet, TwoMargins):
        return kind(base=1.0, gap=gap / base)
    temperature = rank_distance(found) / base / _NATS
    if reads_teacher(kind):
        return kind(temperature=temperature, teacher_temperature=teacher_distance(found, scores) / _NATS)
    return kind(temperature=temperature)


@dataclasses.dataclass(frozen=True)
class Teacher:
    """An index folder whose scores order a student's candidates.

    Attributes:
      named: its folder, or the one that it is in: a MODEL_DIR, or a run's `hybrid`.
    """

    named: str

    @property
    def index(self) -> pathlib.Path:
        """The folder of the index itself."""
        inner = pathlib.Path(self.named) / "index"
        return inner if (inner / storage.MANIFEST).is_file() else pathlib.Path(self.named)

    def identity(self) -> Any:
        """What its files hold."""
        return storage.read_folder(self.index, indexes.KIND, verify=False).files

    def check(self, dataset: Dataset) -> None:
        """Raises InputError where it is of other documents."""
        found = storage.read_folder(self.index, indexes.KIND, verify=False).corpus
        if found != dataset.corpus.fingerprint:
            raise InputError(
                "a teacher of another corpus",
                "Name the index of a run on the same documents.",
                file=self.index,
                value=found,
            )


@stage(shared=True, together=True)
def teacher_scores(
    place: Place, corpus: pathlib.Path, asked: pathlib.Path, candidates: pathlib.Path, *, teacher: Teacher
) -> None:
    """A teacher's scores of the student's candidates: `scores.npy`, float32[questions, candidates], NaN where it has
    none.

    Interrupted, it goes on behind the last questions that it was asked. Systems beside each other whose students found
    the same ask it once.
    """
    dataset, found = load_dataset(corpus), FoundDocuments.load(candidates)
    teacher.check(dataset)
    searcher = indexes.load(teacher.index)
    questions = load_asked(asked).texts

    def ask(block: range, advance: Advance) -> np.ndarray:
        own = slice(block.start, block.stop)
        scores = candidate_scores(searcher.retriever, questions[own], np.asarray(found.documents[own]))
        advance(len(block))
        return scores

    files = in_blocks(
        place.common,
        _TEACHER,
        len(questions),
        _BLOCK,
        ask,
        title="Asking the teacher",
        where="while asking the teacher",
    )
    if not processes.first():
        return  # one array is enough
    scores = [storage.load_array(file, dtype=np.float32, ndim=2) for file in files]
    np.save(place.folder / _SCORES, np.concatenate(scores))


def scores_to_learn(
    teacher_scores: pathlib.Path | None, found: Found, settings: ListLearning
) -> Float32[np.ndarray, "questions c"] | None:
    """What a finished stage `teacher_scores` has, shuffled as far as settings say.

    Args:
      teacher_scores: None: there is no teacher, and the student's own order is what is shuffled.
      found: the candidates.
      settings: of the training.

    Returns:
      None: the student's order, as it is.
    """
    scores = None
    if teacher_scores is not None:
        scores = storage.load_array(teacher_scores / _SCORES, dtype=np.float32, ndim=2)
    if settings.shuffled:
        scores = shuffled(
            found, np.asarray(found.scores) if scores is None else scores, settings.shuffled, settings.seed
        )
    return scores


def lists_to_learn(
    place: Place,
    dataset: Dataset,
    asked: Queries,
    found: Found,
    scores: Float32[np.ndarray, "questions c"] | None,
    settings: ListLearning,
) -> tuple[DrawnLists, Found, float]:
    """The lists of a training, and what its margins are measured on: what was found for questions of people, since
    queries that were made from documents may stand in them; then the margin's base. The notes say how many there are.

    Args:
      place: of the training's stage.
      dataset, asked, found: documents, questions, and what was found for each.
      scores: of `scores_to_learn`.
      settings: of the training.
    """
    own = asked_by_people(dataset, asked)
    of_people = FoundDocuments(found.documents[own], found.scores[own]) if own.any() else found
    base, _ = margins_of(settings, of_people)
    answers: Sequence[Collection[int] | None] = answers_of(dataset, asked)
    if RANKING_LOSSES[settings.loss] is TwoMargins:  # all but a list's first document are wrong ones to it
        answers = [None if one is None else list(one) for one in answers]
    lists = DrawnLists(answers, found, scores, settings.drawing, base)
    place.notes.update(
        {"lists": lists.counts(), "margin": base, "distance of ranks 1 and 10": rank_distance(of_people)}
    )
    if lists.unscored:
        place.notes["answered, but not scored by the teacher: in the student's order"] = lists.unscored
    return lists, of_people, base

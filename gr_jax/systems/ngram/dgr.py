"""Systems whose writer of n-grams learns from how what it finds should be ranked: LTRGR (Li et al. 2023, arXiv
2306.15222) and DGR (Li et al. 2024, arXiv 2402.10769)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.stages import teaching
from gr_jax.stages.graph import Stage
from gr_jax.stages.settings import setting
from gr_jax.stages.teaching import Teacher
from gr_jax.systems.ngram import MINDER, distilling, writer
from gr_jax.systems.ngram import index as indexing
from gr_jax.systems.ngram.asking import ASKED
from gr_jax.systems.ngram.distilling import Distilling


@dataclasses.dataclass(frozen=True)
class RankedWriter(MINDER):
    """What LTRGR and DGR have in common: MINDER, which then finds documents for the questions of train, and learns to
    rank them.

    Attributes:
      distilling: how it learns; None leaves it as it is.
      rounds: so often it finds documents anew and learns from them.
    """

    distilling: Distilling | None = setting(Distilling())
    rounds: int = setting(1, at_least=1)

    @property
    def teachers(self) -> str | None:
        """The index that orders what is found; None: the labels alone say what is right."""
        return None

    def check(self) -> None:
        super().check()
        if self.distilling is None:
            return
        factors = self.distilling.multipliers
        if factors is not None and self.distilling.frozen and self.writing.keeps_encoder:
            raise InputError(
                "the encoder stays as it is, which is all that multipliers say",
                "Leave Distilling.multipliers out, or set Distilling.frozen to False.",
                value=dict(factors),
            )
        if self.distilling.made and ASKED not in self.asking.text_views:
            raise InputError(
                "queries that were made from documents are to be asked, and none are made",
                'Set Distilling.made to 0, or write "pseudo_query" (Asking.writes).',
                value=self.distilling.made,
            )

    def check_data(self, dataset: Dataset) -> None:
        super().check_data(dataset)
        if self.distilling is not None:
            self.distilling.check_data(self.name, dataset)
            if self.teachers is None:
                self.distilling.check_alone()

    def model_of(self, corpus: Stage, words: Stage, text: Stage, made: Stage | None) -> Stage:
        student = super().model_of(corpus, words, text, made)
        if self.distilling is None:
            return student
        dev = dataclasses.replace(self.asking, max_query_length=self.writing.query_tokens)
        student, asked = student.named("student"), self.distilling.asked(corpus, made)
        for number in range(self.rounds):
            last = number == self.rounds - 1
            of_round = "" if self.rounds == 1 else f"_{number + 1}"
            before = indexing.index(corpus, words, text, student, asking=dev).named(f"student_index{of_round}")
            found = distilling.candidates(
                asked, before, depth=self.distilling.candidates, ngrams=self.distilling.ngrams
            ).named(f"candidates{of_round}")
            scores = None
            if self.teachers is not None:
                scores = teaching.teacher_scores(corpus, asked, found, teacher=Teacher(self.teachers))
                scores = scores.named(f"teacher_scores{of_round}")
            student = distilling.model(
                corpus, words, text, student, asked, found, scores,
                settings=self.distilling, writing=self.writing, asking=dev,
            ).named(writer.model.name if last else f"student{of_round}")  # fmt: skip
        return student


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class LTRGR(RankedWriter):
    """LTRGR: MINDER learns to rank (§3.3): a document that answers is to be above one that does not by a margin, the
    best above the best, and one at random above one at random. It goes on learning to write.

    It deviates from the paper as `MINDER` does. Margins are as wide as the student's ranks 1 and 10 are apart, where
    the released code has 300 and 400 of BART's scores (`Distilling.margins`), and the expectation over negatives stands
    for one at random. Writing is learned beside it by the mean over tokens of all views together, with the weight 1
    for a margin (`Distilling.generation`); the paper has the mean over views, and 10/3. Documents are found for some of
    the training questions (`Distilling.questions`).
    """

    paper: ClassVar[str] = "Li et al. 2023, arXiv 2306.15222"

    name: str = "LTRGR"
    distilling: Distilling | None = setting(Distilling(loss="two_margins"))


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DGR(RankedWriter):
    """DGR: MINDER learns to rank as a teacher does (§3.2), by the distilled RankNet (§3.3), whose margins grow with the
    distance of ranks. Answering takes no longer.

    The paper's teacher is SimLM's cross-encoder; here it is any index on the same documents. It deviates from the paper
    as `MINDER` does. Margins are as wide as the student's ranks 1 and 10 are apart, where the released code has 300 and
    100 of BART's scores (`Distilling.margins`). Writing is learned beside it by the mean over tokens of all views
    together, with the weight 1 for a margin (`Distilling.generation`); the released code has the mean over views, and
    5/3. Documents are found for some of the training questions (`Distilling.questions`).

    Attributes:
      teacher: any index on the same documents: a MODEL_DIR such as `runs/dpr`, or its combination with BM25,
        `runs/dpr/hybrid`.
    """

    paper: ClassVar[str] = "Li et al. 2024, arXiv 2402.10769"

    name: str = "DGR"
    teacher: str | None = None

    def check_data(self, dataset: Dataset) -> None:
        super().check_data(dataset)
        if self.teacher is not None and self.distilling is not None:
            Teacher(self.teacher).check(dataset)

    def stages(self, corpus: Stage) -> Stage:
        if self.teacher is None and self.distilling is not None:
            raise InputError(
                "DGR learns from a teacher, and none is named",
                "Set DGR.teacher to the folder of a run on the same documents: "
                '--gin.DGR.teacher=\\"runs/dpr/hybrid\\".',
            )
        return super().stages(corpus)

    @property
    def teachers(self) -> str | None:
        return self.teacher

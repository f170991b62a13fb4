"""DGR (Li et al. 2024, arXiv 2402.10769) with a student that writes docids: DSI, which a ranker then teaches."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.stages import rank_docids, teaching, write_docids
from gr_jax.stages.graph import Stage
from gr_jax.stages.rank_docids import DocidDistilling
from gr_jax.stages.settings import setting
from gr_jax.stages.teaching import Teacher
from gr_jax.stages.write_docids import Training
from gr_jax.systems.dsi import DSI

# That of gin_configs/systems/dsi_centroids.gin.
TRAINING = Training(steps=240, evaluate_every=60, rates={"query": 0.8, "document": 0.0, "pseudo": 0.2})


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DSIDGR(DSI):
    """DGR (§3.2, §3.3) with DSI in the place of MINDER: it finds documents for the training questions, a teacher orders
    them, and it learns to rank as the teacher does. Answering takes no longer.

    The paper's student writes n-grams, and a document's score is made of many of them. Here it is the log-probability
    of the document's docid, as decoding normalises it. The teacher is any index on the same documents. Margins are as
    wide as the student's ranks 1 and 10 are apart, where the released code has 300 and 100 of BART's scores
    (`DocidDistilling.margins`). Writing docids is learned beside it with the weight 1 for a margin
    (`DocidDistilling.generation`). Documents are found for some of the training questions
    (`DocidDistilling.questions`). What differs in `DSI` differs here too.

    Attributes:
      distilling: how it learns from the teacher; None leaves it as it is.
      rounds: so often it finds documents anew and learns from them.
      teacher: any index on the same documents: a MODEL_DIR such as `runs/dpr`, or its combination with BM25,
        `runs/dpr/hybrid`.
    """

    paper: ClassVar[str] = "Li et al. 2024, arXiv 2402.10769, on the docids of Tay et al. 2022, arXiv 2202.06991"

    name: str = "DSI + DGR"
    training: Training | None = setting(TRAINING)
    distilling: DocidDistilling | None = setting(DocidDistilling())
    rounds: int = setting(1, at_least=1)
    teacher: str | None = None

    def check(self) -> None:
        super().check()
        if self.distilling is None:
            return
        if self.distilling.made and not any(self.pseudo_queries.kinds.values()):
            raise InputError(
                "queries that were made from documents are to be asked, and none are made",
                "Set DocidDistilling.made to 0, or PseudoQueries.kinds.",
                value=self.distilling.made,
            )
        if self.decoding.normalize == "constraint":
            raise InputError(
                "a score over what the constraint allows has no slope here",
                'Set Decoding.normalize to "level" or "vocabulary".',
                value=self.decoding.normalize,
            )
        if self.training is None and self.distilling.generation:
            raise InputError(
                "a student that was not trained to write has nothing to go on with",
                "Set DocidDistilling.generation to 0, or give it a training.",
                value=self.distilling.generation,
            )

    def check_data(self, dataset: Dataset) -> None:
        super().check_data(dataset)
        if self.distilling is not None:
            self.distilling.check_data(self.name, dataset)
            if self.teacher is not None:
                Teacher(self.teacher).check(dataset)

    def model_of(
        self, corpus: Stage, vectors: Stage, docids: Stage, words: Stage, examples: Stage | None, made: Stage
    ) -> Stage:
        student = super().model_of(corpus, vectors, docids, words, examples, made)
        if self.distilling is None:
            return student
        if self.teacher is None:
            raise InputError(
                f"{self.name} learns from a teacher, and none is named",
                "Set DSIDGR.teacher to the folder of a run on the same documents: "
                '--gin.DSIDGR.teacher=\\"runs/dpr/hybrid\\".',
            )
        # As dev is looked at: what is for answering alone trains nothing again.
        read = self.decoding.max_query_length if self.training is None else self.training.max_input_length
        dev = dataclasses.replace(self.decoding, beams=self.decoding.dev_beams, max_query_length=read)
        student, asked = student.named("student"), self.distilling.asked(corpus, made)
        for number in range(self.rounds):
            last = number == self.rounds - 1
            of_round = "" if self.rounds == 1 else f"_{number + 1}"
            before = write_docids.index(corpus, docids, words, student, decoding=dev).named(f"student_index{of_round}")
            found = rank_docids.docid_candidates(
                corpus, asked, docids, before, depth=self.distilling.candidates, most=self.distilling.docids
            ).named(f"candidates{of_round}")
            scores = teaching.teacher_scores(corpus, asked, found, teacher=Teacher(self.teacher)).named(
                f"teacher_scores{of_round}"
            )
            student = rank_docids.model(
                corpus, docids, words, examples if self.distilling.generation else None, student, asked, found, scores,
                network=self.network, settings=self.distilling, writing=self.training, decoding=dev,
            ).named(write_docids.model.name if last else f"student{of_round}")  # fmt: skip
        return student

    @property
    def seeds(self) -> list[int]:
        return [*super().seeds, *([] if self.distilling is None else [self.distilling.seed])]

"""Lists of graded candidates, with a teacher's scores: what ranking losses learn from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32, Int32

from gr_jax.errors import InputError
from gr_jax.training.tables import Table


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A document that a query's list has.

    Attributes:
      document: its position in the corpus.
      grade: how relevant it is; 0 is not.
      teacher_score: what a teacher gave it; NaN: nothing.
    """

    document: int
    grade: int = 0
    teacher_score: float = math.nan


@dataclasses.dataclass(frozen=True, eq=False)
class CandidateLists(Table):
    """Candidates of every query, in an order that may mean something (a teacher's, say). A list may have several
    relevant ones, of several grades, or none at all.

    Attributes:
      documents: positions in the corpus, −1 where there are fewer. No document comes twice in a row.
      grades: of each; 0 where there is none.
      teacher_scores: a teacher's of each, NaN where it gave none; None where there is no teacher.

    Raises:
      InputError: the shapes do not fit together, or a row has a document twice.
    """

    kind = "candidate_lists"

    documents: Int32[np.ndarray, "queries n"]
    grades: Int32[np.ndarray, "queries n"]
    teacher_scores: Float32[np.ndarray, "queries n"] | None = None

    def __post_init__(self):
        shape = self.documents.shape
        for name in ("grades", "teacher_scores"):
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InputError(
                    f"{name} of candidates must have the shape {shape}", "Give one a candidate.", value=array.shape
                )
        ordered = np.sort(self.documents, axis=1)
        twice = np.flatnonzero(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1))
        if len(twice):
            raise InputError(
                "a list of candidates has a document twice", "Keep one of them.", value=f"query {twice[0]}"
            )

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[Candidate]]) -> CandidateLists:
        """A table of lists of different lengths."""
        lists = [list(row) for row in rows]
        shape = (len(lists), max(map(len, lists), default=0))
        documents, grades = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        scores = np.full(shape, np.nan, np.float32)
        for number, row in enumerate(lists):
            documents[number, : len(row)] = [candidate.document for candidate in row]
            grades[number, : len(row)] = [candidate.grade for candidate in row]
            scores[number, : len(row)] = [candidate.teacher_score for candidate in row]
        return cls(documents, grades, None if np.isnan(scores).all() else scores)


class ListSource(Protocol):
    """Which lists are drawn from at which step: `CandidateLists`, or what a hook makes again."""

    @property
    def width(self) -> int: ...
    @property
    def settings(self) -> Any: ...
    def __len__(self) -> int: ...
    def at(self, step: int) -> CandidateLists: ...

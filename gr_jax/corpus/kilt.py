"""KILT's tasks (Petroni et al. 2021, arXiv 2009.02252): questions, and the pages that hold their answers.

A question has outputs. Each is an answer, a provenance, or both; a provenance is the set of pages that are needed
together. Ids of pages are Wikipedia's, as texts.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax.corpus import lines
from gr_jax.corpus.records import Place
from gr_jax.errors import InputError

MISSING = ""  # stands for a page whose id or title a provenance does not say
_KEYS = ("wikipedia_id", "title")


@dataclasses.dataclass(frozen=True)
class Provenance:
    """One piece of evidence.

    Attributes:
      wikipedia_id, title: of its page; `MISSING` where the record does not say.
      bleu_score: how well the page holds the evidence, 0..1; None where the record does not say.
      section, start_paragraph, end_paragraph, start_character, end_character: where it stands on the page; "" and −1
        where the record does not say.
    """

    wikipedia_id: str
    title: str
    bleu_score: float | None = None
    section: str = ""
    start_paragraph: int = -1
    end_paragraph: int = -1
    start_character: int = -1
    end_character: int = -1


@dataclasses.dataclass(frozen=True)
class Output:
    """One of a question's outputs.

    Attributes:
      answer: "" where it has none.
      provenance: None where the record has no such field.
    """

    answer: str = ""
    provenance: tuple[Provenance, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Question:
    """One record of a task.

    Attributes:
      id: as a text.
      text: the input; "" where the file leaves it out, as TriviaQA's does.
      outputs: () where the file has none, as those of test sets.
    """

    id: str
    text: str
    outputs: tuple[Output, ...] = ()

    @property
    def key(self) -> str:
        """The id with "_" in place of white space: TREC files are split at it, and ids of AIDA's questions hold some.

        Queries, judgements and runs know a question by its key, KILT's own files by its id.
        """
        return re.sub(r"\s", "_", self.id)

    def evidence(self, key: str = "wikipedia_id") -> list[frozenset[str]]:
        """The set of pages of each output that has a provenance, by their ids or titles.

        Args:
          key: "wikipedia_id" or "title".
        """
        check_key(key)
        found = []
        for one in self.outputs:
            if one.provenance is not None:
                found.append(frozenset(getattr(piece, key).strip() for piece in one.provenance))
        return found

    def pages(self, bleu_above: float | None = None) -> dict[str, str]:
        """wikipedia_id → title of every page that is evidence.

        Args:
          bleu_above: pieces whose score is not above it are left out; GENRE trains on those above .5. Pieces without a
            score were written by people, and stay.
        """
        found = {}
        for piece in (piece for one in self.outputs for piece in one.provenance or ()):
            low = bleu_above is not None and piece.bleu_score is not None and piece.bleu_score <= bleu_above
            if piece.wikipedia_id and not low:
                found[piece.wikipedia_id] = piece.title
        return found


def check_key(key: str) -> None:
    """Raises InputError for what pages are not known by."""
    if key not in _KEYS:
        raise InputError("pages are known by their id or their title", f"Use {' or '.join(_KEYS)}.", value=key)


def read_kilt(file: str | os.PathLike, texts: Mapping[str, str] | None = None) -> Iterator[Question]:
    """Streams the questions of a task's file, plain or gzipped.

    Args:
      file: one JSON object a line.
      texts: id → text of questions whose records have no input; see `read_triviaqa`.

    Raises:
      InputError: a line that is not such a record, an id that comes twice or differs from another in white space alone,
        or a record without input whose id `texts` lacks.
    """
    seen: dict[str, str] = {}
    for number, record in lines.read_json_lines(file):
        at = Place(file, number)
        identifier = at.identifier(record)
        text = at.text(record, "input", "")
        if texts is not None and not text.strip():
            text = texts.get(identifier, "")
            if not text.strip():
                raise at.error(
                    "no input, and no text of this id was given",
                    "Name the file that has it; gr-jax retrieve takes TriviaQA's by --kilt_questions.",
                    identifier,
                )
        question = Question(identifier, text, tuple(output_of(one, at) for one in at.objects(record, "output")))
        if question.key in seen:
            same = seen[question.key] == identifier
            problem = (
                "this id came before" if same else f"this id and {seen[question.key]!r} differ in white space alone"
            )
            raise at.error(problem, "Give every question an id of its own.", identifier)
        seen[question.key] = identifier
        yield question


def read_triviaqa(file: str | os.PathLike) -> dict[str, str]:
    """id → question of a file of TriviaQA's, for KILT's files, which leave the questions out.

    Raises:
      InputError: it is no JSON object with a list "Data" of {"QuestionId", "Question"}.
    """
    text = "\n".join(line for _, line in lines.read_lines(file))
    data = lines.parse_json(text, file, 1).get("Data")
    if not isinstance(data, list):
        raise InputError('no list "Data"', "Name a file of TriviaQA's, as it is published.", file=file)
    found = {}
    for number, record in enumerate(data, start=1):
        pair = [record.get(name) if isinstance(record, dict) else None for name in ("QuestionId", "Question")]
        if not all(isinstance(one, str) for one in pair):
            raise InputError(
                f'record {number} of "Data" has no QuestionId or no Question', "Give texts for both.", file=file,
                value=record,
            )  # fmt: skip
        found[str(pair[0])] = str(pair[1])
    return found


def output_of(record: Mapping[str, Any], at: Place) -> Output:
    """One output of a record; InputError where it is none."""
    provenance = None
    if record.get("provenance") is not None:
        provenance = tuple(_piece(one, at) for one in at.objects(record, "provenance"))
    return Output(at.text(record, "answer", ""), provenance)


def _piece(record: Mapping[str, Any], at: Place) -> Provenance:
    bleu = record.get("bleu_score")
    if bleu is not None and (isinstance(bleu, bool) or not isinstance(bleu, int | float) or not 0 <= bleu <= 1.000001):
        raise at.error("bleu_score is no number of 0..1", "Correct it, or leave it out.", bleu)
    page = MISSING if record.get("wikipedia_id") is None else at.identifier(record, "wikipedia_id")
    return Provenance(
        page,
        at.text(record, "title", MISSING),
        None if bleu is None else float(bleu),
        at.text(record, "section", ""),
        *(
            at.whole(record, name)
            for name in ("start_paragraph_id", "end_paragraph_id", "start_character", "end_character")
        ),
    )

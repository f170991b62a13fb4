"""DPR's files (Karpukhin et al. 2020, arXiv 2004.04906): training pairs, questions with answers, and passages."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax.corpus import lines
from gr_jax.corpus.documents import Document
from gr_jax.corpus.records import Place
from gr_jax.errors import InputError

_CONTEXTS = ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
_IDS = ("passage_id", "psg_id", "id")  # as files of several years call it
_HEADER = ("id", "text", "title")


@dataclasses.dataclass(frozen=True)
class Example:
    """A question with its answers and passages.

    Attributes:
      question: text.
      answers: texts that answer it.
      positives, negatives, hard_negatives: passages; ids are "" where the file says none.
    """

    question: str
    answers: tuple[str, ...]
    positives: tuple[Document, ...] = ()
    negatives: tuple[Document, ...] = ()
    hard_negatives: tuple[Document, ...] = ()


def read_examples(file: str | os.PathLike) -> Iterator[Example]:
    """Reads training pairs, questions with answers and contexts, plain or gzipped.

    They stand one a line, which are streamed, or in a JSON list, which is read whole.

    Raises:
      InputError: it is something else; a list is named by the place of its record.
    """
    for at, record in _records(file):
        answers = record.get("answers", [])
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise at.error("answers are no list of texts", "Give [] or a list of texts.", answers)
        contexts = (tuple(_passage(one, at) for one in at.objects(record, name)) for name in _CONTEXTS)
        yield Example(at.text(record, "question"), tuple(answers), *contexts)


def _records(file: str | os.PathLike) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """(place, record): a line's number, or a record's in a list."""
    numbered = lines.read_lines(file)
    first = next(numbered, None)
    if first is None:
        raise InputError("the file is empty", "Name a file with examples.", file=file)
    if not first[1].lstrip().startswith("["):
        yield Place(file, first[0]), lines.parse_json(first[1], file, first[0])
        for number, line in numbered:
            yield Place(file, number), lines.parse_json(line, file, number)
        return
    text = "\n".join([first[1], *(line for _, line in numbered)])
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"not JSON: {error}", "Name a JSON list, or a file of one object a line.", file=file
        ) from error
    for number, record in enumerate(records, start=1):
        at = Place(file, number)
        if not isinstance(record, dict):
            raise at.error(f"record {number} is no object", 'Give {"question": …}.', record)
        yield at, record


def _passage(record: Mapping[str, Any], at: Place) -> Document:
    said = [str(record[name]) for name in _IDS if record.get(name) is not None]
    return Document(said[0] if said else "", at.text(record, "title", ""), at.text(record, "text"))


def read_questions(file: str | os.PathLike) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Streams (question, answers) of a file of `question<TAB>['answer', …]`, plain or gzipped.

    Raises:
      InputError: a line that is not so.
    """
    for number, line in lines.read_lines(file):
        at = Place(file, number)
        question, tab, listed = line.partition("\t")
        try:
            answers = ast.literal_eval(listed) if tab else None
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            answers = None
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise at.error("no question and list of answers", "Write question<TAB>['answer', …].", line)
        yield question, tuple(answers)


def read_passages(file: str | os.PathLike) -> Iterator[Document]:
    """Streams the passages of `psgs_w100.tsv`: id, text and title in columns, plain or gzipped. A header is passed
    over. Fields in quotes are as Python's `csv` writes them.

    Raises:
      InputError: a line with another number of columns.
    """
    for number, line in lines.read_lines(file):
        fields = tuple(_unquoted(field) for field in line.split("\t"))
        if len(fields) != 3:
            raise Place(file, number).error(f"{len(fields)} columns", "Write id<TAB>text<TAB>title.", line)
        if number > 1 or fields != _HEADER:
            yield Document(fields[0], fields[2], fields[1])


def _unquoted(field: str) -> str:
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field

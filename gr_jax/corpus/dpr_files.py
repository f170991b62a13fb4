"""DPR's files (Karpukhin et al. 2020, arXiv 2004.04906): training pairs, questions with answers, and passages."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gr_jax.corpus import lines
from gr_jax.corpus.documents import Document
from gr_jax.corpus.records import Place
from gr_jax.errors import InputError

_CONTEXTS = ("positive_ctxs", "negative_ctxs", "hard_negative_ctxs")
_IDS = ("passage_id", "psg_id", "id")  # as files of several years call it
_HEADER = ("id", "text", "title")
# Of JSON, what opens or closes; texts are taken whole, so that what they hold is not looked at.
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


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

    They stand one a line or in a JSON list. Both are streamed, line by line: published lists have gigabytes.

    Raises:
      InputError: it is something else; a record of a list is named by the line where it begins.
    """
    for at, record in _records(file):
        answers = record.get("answers", [])
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise at.error("answers are no list of texts", "Give [] or a list of texts.", answers)
        contexts = (tuple(_passage(one, at) for one in at.objects(record, name)) for name in _CONTEXTS)
        yield Example(at.text(record, "question"), tuple(answers), *contexts)


def _records(file: str | os.PathLike) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """(line, record) of a list, or of one record a line."""
    numbered = lines.read_lines(file)
    first = next(numbered, None)
    if first is None:
        raise InputError("the file is empty", "Name a file with examples.", file=file)
    if first[1].lstrip().startswith("["):
        yield from _listed(itertools.chain([first], numbered), file)
        return
    for number, line in itertools.chain([first], numbered):
        yield Place(file, number), lines.parse_json(line, file, number)


def _listed(numbered: Iterator[tuple[int, str]], file: str | os.PathLike) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """(line where it begins, record) of a JSON list, one record at a time: published lists have gigabytes."""
    depth, begins, number, pieces, between, wanted = 0, 0, 0, list[str](), "", ""
    for number, line in numbered:
        start = 0  # of what is not taken yet
        for mark in _MARKS.finditer(line):
            if mark[0] in "[{":
                depth += 1
                if depth <= 2:
                    between += line[start : mark.start()]
                    if between.strip() != wanted or (depth == 1 and mark[0] != "["):
                        raise _no_list(file, number, between + mark[0])
                    between, start, begins = "", mark.end() if depth == 1 else mark.start(), number
            elif mark[0] in "]}":
                depth -= 1
                if depth == 1:
                    pieces.append(line[start : mark.end()])
                    at = Place(file, begins)
                    yield at, _object("\n".join(pieces), at)
                    pieces, start, wanted = [], mark.end(), ","
                elif depth == 0:
                    between += line[start : mark.start()]
                    if between.strip() or mark[0] == "}":
                        raise _no_list(file, number, between + mark[0])
                    between, start = "", mark.end()
                    wanted = "nothing more"
        if depth > 1:
            pieces.append(line[start:])
        else:
            between += line[start:]
    if depth or between.strip():
        raise _no_list(file, begins if depth > 1 else number, between)


def _object(text: str, at: Place) -> Mapping[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise at.error(f"not JSON: {error}", "Name a JSON list, or a file of one object a line.", text) from error
    if not isinstance(record, dict):
        raise at.error("a record is no object", 'Give {"question": …}.', record)
    return record


def _no_list(file: str | os.PathLike, number: int, held: str) -> InputError:
    return InputError(
        "not a JSON list of records, or only the beginning of one",
        "Name a whole JSON list, or a file of one object a line.",
        file=file,
        line=number,
        value=held[:200],
    )


def _passage(record: Mapping[str, Any], at: Place) -> Document:
    said = next((name for name in _IDS if record.get(name) is not None), None)
    return Document(
        "" if said is None else at.identifier(record, said), at.text(record, "title", ""), at.text(record, "text")
    )


def read_questions(file: str | os.PathLike) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Streams (question, answers) of a file of `question<TAB>['answer', …]`, plain or gzipped.

    Raises:
      InputError: a line that is not so.
    """
    for number, line in lines.read_lines(file):
        at = Place(file, number)
        question, tab, listed = line.partition("\t")
        try:
            answers = ast.literal_eval(_unquoted(listed)) if tab else None
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            answers = None
        if not isinstance(answers, list) or not all(isinstance(one, str) for one in answers):
            raise at.error("no question and list of answers", "Write question<TAB>['answer', …].", line)
        yield _unquoted(question), tuple(answers)


def read_passages(file: str | os.PathLike) -> Iterator[Document]:
    """Streams the passages of `psgs_w100.tsv`: id, text and title in columns, plain or gzipped. A header is passed
    over. Fields in quotes are as Python's `csv` writes them.

    Raises:
      InputError: a line with another number of columns.
    """
    for number, line in lines.read_lines(file):
        found = passage(line, Place(file, number))
        if found is not None:
            yield found


def passage(line: str, at: Place) -> Document | None:
    """The passage of a line; None for a header in the first line.

    Raises:
      InputError: another number of columns.
    """
    fields = tuple(_unquoted(field) for field in line.split("\t"))
    if len(fields) != 3:
        raise at.error(f"{len(fields)} columns", "Write id<TAB>text<TAB>title.", line)
    if at.number == 1 and fields == _HEADER:
        return None
    return Document(fields[0], fields[2], fields[1])


def _unquoted(field: str) -> str:
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field

"""Negatives that a user brings as a file, with a teacher's scores where it has some."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np

from gr_jax.corpus import lines
from gr_jax.errors import InputError
from gr_jax.training.negatives import Negatives
from gr_jax.training.token_store import Ragged

_REMEDY = (
    "Write `query document`, `query document score`, a TREC run's six fields, or "
    '{"query-id": …, "negatives": […], "scores": […]} on every line.'
)


def negatives_from_file(
    file: str | os.PathLike,
    query_ids: Sequence[str],
    relevant: Ragged,
    count: int,
    *,
    find_document: Callable[[str], int | None],
    known_queries: Container[str] = (),
) -> Negatives:
    """Reads the wrong answers of every query, in the order of the file.

    Lines, plain or gzipped, are one of

    * `query document`, or `query document score` with a teacher's score, fields apart by white space;
    * `query Q0 document rank score tag`, a TREC run: its scores are a retriever's and no teacher's, and its order is
      that of the file;
    * `{"query-id": "q1", "negatives": ["d3", "d8"], "scores": [1.5, -2]}`, JSON; scores may be left out.

    Documents that answer a query are never its negatives: where the file names them, as every run does, they are passed
    over, but a teacher's score of the answer of the row is kept. A teacher who scored no answer is refused: what is
    learnt from one is how far answers are above the others.

    Args:
      file: the file.
      query_ids: the training query of each row; "" has no id (a pseudo-query), and gets no negatives. One query may
        have several rows, one for each answer.
      relevant: of every row the documents that answer it, that of the row first.
      count: negatives of a row at most.
      find_document: position in the corpus of an id, None where there is none: `Corpus.find`.
      known_queries: ids that the file may name beside those of the rows (of other splits), and that are passed over.

    Returns:
      The table; with teacher's scores where the file has any.

    Raises:
      InputError: naming file and line: another number of fields, a query or document that does not exist, a document
        twice for one query, a score that is no finite number. Or no line is about any row, or negatives have scores
        and no answer has.
    """
    if len(query_ids) != len(relevant):
        raise InputError(
            f"{len(query_ids)} ids of queries and relevant documents of {len(relevant)}", "Give one id for each row."
        )
    rows: dict[str, list[int]] = {}
    for row, query_id in enumerate(query_ids):
        if query_id:
            rows.setdefault(query_id, []).append(row)
    documents = np.full((len(query_ids), count), -1, np.int32)
    scores = np.full((len(query_ids), 1 + count), np.nan, np.float32)
    filled = np.zeros(len(query_ids), np.int64)
    seen: set[tuple[str, int]] = set()
    used = False
    for number, query_id, doc_id, score in _read(file):
        if query_id not in rows and query_id not in known_queries:
            raise InputError(
                "no query has this id", "Name queries of the data set.", file=file, line=number, value=query_id
            )
        document = find_document(doc_id)
        if document is None:
            raise InputError(
                "no document of the corpus has this id", "Name documents of the corpus.", file=file, line=number,
                value=doc_id,
            )  # fmt: skip
        if (query_id, document) in seen:
            raise InputError(
                "this document was already named for this query", "Keep one of them.", file=file, line=number,
                value=(query_id, doc_id),
            )  # fmt: skip
        seen.add((query_id, document))
        for row in rows.get(query_id, ()):
            used = True
            answers = relevant[row]
            if document in answers:
                if document == answers[0]:
                    scores[row, 0] = score
            elif filled[row] < count:
                documents[row, filled[row]] = document
                scores[row, 1 + filled[row]] = score
                filled[row] += 1
    if not used:
        raise InputError("the file has no negatives of the queries that are trained on", _REMEDY, file=file)
    if np.isnan(scores[:, 0]).all() and not np.isnan(scores[:, 1:]).all():
        raise InputError(
            "the file scores negatives and not one answer, so that there is nothing to compare them with",
            "Name each query's answer with its score too, or leave all scores out.",
            file=file,
        )
    return Negatives(documents, teacher_scores=None if np.isnan(scores).all() else scores)


def _read(file: str | os.PathLike) -> Iterator[tuple[int, str, str, float]]:
    """(line, query, document, the teacher's score or NaN) of every pair."""
    for number, line in lines.read_lines(file):
        if line.lstrip().startswith("{"):
            yield from _read_record(lines.parse_json(line, file, number), file, number)
            continue
        fields = line.split()
        if len(fields) not in (2, 3, 6):
            raise InputError(f"{len(fields)} fields", _REMEDY, file=file, line=number, value=line)
        if len(fields) == 6:
            yield number, fields[0], fields[2], math.nan
        else:
            yield number, fields[0], fields[1], _score(fields[2], file, number) if len(fields) == 3 else math.nan


def _read_record(record: dict[str, Any], file: str | os.PathLike, number: int) -> Iterator[tuple[int, str, str, float]]:
    fields: list[Any] = [record.get(name) for name in ("query-id", "negatives", "scores")]
    query_id, found, scores = fields
    named = isinstance(query_id, str) and isinstance(found, list) and all(isinstance(doc_id, str) for doc_id in found)
    if not named or not (scores is None or (isinstance(scores, list) and len(scores) == len(found))):
        raise InputError(
            "not a query with its negatives",
            _REMEDY,
            file=file,
            line=number,
            value=record,
        )
    for place, doc_id in enumerate(found):
        yield number, query_id, doc_id, math.nan if scores is None else _score(scores[place], file, number)


def _score(value: Any, file: str | os.PathLike, number: int) -> float:
    try:
        score = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not abs(score) < 3.4e38:
        raise InputError("a score is no finite number", "Write a number.", file=file, line=number, value=value)
    return score

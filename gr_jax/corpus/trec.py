"""Qrels and runs in TREC's formats, read and written so that every tool sees the same order."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np

from gr_jax.corpus import lines
from gr_jax.corpus.documents import ID_REMEDY, check_id
from gr_jax.errors import InputError

# Tools that measure count the documents of each grade up to the highest, and beyond 32 bits they count wrongly.
MAX_GRADE = 1_000_000
GRADES = f"Give whole numbers, of at most {MAX_GRADE:,}."
_TINY = float(np.finfo(np.float32).tiny)


class Qrels(Mapping[str, Mapping[str, int]]):
    """Relevance judgements: query id → doc_id → grade, read-only, in the order in which they were given.

    Args:
      judgements: the same, as any mapping. Grades of 1 and more mean relevant.

    Raises:
      InputError: an id that is no text, is empty or holds white space, or a grade that is no integer or beyond
        `MAX_GRADE`.
    """

    def __init__(self, judgements: Mapping[str, Mapping[str, int]]):
        self._judgements: dict[str, Mapping[str, int]] = {}
        for query_id, grades in judgements.items():
            for identifier, noun in ((query_id, "query"), *((doc_id, "document") for doc_id in grades)):
                problem = check_id(identifier, noun)
                if problem:
                    raise InputError(f"qrels with {problem}", ID_REMEDY, value=identifier)
            for doc_id, grade in grades.items():
                problem = check_grade(grade)
                if problem:
                    raise InputError(problem, GRADES, value=(query_id, doc_id, grade))
            self._judgements[query_id] = MappingProxyType({doc_id: int(grade) for doc_id, grade in grades.items()})

    @classmethod
    def load(cls, file: str | os.PathLike, *, allow_none: bool = False) -> Qrels:
        """Reads TREC's `query 0 document grade` or BEIR's `query-id<TAB>corpus-id<TAB>score`, plain or gzipped.

        Of a pair that is judged twice the later line counts, as for the readers of BEIR and ir_measures: published
        qrels have such pairs.

        Args:
          file: the file.
          allow_none: a file without judgements is fine.

        Raises:
          InputError: a line with another number of fields, a grade that is no integer, or no judgements.
        """
        return cls.from_rows(file, read_qrels(file), allow_none=allow_none)

    @classmethod
    def from_rows(
        cls, file: str | os.PathLike, rows: Iterable[tuple[int, str, str, int]], *, allow_none: bool = False
    ) -> Qrels:
        """Collects what `read_qrels` streams from `file`; raises as `load`."""
        judgements: dict[str, dict[str, int]] = {}
        for _, query_id, doc_id, grade in rows:
            judgements.setdefault(query_id, {})[doc_id] = grade
        if not judgements and not allow_none:
            raise InputError("the file holds no judgements", "Write one judgement a line.", file=file)
        return cls(judgements)

    def save(self, file: str | os.PathLike) -> None:
        """Writes BEIR's format where the name ends in .tsv or .tsv.gz, TREC's otherwise."""
        pairs = ((query_id, doc_id, grade) for query_id, grades in self.items() for doc_id, grade in grades.items())
        if os.fspath(file).endswith((".tsv", ".tsv.gz")):
            rows = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{grade}" for q, d, grade in pairs)]
        else:
            rows = [f"{q} 0 {d} {grade}" for q, d, grade in pairs]
        lines.write_lines(file, rows)

    @property
    def num_pairs(self) -> int:
        """How many judgements there are."""
        return sum(map(len, self._judgements.values()))

    def __getitem__(self, query_id: str) -> Mapping[str, int]:
        return self._judgements[query_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._judgements)

    def __len__(self) -> int:
        return len(self._judgements)

    def __repr__(self) -> str:
        return f"Qrels({len(self)} queries, {self.num_pairs} pairs)"


class Run(Mapping[str, list[tuple[str, float]]]):
    """Answers: query id → [(doc_id, score)], best first.

    Args:
      results: the same; lists are sorted by descending score, equal scores keep their order.

    Raises:
      InputError: a document twice in one list, an id that is empty or holds white space, or a score that is no finite
        number.
    """

    def __init__(self, results: Mapping[str, Iterable[tuple[str, float]]]):
        self._results: dict[str, list[tuple[str, float]]] = {}
        for query_id, hits in results.items():
            hits = [(doc_id, float(score)) for doc_id, score in hits]
            problem = check_id(query_id, "query")
            if problem:
                raise InputError(f"a run with {problem}", ID_REMEDY, value=query_id)
            seen = set()
            for doc_id, score in hits:
                problem = check_id(doc_id, "document")
                if not problem and doc_id in seen:
                    problem = "a document twice among the results of one query"
                # trec_eval holds scores in float32.
                if not problem and not abs(score) < 3.4e38:
                    problem = "a score that is no finite number"
                if problem:
                    raise InputError(problem, "Correct or leave out this result.", value=(query_id, doc_id, score))
                seen.add(doc_id)
            hits.sort(key=lambda hit: -hit[1])
            self._results[query_id] = hits

    @classmethod
    def load(cls, file: str | os.PathLike) -> Run:
        """Reads TREC's `query Q0 document rank score tag`, plain or gzipped.

        As in trec_eval the scores give the order, and the rank is not looked at; equal scores keep the order of the
        file.

        Raises:
          InputError: a line with fewer than six fields, a score that is no finite number, a document twice for one
            query, or no results.
        """
        results: dict[str, list[tuple[str, float]]] = {}
        seen = set()
        for number, line in lines.read_lines(file):
            fields = line.split(maxsplit=5)
            if len(fields) != 6:
                raise InputError(
                    f"{len(fields)} fields where a run has six",
                    "Write `query Q0 document rank score tag` on every line.",
                    file=file,
                    line=number,
                    value=line,
                )
            query_id, _, doc_id, _, score, _ = fields
            if (query_id, doc_id) in seen:
                raise InputError(
                    "this document was already retrieved for this query",
                    "Keep one of the two lines.",
                    file=file,
                    line=number,
                    value=(query_id, doc_id),
                )
            seen.add((query_id, doc_id))
            results.setdefault(query_id, []).append((doc_id, _parse_score(score, file, number)))
        if not results:
            raise InputError("the file holds no results", "Write one result a line.", file=file)
        return cls(results)

    def save(self, file: str | os.PathLike, tag: str = "gr_jax") -> None:
        """Writes a TREC run whose scores fall strictly in float32.

        trec_eval sorts by score again, in float32, and breaks ties by document id. So that every reader sees this
        order, a score that is not below the one before is lowered to the next float32 below it.

        Args:
          file: where; gzipped where the name ends in .gz.
          tag: name of the system, without white space.

        Raises:
          InputError: as `check_tag`; or the file cannot be written.
        """
        check_tag(tag)
        rows = []
        for query_id, hits in self.items():
            scores = strictly_decreasing([score for _, score in hits])
            rows += [
                # Nine significant digits tell all float32 apart.
                f"{query_id} Q0 {doc_id} {rank} {score:.9g} {tag}"
                for rank, ((doc_id, _), score) in enumerate(zip(hits, scores, strict=True), start=1)
            ]
        lines.write_lines(file, rows)

    def __getitem__(self, query_id: str) -> list[tuple[str, float]]:
        return self._results[query_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"Run({len(self)} queries, {sum(map(len, self._results.values()))} results)"


def strictly_decreasing(scores: Iterable[float]) -> list[float]:
    """The nearest float32 values, each lowered as little as makes it less than the one before."""
    out: list[float] = []
    last = math.inf
    for score in scores:
        value = float(np.float32(score))
        if value >= last:
            value = float(np.nextafter(np.float32(last), np.float32(-np.inf)))
        if 0 < abs(value) < _TINY:
            # Numbers below the smallest normal float32 are zero on hardware that flushes them.
            value = 0.0 if last > 0 else -_TINY
        out.append(value)
        last = value
    return out


def read_qrels(file: str | os.PathLike) -> Iterator[tuple[int, str, str, int]]:
    """Streams (line number, query id, doc_id, grade) of a qrels file in TREC's or BEIR's format.

    Raises:
      InputError: a line with another number of fields than the first, or a grade that is no integer.
    """
    expected = 0
    for number, line in lines.read_lines(file):
        fields = line.split()
        if not expected:
            if [field.lower() for field in fields] in (
                ["query-id", "corpus-id", "score"],
                ["query_id", "doc_id", "score"],
            ):
                expected = 3
                continue
            expected = 3 if len(fields) == 3 else 4
        if len(fields) != expected:
            raise InputError(
                f"{len(fields)} fields where {expected} are expected",
                "Write `query 0 document grade`, or `query-id<TAB>corpus-id<TAB>score` under a header.",
                file=file,
                line=number,
                value=line,
            )
        try:
            grade = int(_plain(fields[-1]))
            problem = check_grade(grade)
        except ValueError:
            problem = "a grade is no integer"
        if problem:
            raise InputError(problem, GRADES, file=file, line=number, value=line)
        yield number, fields[0], fields[-2], grade


def check_grade(grade: object) -> str | None:
    """What is wrong with a grade; None where nothing is."""
    if not isinstance(grade, int | np.integer):
        return "a grade is no integer"
    return None if abs(int(grade)) <= MAX_GRADE else f"a grade beyond {MAX_GRADE:,}"


def check_tag(tag: str) -> None:
    """Raises InputError for a run's name that is empty or holds white space."""
    if tag.split() != [tag]:
        raise InputError("a run's tag must be one word", "Replace white space by '_'.", value=tag)


def _plain(number: str) -> str:
    """A number as every tool reads it; ValueError for what Python alone does: 1_0, and digits of other scripts."""
    if "_" in number or not number.isascii():
        raise ValueError(number)
    return number


def _parse_score(text: str, file: str | os.PathLike, number: int) -> float:
    try:
        score = float(_plain(text))
    except ValueError:
        score = math.nan
    if not abs(score) < 3.4e38:
        raise InputError("a score is no finite number", "Write a number.", file=file, line=number, value=text)
    return score

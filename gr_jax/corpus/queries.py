"""Queries: ids and texts."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable

from gr_jax.corpus import lines
from gr_jax.corpus.documents import check_id
from gr_jax.errors import InputError

_LIST = re.compile(r'\s*\[\s*($|[{"\]])')  # its beginning; "[START_ENT] EU [END_ENT]" begins a question


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries in order.

    Attributes:
      ids: unique, without white space.
      texts: one for each id, none of them blank.

    Raises:
      InputError: ids and texts differ in number, an id is unusable or comes twice, or a text is blank.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    def __post_init__(self):
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "texts", tuple(self.texts))
        if len(self.ids) != len(self.texts):
            raise InputError(f"{len(self.ids)} query ids and {len(self.texts)} texts", "Give one text for each id.")
        seen = set()
        for query_id, text in zip(self.ids, self.texts, strict=True):
            problem = check_id(query_id, "query") or _check_text(text)
            if problem or query_id in seen:
                raise InputError(
                    problem or "two queries have the same id", "Correct or remove this query.", value=(query_id, text)
                )
            seen.add(query_id)

    @classmethod
    def load(cls, file: str | os.PathLike, *, allow_none: bool = False) -> Queries:
        """Reads queries, plain or gzipped.

        Accepts BEIR's JSON lines ({"_id", "text"}), `id<TAB>text` as MS MARCO has it, or one query a line, which is
        then called q1, q2, … after its line.

        Args:
          file: the file.
          allow_none: a file without queries is fine.

        Raises:
          InputError: a line that cannot be read, an id that comes twice or is unusable, a blank query, or no queries.
        """
        ids: dict[str, int] = {}
        texts = []
        for number, query_id, text in _read(file):
            problem = check_id(query_id, "query") or _check_text(text)
            if query_id in ids:
                problem = f"this query id stands on line {ids[query_id]} too"
            if problem:
                raise InputError(
                    problem,
                    "Correct or remove this query.",
                    file=file,
                    line=number,
                    value={"_id": query_id, "text": text},
                )
            ids[query_id] = number
            texts.append(text)
        if not ids and not allow_none:
            raise InputError("the file holds no queries", "Write one query a line.", file=file)
        return cls(tuple(ids), tuple(texts))

    def save(self, file: str | os.PathLike) -> None:
        """Writes BEIR's JSON lines."""
        rows = zip(self.ids, self.texts, strict=True)
        lines.write_lines(file, (json.dumps({"_id": i, "text": text}, ensure_ascii=False) for i, text in rows))

    def text(self, query_id: str) -> str:
        """The text of one query.

        Raises:
          InputError: no query has this id.
        """
        return self.texts[self._index(query_id)]

    def select(self, ids: Iterable[str]) -> Queries:
        """The queries with these ids, in the order of `ids`.

        Raises:
          InputError: no query has one of the ids, or one comes twice.
        """
        indices = [self._index(query_id) for query_id in ids]
        return Queries(tuple(self.ids[i] for i in indices), tuple(self.texts[i] for i in indices))

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._positions

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {query_id: i for i, query_id in enumerate(self.ids)}

    def _index(self, query_id: str) -> int:
        try:
            return self._positions[query_id]
        except KeyError:
            raise InputError("no query has this id", "Give an id of the queries.", value=query_id) from None


def _check_text(text: str) -> str | None:
    if not text or text.isspace():
        return "a blank query"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a query that is no valid Unicode: {error.reason}"
    return None


def _read(file: str | os.PathLike):
    """Yields (line number, id, text) of the three formats."""
    style = ""
    for number, line in lines.read_lines(file):
        if not style:
            if _LIST.match(line):
                raise InputError("a JSON list", "Write one JSON object a line.", file=file, line=number, value=line)
            style = "json" if line.lstrip().startswith("{") else "tsv" if "\t" in line else "plain"
        if style == "plain":
            yield number, f"q{number}", line
        elif style == "tsv":
            query_id, tab, text = line.partition("\t")
            if not tab:
                raise InputError(
                    "a line without a tab", "Write id<TAB>text on every line.", file=file, line=number, value=line
                )
            yield number, query_id, text
        else:
            yield number, *_fields(file, number, line)


def _fields(file: str | os.PathLike, number: int, line: str) -> tuple[str, str]:
    record = lines.parse_json(line, file, number)
    return lines.identifier(record, file, number), lines.string(record, "text", file, number)

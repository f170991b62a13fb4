"""MS MARCO's passages (Nguyen et al. 2016, arXiv 1611.09268) and the questions of TREC's Deep Learning tracks.

All are columns between tabs: `collection.tsv` and `queries.*.tsv` have an id and a text, runs a question, a passage and
a rank. Questions are read by `Queries.load`, judgements by `Qrels.load`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from gr_jax.corpus import lines
from gr_jax.corpus.documents import Document, check_id
from gr_jax.corpus.records import Place
from gr_jax.corpus.trec import Run
from gr_jax.errors import InputError


def read_collection(file: str | os.PathLike) -> Iterator[Document]:
    """Streams the passages of `collection.tsv`, plain or gzipped; they have no title.

    Raises:
      InputError: a line that is not an id and a text.
    """
    for number, line in lines.read_lines(file):
        yield passage(line, Place(file, number))


def passage(line: str, at: Place) -> Document:
    """The passage of a line; InputError where it is none."""
    identifier, tab, text = line.partition("\t")
    problem = "no tab" if not tab else check_id(identifier, "passage")
    if problem or not text.strip():
        raise at.error(problem or "a passage without a text", "Write id<TAB>text.", line)
    return Document(identifier, "", text)


def read_run(file: str | os.PathLike) -> Run:
    """A run of `question<TAB>passage<TAB>rank`, plain or gzipped; a passage of rank r has the score 1 / r.

    Raises:
      InputError: a line that is not so, a rank below 1, or a passage twice for one question.
    """
    found: dict[str, dict[str, float]] = {}
    for number, line in lines.read_lines(file):
        at = Place(file, number)
        fields = line.split("\t")
        rank = fields[2].strip() if len(fields) == 3 else ""
        whole = rank.isascii() and rank.isdigit() and len(rank) < 10 and int(rank) > 0
        if not whole or check_id(fields[0], "query") or check_id(fields[1], "document"):
            raise at.error("no question, passage and rank", "Write question<TAB>passage<TAB>rank, ranks from 1.", line)
        hits = found.setdefault(fields[0], {})
        if fields[1] in hits:
            raise at.error("this passage came before", "Give every passage of a question once.", fields[1])
        hits[fields[1]] = 1 / int(rank)
    if not found:
        raise InputError("the file holds no answers", "Write question<TAB>passage<TAB>rank.", file=file)
    return Run({query: hits.items() for query, hits in found.items()})

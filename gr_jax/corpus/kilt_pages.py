"""KILT's knowledge source: pages as documents, and a data set of them and a task's questions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gr_jax.corpus import lines
from gr_jax.corpus.dataset import Dataset
from gr_jax.corpus.documents import Corpus, Document
from gr_jax.corpus.kilt import Question
from gr_jax.corpus.queries import Queries
from gr_jax.corpus.records import Place
from gr_jax.corpus.trec import Qrels
from gr_jax.errors import InputError


def read_pages(file: str | os.PathLike) -> Iterator[Document]:
    """Streams the pages of a knowledge source, plain or gzipped: the paragraphs of a page are the lines of its text.

    Raises:
      InputError: a line that is not such a record.
    """
    for number, record in lines.read_json_lines(file):
        yield page(record, Place(file, number))


def page(record: Mapping[str, Any], at: Place) -> Document:
    """The page of a record; InputError where it is none."""
    identifier = at.identifier(record, "wikipedia_id")
    paragraphs = record.get("text")
    if not isinstance(paragraphs, list) or not all(isinstance(one, str) for one in paragraphs):
        raise at.error("text is no list of texts", 'Give a page\'s paragraphs as "text".', paragraphs)
    title = at.text(record, "wikipedia_title")
    # KILT's first paragraph is the title, and each ends with a line's end of its own.
    body = paragraphs[1:] if paragraphs and paragraphs[0].strip() == title.strip() else paragraphs
    return Document(identifier, title, "\n".join(one.rstrip("\n") for one in body))


def kilt_dataset(
    pages: Iterable[Document],
    tasks: Mapping[str, Iterable[Question]],
    *,
    name: str = "kilt",
    bleu_above: float | None = None,
    missing: str = "refuse",
) -> Dataset:
    """Pages as documents, and questions, by their keys, with the pages that are their evidence.

    Args:
      pages: see `read_pages`.
      tasks: split → questions, see `read_kilt`.
      name: of the data set.
      bleu_above: see `Question.pages`.
      missing: of evidence whose page is not among `pages`: "refuse", or "drop", where a question that keeps no page is
        left out. `Dataset.notes` counts both.

    Raises:
      InputError: evidence on a page that is not there, or a question of two splits.
    """
    if missing not in ("refuse", "drop"):
        raise InputError("evidence on other pages is refused or dropped", 'Use "refuse" or "drop".', value=missing)
    corpus = Corpus.from_documents(pages)
    ids: list[str] = []
    texts: list[str] = []
    qrels: dict[str, dict[str, dict[str, int]]] = {}
    notes = {"questions without evidence": 0, "questions without a page": 0, "pieces of evidence without a page": 0}
    for split, questions in tasks.items():
        judged = qrels.setdefault(split, {})
        for question in questions:
            wanted = question.pages(bleu_above)
            kept = {page: 1 for page in wanted if page in corpus}
            if len(kept) < len(wanted) and missing == "refuse":
                page = next(page for page in wanted if page not in kept)
                raise InputError(
                    f"question {question.id} has evidence on a page that is not there",
                    'Add the page, or give missing="drop".',
                    value=page,
                )
            notes["pieces of evidence without a page"] += len(wanted) - len(kept)
            if not kept:
                notes["questions without a page" if wanted else "questions without evidence"] += 1
                continue
            ids.append(question.key)
            texts.append(question.text)
            judged[question.key] = kept
    queries = Queries(tuple(ids), tuple(texts))
    return Dataset(corpus, queries, {split: Qrels(one) for split, one in qrels.items()}, name, notes=notes)

"""Answers as pages.

A page has one passage or several. It stands where the best of its passages stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gr_jax.corpus.trec import Qrels, Run
from gr_jax.errors import InputError


def run_of_pages(run: Mapping[str, Sequence[tuple[str, float]]], pages: Mapping[str, str]) -> Run:
    """A run over pages: each page once, with the score and at the place of its best passage.

    Args:
      run: query id → [(doc_id, score)], best first.
      pages: doc_id → page.

    Raises:
      InputError: a document without a page.
    """
    found: dict[str, list[tuple[str, float]]] = {}
    for query_id, answers in run.items():
        best: dict[str, float] = {}
        for doc_id, score in answers:
            best.setdefault(_page(pages, doc_id), score)
        found[query_id] = list(best.items())
    return Run(found)


def qrels_of_pages(qrels: Mapping[str, Mapping[str, int]], pages: Mapping[str, str]) -> Qrels:
    """Judgements of pages: the best grade of a page's passages.

    Args:
      qrels: query id → doc_id → grade.
      pages: doc_id → page.

    Raises:
      InputError: a document without a page.
    """
    judged: dict[str, dict[str, int]] = {}
    for query_id, grades in qrels.items():
        of_query = judged.setdefault(query_id, {})
        for doc_id, grade in grades.items():
            page = _page(pages, doc_id)
            of_query[page] = max(grade, of_query.get(page, grade))
    return Qrels(judged)


def _page(pages: Mapping[str, str], doc_id: str) -> str:
    if doc_id not in pages:
        raise InputError("a document that is on no page", "Give the page of every document.", value=doc_id)
    return pages[doc_id]

"""Answers as pages, and KILT's measures of them (Petroni et al. 2021, arXiv 2009.02252, section 5).

A page has one passage or several. It stands where the best of its passages stands. What a question needs is a set of
pages, its evidence; where there are several sets, each of them alone answers it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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


def r_precision(answers: Sequence[str], evidence: Sequence[Collection[str]]) -> float:
    """The best share of an evidence set that is among as many first answers; 0 where there is no evidence.

    Args:
      answers: pages, best first; a page that comes again is passed over.
      evidence: sets of pages.
    """
    unique = list(dict.fromkeys(answers))
    sets = [frozenset(one) for one in evidence if one]
    return max((len(one & frozenset(unique[: len(one)])) / len(one) for one in sets), default=0.0)


def evidence_recall(answers: Sequence[str], evidence: Sequence[Collection[str]], k: int) -> float:
    """The share of evidence sets that are complete within the first k ranks; 0 where there is no evidence.

    A rank is an evidence set, which stands where its last page does, or a page of none. So a set of several pages takes
    one rank.

    Args:
      answers: pages, best first; a page that comes again is passed over.
      evidence: sets of pages; equal ones count once.
      k: ranks.

    Raises:
      InputError: k < 1.
    """
    if k < 1:
        raise InputError("recall needs a rank", "Give k ≥ 1.", value=k)
    missing = [set(one) for one in dict.fromkeys(frozenset(one) for one in evidence if one)]
    if not missing:
        return 0.0
    ranks: list[int | bool] = []  # the number of a set that is not complete yet; whether a rank is a complete set
    for page in dict.fromkeys(answers):
        own = [number for number, pages in enumerate(missing) if page in pages]
        for number in own:
            ranks = [rank for rank in ranks if rank is True or rank is False or rank != number]
            missing[number].remove(page)
            ranks.append(number if missing[number] else True)
        if not own:
            ranks.append(False)
    return sum(rank is True for rank in ranks[:k]) / len(missing)

"""Study `remedies` of `benchmarks.gr_vs_dr`: what helps a writer that was wrong early, and what it costs.

A writer loses a document where a code of it falls out of the beam. The paper proposes that a document near a border is
in several clusters, that the search steps back, and that a short prefix is written and documents under it are compared
by their vectors. Cost is the documents that are scored for a question, in the mean. A document that is looked at in two
clusters counts twice.

* GR-codebook with few beams and many: a document a beam.
* Back-off: the same beams, then all documents that begin with the first code of one that was written.
* A shallow prefix: only first codes are written, then all documents under them. Here, and after stepping back,
  documents are ranked by the trained network's vector of the question and their own.
* GDR, which is made for shallow prefixes, on its own clusters: each document in one, or those near a border in two.

All of it is on `squad_dev`, both test splits, one seed. "found" says how often an answer is among what is scored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

import gr_jax
from benchmarks import gdr_quality, gr_vs_dr_codebook, harness
from benchmarks.recipe_runs import RecipeRun
from gr_jax import storage
from gr_jax.corpus import Dataset, Queries, read_beir
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.systems.gdr.retriever import GDRRetriever

DATA, SPLITS = "squad_dev", ("test", "test_unseen")
QUESTIONS = 3976  # of both
BEAMS = (1, 2, 5, 10, 20, 50, 100)
CHOSEN = (1, 2, 5, 10, 20, 40, 80)
RANKS = (1, 10)
SCORED, FOUND = "documents scored", "found"
Values = Mapping[str, float]
Right = Bool[np.ndarray, "queries documents"]
Candidates = Bool[np.ndarray, "queries documents"]


def writes(retriever: GenerativeRetriever, queries: Sequence[str], beams: int) -> list[list[int]]:
    """The documents that a writer finds with so many beams, the best first."""
    found = retriever.searching(beams=beams).retrieve(queries, min(beams, retriever.num_documents)).doc_index
    return [[int(place) for place in row if place >= 0] for row in found]


def groups(docids: Docids, depth: int) -> np.ndarray:
    """A number for each document, the same for documents whose docids begin with the same tokens.

    Args:
      docids: one a document.
      depth: how many tokens.
    """
    rows = np.concatenate([docids.rows_of(document) for document in range(docids.num_documents)])
    return np.unique(docids.tokens[rows][:, :depth], axis=0, return_inverse=True)[1].reshape(-1)


def backed_off(docids: Docids, written: Sequence[Sequence[int]], depth: int) -> Candidates:
    """All documents that begin as one of those that were written.

    Args:
      docids: of the documents.
      written: for each question, documents.
      depth: tokens that are kept of each.
    """
    group = groups(docids, depth)
    return np.stack([np.isin(group, group[list(documents)]) for documents in written])


def under_prefixes(retriever: GenerativeRetriever, queries: Sequence[str], beams: int, depth: int = 1) -> Candidates:
    """All documents under the prefixes that a writer keeps.

    Args:
      retriever: it.
      queries: texts.
      beams: prefixes kept.
      depth: tokens of a prefix.
    """
    docids = retriever.docids
    group, first = groups(docids, depth), dict[tuple[int, ...], int]()
    for document in range(docids.num_documents):
        first.setdefault(tuple(docids.sequence(*docids.rows_of(document))[:depth]), int(group[document]))
    kept = retriever.searching(beams=beams).kept_prefixes(queries)
    return np.stack([np.isin(group, [first[one] for one in its[depth - 1] if one in first]) for its in kept])


def ranked(candidates: Candidates, scores: Float[np.ndarray, "queries documents"]) -> list[list[int]]:
    """Each question's candidates, the best first, as many as the deepest rank."""
    order = np.argsort(np.where(candidates, -scores, np.inf), axis=1, kind="stable")[:, : max(RANKS)]
    return [[int(one) for one in row if its[one]] for row, its in zip(order, candidates, strict=True)]


def measured(found: Bool[np.ndarray, " queries"], best: Sequence[Sequence[int]], right: Right, cost: float) -> Values:
    """What is said of a point.

    Args:
      found: whether an answer was scored.
      best: the ranking of each question.
      right: which documents answer it.
      cost: documents scored for a question, in the mean.
    """
    success = {
        f"Success@{rank}": float(np.mean([its[row[:rank]].any() for row, its in zip(best, right, strict=True)]))
        for rank in RANKS
    }
    return {SCORED: cost, FOUND: float(np.mean(found)), **success}


def asked(dataset: Dataset) -> tuple[Queries, Right]:
    """The questions of all splits, and which documents answer each."""
    ids, texts, rows = [], [], []
    for split in SPLITS:
        if split not in dataset.qrels:
            continue
        queries, qrels = dataset.split_queries(split), dataset.split(split)
        for one, text in zip(queries.ids, queries.texts, strict=True):
            row = np.zeros(len(dataset.corpus), bool)
            row[[dataset.corpus.index_of(doc_id) for doc_id, grade in qrels[one].items() if grade > 0]] = True
            ids.append(one)
            texts.append(text)
            rows.append(row)
    return Queries(tuple(ids), tuple(texts)), np.stack(rows)


def of_codebook(run: RecipeRun, remedy: str, beams: int) -> Values:
    """A point of GR-codebook.

    Args:
      run: indexed where it is not.
      remedy: "writes", "backs off" or "shallow prefix".
      beams: of the search; of shallow prefixes, how many.
    """
    run.index()
    retriever: Any = gr_jax.load(run.folder / "index").retriever
    dataset = read_beir(run.source)
    queries, right = asked(dataset)
    if remedy == "shallow prefix":
        candidates = under_prefixes(retriever, queries.texts, beams)
    else:
        written = writes(retriever, queries.texts, beams)
        if remedy == "writes":
            found = np.asarray([its[row].any() for row, its in zip(written, right, strict=True)])
            return measured(found, written, right, float(np.mean([len(row) for row in written])))
        if remedy != "backs off":
            raise InputError("no such remedy", "Name one of writes, backs off, shallow prefix.", value=remedy)
        candidates = backed_off(retriever.docids, written, 1)
    vectors = gr_vs_dr_codebook.trained(run).encode(queries.texts, "query")
    best = ranked(candidates, vectors @ gr_vs_dr_codebook.whole(run).T)
    return measured((candidates & right).any(axis=1), best, right, float(candidates.sum(axis=1).mean()))


def of_gdr(run: RecipeRun, chosen: int) -> Values:
    """A point of GDR.

    Args:
      run: indexed where it is not.
      chosen: clusters looked into.
    """
    run.index()
    retriever = gr_jax.load(run.folder / "index").retriever
    assert isinstance(retriever, GDRRetriever)
    dataset = read_beir(run.source)
    queries, right = asked(dataset)
    decoded = retriever.decode(queries.texts)
    scored = retriever.share_scored(decoded, chosen) * retriever.searcher.num_live
    found = [retriever.looks_into(decoded, row, np.flatnonzero(its), chosen).any() for row, its in enumerate(right)]
    index, _ = retriever.search(decoded, max(RANKS), chosen=chosen)
    best = [[int(place) for place in row if place >= 0] for row in index]
    return measured(np.asarray(found), best, right, float(scored.mean()))


def clusters() -> dict[str, RecipeRun]:
    """GDR whose documents are in one cluster, or near a border in two."""
    one, two = (("",), ("border", "Clusters.most_docids=2"))
    made = {
        f"GDR, {title}": gdr_quality.small("gdr", *how, seeds=(0,))[0]
        for title, how in (("one cluster", one), ("two clusters near a border", two))
    }
    return made


def draw(current: Mapping[str, Values]) -> None:
    """How often an answer is found by the documents scored, of the rows that are recorded."""
    from gr_jax.evaluation import plots

    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows():
        if row.name in current:
            title = row.name.removeprefix("remedies: ").rpartition(", ")[0]
            lines.setdefault(title, []).append((current[row.name][SCORED], current[row.name][FOUND]))
    lines = {title: points for title, points in lines.items() if len(points) > 1}
    if lines:
        figure = plots.curves(
            {"answer among them": lines}, title=f"Documents scored, {DATA}, both test splits",
            x="documents scored for a query", logarithmic=True, queries={"answer among them": QUESTIONS},
        )  # fmt: skip
        storage.write_bytes(harness.RESULTS / "gr_vs_dr_remedies.svg", plots.to_svg(figure))


def rows() -> list[harness.Row]:
    """The study."""
    codebook, table = gr_vs_dr_codebook.runs(DATA)[0], []
    for remedy in ("writes", "backs off", "shallow prefix"):
        for beams in BEAMS:
            said = "prefixes" if remedy == "shallow prefix" else "beams"
            measure = functools.partial(of_codebook, codebook, remedy, beams)
            table.append(_row(f"GR-codebook {remedy}, {beams} {said}", codebook, measure))
    for title, run in clusters().items():
        table += [
            _row(f"{title}, {chosen} looked into", run, functools.partial(of_gdr, run, chosen)) for chosen in CHOSEN
        ]
    return table


def _row(title: str, run: RecipeRun, measure: Callable[[], Values]) -> harness.Row:
    return harness.Row(
        name=f"remedies: {title}",
        config={"splits": list(SPLITS)},
        measure=measure,
        corpus=run.fingerprint,
        seeds=(0,),
        runs=[run],
    )

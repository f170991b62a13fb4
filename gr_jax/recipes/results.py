"""The last stage: answer every judged split, beside BM25, and write runs, measures and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import evaluation, retrievers, storage
from gr_jax.docids import Docids
from gr_jax.recipes import documents, mining
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import index
from gr_jax.retrievers.generative import GenerativeRetriever

MEASURES = ("Success@1", "Success@10", "R@100", "RR@10", "nDCG@10")
DEPTH = 100
NUM_EXAMPLES = 4


def judged_splits(dataset: corpus_lib.Dataset) -> list[str]:
    """The splits that are reported: those that nothing was trained on or chosen by, and that have queries."""
    held_out = [split for split, qrels in dataset.qrels.items() if split not in ("train", "dev") and len(qrels)]
    return held_out or [split for split in dataset.qrels if split == "dev" and len(dataset.qrels[split])]


def results_stage(
    name: str,
    corpus: Stage,
    docids: Stage,
    model: Stage,
    built: Stage,
    bm25: Stage | None = None,
    *,
    provenance: dict[str, Any],
) -> Stage:
    """Runs, measures and the report of one system.

    Args:
      name: of the system, in tables.
      built: the index stage.
      bm25: its stage, where BM25 is not as it is by default.
      provenance: settings that reports must say: "pseudo_queries", "normalizer", "seeds".
    """

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        searcher = index.load(place.inputs["index"])
        if bm25 is None:
            baseline = retrievers.BM25(dataset.corpus, transform=dataset.transform)
        else:
            baseline = mining.load_bm25(place.inputs[bm25.name], dataset)
        splits = judged_splits(dataset)
        about = evaluation.Provenance(
            corpus={"name": dataset.name, **dataset.fingerprint},
            split=splits,
            duplicate_rule=_duplicate_rule(documents.load_docids(place.inputs["docids"])),
            constraint="trie over all docids",
            **provenance,
        )
        report = evaluation.Report(f"{name} on {dataset.name}", about, baseline="BM25")
        judge(place, report, dataset, {"BM25": baseline, name: searcher.retriever})
        curves = place.inputs["model"] / "metrics.jsonl"
        if curves.stat().st_size:  # an untrained network, or a few steps, leave nothing to draw
            report.add_training(name, curves)
        if splits:
            _look_inside(report, name, dataset, splits[-1], searcher, documents.load_docids(place.inputs["docids"]))
        finish(place, report, dataset)

    settings = {"name": name, "measures": list(MEASURES), "depth": DEPTH, "provenance": provenance}
    return Stage("results", settings, (corpus, docids, model, built, *([] if bm25 is None else [bm25])), make)


def judge(
    place: Workplace,
    report: evaluation.Report,
    dataset: corpus_lib.Dataset,
    systems: Mapping[str, retrievers.Retriever],
) -> dict[str, dict[str, evaluation.Evaluation]]:
    """Answers every judged split with every system; writes runs and metrics.json; returns split → system → measures."""
    values: dict[str, dict[str, evaluation.Evaluation]] = {}
    for split in judged_splits(dataset):
        queries, qrels = dataset.split_queries(split), dataset.split(split)
        for system, retriever in systems.items():
            run = retrievers.retrieve_run(retriever, queries, dataset.corpus, k=DEPTH, progress=True)
            tag = "_".join(system.split())  # one word, as TREC wants it
            run.save(place.folder / "runs" / f"{tag}.{split}.trec", tag=tag)
            measured = evaluation.evaluate(run, qrels, MEASURES)
            report.add(system, split, measured)
            values.setdefault(split, {})[system] = measured
    storage.write_json(
        place.folder / "metrics.json",
        {split: {system: dict(measured) for system, measured in rows.items()} for split, rows in values.items()},
    )
    return values


def finish(place: Workplace, report: evaluation.Report, dataset: corpus_lib.Dataset) -> None:
    """Writes the report and what its commands need, and prints its table."""
    report.save(place.folder)
    dataset.queries.save(place.folder / "queries.jsonl")
    splits = judged_splits(dataset)
    for split in splits:
        dataset.split(split).save(place.folder / "qrels" / f"{split}.tsv")
    evaluation.print_table(report)
    if not splits:
        print("There are no judged queries: nothing can be measured. Ask the index itself, as shown below.")


def add_examples(
    report: evaluation.Report, name: str, dataset: corpus_lib.Dataset, split: str, searcher: retrievers.Searcher
) -> None:
    """Adds example searches."""
    queries, qrels = dataset.split_queries(split), dataset.split(split)
    for query_id, question in list(zip(queries.ids, queries.texts, strict=True))[:NUM_EXAMPLES]:
        right = {doc_id for doc_id, grade in qrels[query_id].items() if grade > 0}
        report.add_example(question, searcher.search(question, 5), relevant=right, system=name)


def _duplicate_rule(docids: Docids) -> str:
    per_docid = np.diff(docids.offsets)
    sharing = int(per_docid[per_docid > 1].sum())
    shared = f"{sharing} documents share theirs" if sharing else ""
    if len(docids.documents) > docids.num_documents:
        each = f"{len(docids.documents) / docids.num_documents:.1f} docids a document, {shared or 'none shared'}"
    else:
        each = ", ".join(filter(None, ("one docid each", shared)))
    return f"documents as they are given; {each}"


def _look_inside(
    report: evaluation.Report,
    name: str,
    dataset: corpus_lib.Dataset,
    split: str,
    searcher: retrievers.Searcher,
    docids: Docids,
) -> None:
    """Adds example searches, and at which depth the right docids were lost."""
    add_examples(report, name, dataset, split, searcher)
    queries, qrels = dataset.split_queries(split), dataset.split(split)
    if isinstance(searcher.retriever, GenerativeRetriever):
        sample = queries.select(queries.ids[:200])
        gold = [
            [dataset.corpus.index_of(doc_id) for doc_id, grade in qrels[query_id].items() if grade > 0]
            for query_id in sample.ids
        ]
        report.add_beam_survival(name, beam_survival(searcher.retriever, sample.texts, gold, docids))


def beam_survival(
    retriever: GenerativeRetriever, queries: Sequence[str], gold: Sequence[Sequence[int]], docids: Docids
) -> np.ndarray:
    """Share of queries that still have a prefix of a right docid in the beam, by depth.

    Args:
      retriever: with its own number of beams.
      queries: questions.
      gold: the right documents of each; a question without any is left out.
      docids: of the retriever.

    Returns:
      float [max_len]: entry i is for the first i + 1 tokens, among the hypotheses that were kept after as many.
    """
    asked = [(query, relevant) for query, relevant in zip(queries, gold, strict=True) if len(relevant)]
    alive = np.zeros(docids.tokens.shape[1])
    if not asked:
        return alive
    kept = retriever.kept_prefixes([query for query, _ in asked])
    for prefixes, (_, relevant) in zip(kept, asked, strict=True):
        right = [docids.sequence(int(row)) for document in relevant for row in docids.rows_of(document)]
        for depth in range(1, len(alive) + 1):
            alive[depth - 1] += any(tuple(tokens[:depth]) in prefixes[depth - 1] for tokens in right)
    return alive / len(asked)

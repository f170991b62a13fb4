"""The last stage: answer every judged split, beside BM25, and write runs, measures and a report."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gr_jax import corpus as corpus_lib
from gr_jax import evaluation, processes, retrievers, storage
from gr_jax.docids import Docids
from gr_jax.evaluation.results import HIT_DEPTH
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.base import nested
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.retrievers.hybrid import HybridRetriever, fuse
from gr_jax.stages import hybrid as combination
from gr_jax.stages import run_facts
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.docids import load_docids
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import what_mining_took
from gr_jax.stages.vectors import what_is_read
from gr_jax.training.metric_writers import read_metrics

BM25 = "BM25"
NO_NORMALIZER = "none: scores are compared within one ranking"

MEASURES = ("Success@1", "Success@10", "R@100", "RR@10", "nDCG@10")
DEPTH = 100
NUM_EXAMPLES, HITS_SHOWN = 3, 5  # of hits and of misses; documents of each


def judged_splits(dataset: corpus_lib.Dataset) -> list[str]:
    """The splits that are reported: those that nothing was trained on or chosen by, and that have queries."""
    held_out = [split for split, qrels in dataset.qrels.items() if split not in ("train", "dev") and len(qrels)]
    return held_out or [split for split in dataset.qrels if split == "dev" and len(dataset.qrels[split])]


@stage(together=True)
def generative_results(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path,
    docids: pathlib.Path,
    model: pathlib.Path,
    index: pathlib.Path,
    hybrid: pathlib.Path | None,
    mined: Sequence[pathlib.Path],
    reader: pathlib.Path,
    *,
    name: str,
    provenance: Mapping[str, Any],
) -> None:
    """Runs, measures and the report of a system that writes docids, with BM25 and the combination beside it.

    Args:
      hybrid: the stage of the combination with BM25, if there is one.
      mined: stages of negatives.
      reader: the stage that read the documents for their docids, which says how much of them.
      name: of the system, in tables.
      provenance: settings that reports must say: "pseudo_queries", "normalizer", "seeds".
    """
    dataset = load_dataset(corpus)
    searcher = indexes.load(index)
    ids = load_docids(docids)
    splits = judged_splits(dataset)
    systems = {BM25: load_bm25(bm25, dataset), name: searcher.retriever}
    about = {"duplicate_rule": _duplicate_rule(ids), "constraint": "trie over all docids", **provenance}
    report = judged_report(place, dataset, name, systems, hybrid, about)
    if not processes.first():
        return  # one report is enough
    report.add_fact("documents read", what_is_read(reader))
    report.add_fact("mining", what_mining_took(mined))
    add_training(report, name, model)
    if splits and isinstance(searcher.retriever, GenerativeRetriever):
        _look_inside(report, name, dataset, splits[0], searcher.retriever, ids)
    finish(place, report, dataset, systems, name, index, [corpus, bm25, model, hybrid])


def start_report(name: str, dataset: corpus_lib.Dataset, provenance: Mapping[str, Any]) -> evaluation.Report:
    """A report of a system and its baseline; where `provenance` says nothing else, of one that generates nothing."""
    about = evaluation.Provenance(
        corpus={"name": dataset.name, **dataset.fingerprint},
        split=judged_splits(dataset),
        **{
            "duplicate_rule": "documents as they are given",
            "constraint": "none: nothing is generated",
            "normalizer": NO_NORMALIZER,
            **provenance,
        },
    )
    return evaluation.Report(f"{name} on {dataset.name}", about, baseline=BM25)


def judged_report(
    place: Place,
    dataset: corpus_lib.Dataset,
    name: str,
    systems: Mapping[str, retrievers.Retriever],
    hybrid: pathlib.Path | None,
    provenance: Mapping[str, Any],
) -> evaluation.Report:
    """The report of a system, with what several reached on every judged split, and a line where dev prefers another.

    Args:
      name: of the system.
      systems: it, and what stands beside it.
      hybrid: the stage of the combination with BM25, which then stands beside them too; None: there is none.
      provenance: see `start_report`.
    """
    if hybrid is None:
        report = start_report(name, dataset, provenance)
        judge(place, report, dataset, systems)
        return report
    combined = combination.NAME.format(name)
    normalizer = provenance.get("normalizer", NO_NORMALIZER)
    said = {"normalizer": f"{normalizer}; {combined}: {combination.how_combined(hybrid)}"}
    report = start_report(name, dataset, {**provenance, **said})
    values = judge(place, report, dataset, {**systems, combined: combination.load_hybrid(hybrid)})
    compared = combination.compare_with_parts(values, combined)
    storage.write_json(place.folder / "comparisons.json", compared)
    report.add_remark(combination.what_dev_prefers(hybrid, name))
    return report


def add_training(report: evaluation.Report, name: str, model: pathlib.Path) -> None:
    """Adds the curves of a training, where there was one that left something to draw."""
    curves = model / "metrics.jsonl"
    if any(record.keys() - {"step"} for record in read_metrics(curves)):
        report.add_training(name, curves)


def judge(
    place: Place,
    report: evaluation.Report,
    dataset: corpus_lib.Dataset,
    systems: Mapping[str, retrievers.Retriever],
) -> dict[str, dict[str, evaluation.Evaluation]]:
    """Answers every judged split with every system; writes runs and metrics.json; returns split → system → measures."""
    values: dict[str, dict[str, evaluation.Evaluation]] = {}
    for split in judged_splits(dataset):
        queries, qrels = dataset.split_queries(split), dataset.split(split)
        for system, ranking in _answers(systems, queries):
            run = retrievers.ranking_to_run(ranking, queries.ids, dataset.corpus)
            tag = "_".join(system.split())  # one word, as TREC wants it
            run.save(run_file(place.folder, system, split), tag=tag)
            measured = evaluation.evaluate(run, qrels, MEASURES)
            report.add(system, split, measured, run=run)
            values.setdefault(split, {})[system] = measured
    storage.write_json(
        place.folder / "metrics.json",
        {split: {system: dict(measured) for system, measured in rows.items()} for split, rows in values.items()},
    )
    return values


def run_file(results: pathlib.Path, system: str, split: str) -> pathlib.Path:
    """The run of a system, in a folder of results; characters that no system of files likes are "_"."""
    name = re.sub(r"[^\w.+→-]+", "_", system)
    return results / "runs" / f"{name}.{split}.trec"


def _answers(
    systems: Mapping[str, retrievers.Retriever], queries: corpus_lib.Queries
) -> Iterator[tuple[str, retrievers.Ranking]]:
    """What each system answers. A combination takes what its parts have answered already, where that says all that it
    would ask them for: a generative part is slow."""
    combinations = [one for one in systems.values() if isinstance(one, HybridRetriever)]
    deepest = max([DEPTH, *(one.depth for one in combinations)])
    answered: dict[str, retrievers.Ranking] = {}
    for system, retriever in systems.items():
        if isinstance(retriever, HybridRetriever) and retriever.parts.keys() <= answered.keys():
            parts = [answered[part] for part in retriever.parts]
            yield system, fuse(parts, retriever.weights, DEPTH, normalize=retriever.normalize)[0]
        elif nested(retriever):
            answered[system] = retrievers.retrieve_all(retriever, queries, deepest, progress=True)
            yield system, retrievers.Ranking(answered[system].doc_index[:, :DEPTH], answered[system].score[:, :DEPTH])
        else:
            yield system, retrievers.retrieve_all(retriever, queries, DEPTH, progress=True)


def finish(
    place: Place,
    report: evaluation.Report,
    dataset: corpus_lib.Dataset,
    systems: Mapping[str, retrievers.Retriever],
    name: str,
    index: pathlib.Path,
    read: Sequence[pathlib.Path | None],
) -> None:
    """Adds example searches and what the run took, writes the report and what its commands need, prints its table.

    Args:
      systems: see `judged_report`.
      name: of the system.
      index: of it.
      read: folders of the stages that the numbers come from.
    """
    splits = judged_splits(dataset)
    queries = dataset.split_queries(splits[0]).texts if splits else ()
    if splits:
        add_examples(report, name, dataset, splits[0], retrievers.Searcher(systems[name], dataset.corpus))
    stages = run_facts.stages_behind([index, *(folder for folder in read if folder is not None)])
    report.add_fact("settings", "config.gin in the folder of the run, all of them")
    report.add_fact("weights", run_facts.weights(stages))
    report.add_fact("minutes", run_facts.minutes(stages))
    k = min(HIT_DEPTH, len(dataset.corpus))
    took = {system: run_facts.latency(systems[system], queries, k) for system in (BM25, name) if system in systems}
    said = "; ".join(f"{system} {one}" for system, one in took.items() if one)
    report.add_fact("latency, one query at a time", said)
    report.add_fact("index", run_facts.size(stages[index]) if index in stages else "")
    report.save(place.folder)
    dataset.queries.save(place.folder / "queries.jsonl")
    for split in splits:
        dataset.split(split).save(place.folder / "qrels" / f"{split}.tsv")
    evaluation.print_table(report)
    if not splits:
        print("There are no judged queries: nothing can be measured. Ask the index itself, as shown below.")


def add_examples(
    report: evaluation.Report, name: str, dataset: corpus_lib.Dataset, split: str, searcher: retrievers.Searcher
) -> None:
    """Adds example searches: hits and misses of the system, drawn by a fixed seed, with the answer's rank in it and in
    BM25.

    Args:
      report: with the runs of both on this split.
      name: of the system.
      searcher: of it.
    """
    queries, qrels = dataset.split_queries(split), dataset.split(split)
    texts = {one: text for one, text in zip(queries.ids, queries.texts, strict=True) if text.strip()}
    runs = {system: run for (system, of), run in report.runs.items() if of == split and system in (name, BM25)}
    for query_id in draw_examples(runs[name], qrels, texts):
        right = [doc_id for doc_id, grade in qrels[query_id].items() if grade > 0]
        ranks = {system: rank_of_answer(run.get(query_id, ()), right) for system, run in runs.items()}
        answer = dataset.corpus[dataset.corpus.index_of(right[0])]
        hits = searcher.search(texts[query_id], HIT_DEPTH)[:HITS_SHOWN]
        named = " · ".join(dict.fromkeys(filter(None, (answer.title, answer.doc_id))))
        report.add_example(texts[query_id], hits, relevant=right, system=name, answer=named, ranks=ranks)


def draw_examples(
    run: Mapping[str, Sequence[tuple[str, float]]], qrels: Mapping[str, Mapping[str, int]], queries: Collection[str]
) -> list[str]:
    """Ids of queries, drawn by a fixed seed: hits, which have an answer among the first documents, then misses."""
    hits: list[str] = []
    misses: list[str] = []
    answered = [query for query in queries if any(grade > 0 for grade in qrels.get(query, {}).values())]
    for place in np.random.default_rng(0).permutation(len(answered)).tolist():
        right = [doc_id for doc_id, grade in qrels[answered[place]].items() if grade > 0]
        rank = rank_of_answer(run.get(answered[place], ()), right)
        (hits if rank is not None and rank <= HIT_DEPTH else misses).append(answered[place])
    return hits[:NUM_EXAMPLES] + misses[:NUM_EXAMPLES]


def rank_of_answer(found: Sequence[tuple[str, float]], right: Collection[str]) -> int | None:
    """From 1; None where no answer is among those found."""
    return next((rank for rank, (doc_id, _) in enumerate(found, start=1) if doc_id in right), None)


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
    retriever: GenerativeRetriever,
    docids: Docids,
) -> None:
    """Adds at which depth the right docids were lost."""
    queries, qrels = dataset.split_queries(split), dataset.split(split)
    sample = queries.select(queries.ids[:200])
    gold = [
        [dataset.corpus.index_of(doc_id) for doc_id, grade in qrels[query_id].items() if grade > 0]
        for query_id in sample.ids
    ]
    report.add_beam_survival(f"{name}, {split}", beam_survival(retriever, sample.texts, gold, docids))


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

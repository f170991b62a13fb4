"""The results of systems that write titles."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax.retrievers import index as indexes
from gr_jax.stages import results
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.systems.cgr.vocabulary import load_titles


@stage()
def title_results(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path,
    contextual: pathlib.Path,
    model: pathlib.Path,
    index: pathlib.Path,
    hybrid: pathlib.Path,
    *,
    name: str,
    provenance: Mapping[str, Any],
) -> None:
    """Runs, measures and the report of a system that writes titles, with BM25 and the combination beside it.

    Args:
      name: of the system, in tables.
      provenance: settings that reports must say: "pseudo_queries", "normalizer", "seeds".
    """
    dataset, searcher, titles = load_dataset(corpus), indexes.load(index), load_titles(contextual)
    systems = {results.BM25: load_bm25(bm25, dataset), name: searcher.retriever}
    pages = f"documents as they are given; {len(titles):,} titles, documents of one title are found together"
    about = {"duplicate_rule": pages, "constraint": "trie over all titles", **provenance}
    report = results.judged_report(place, dataset, name, systems, hybrid, about)
    results.add_training(report, name, model)
    splits = results.judged_splits(dataset)
    if splits:
        results.add_examples(report, name, dataset, splits[-1], searcher)
    results.finish(place, report, dataset)

"""The last stage of systems that generate nothing: runs, measures and the report, with BM25 and the combination."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from gr_jax import processes
from gr_jax.retrievers import index as indexes
from gr_jax.stages import results
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.negatives import what_mining_took
from gr_jax.stages.vectors import what_is_read


@stage(together=True)
def dense_results(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path,
    index: pathlib.Path,
    trainings: Sequence[pathlib.Path],
    hybrid: pathlib.Path | None,
    mined: Sequence[pathlib.Path],
    reader: pathlib.Path,
    in_pieces: pathlib.Path | None,
    *,
    name: str,
    titles: Sequence[str],
    provenance: Mapping[str, Any],
) -> None:
    """Runs, measures and the report of one system.

    Args:
      trainings: stages with curves.
      hybrid: the stage of the combination with BM25, if there is one.
      mined: stages of negatives.
      reader: the stage that read the documents, which says how much of them.
      in_pieces: of the documents' pieces, if there is one.
      name: of the system, in tables.
      titles: what reports call each training.
      provenance: settings that reports must say: "pseudo_queries", "seeds".
    """
    dataset = load_dataset(corpus)
    searcher = indexes.load(index)
    systems = {results.BM25: load_bm25(bm25, dataset), name: searcher.retriever}
    report = results.judged_report(place, dataset, name, systems, hybrid, provenance)
    if not processes.first():
        return  # one report is enough
    report.add_fact("documents read", what_is_read(reader, in_pieces))
    report.add_fact("mining", what_mining_took(mined))
    for title, trained in zip(titles, trainings, strict=True):
        results.add_training(report, title, trained)
    results.finish(place, report, dataset, systems, name, index, [corpus, bm25, *trainings, hybrid])

"""The results of systems that write titles."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax import processes, storage
from gr_jax.retrievers import index as indexes
from gr_jax.stages import results
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.docids import load_docids
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.systems.cgr.senses import senses_page
from gr_jax.systems.cgr.vocabulary import load_text_of, load_titles


@stage(together=True)
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
    """Runs, measures and the report of a system that writes titles, with BM25 and the combination beside it; and
    `senses.html`, which pages share the sense of a token (see `senses`).

    Args:
      name: of the system, in tables.
      provenance: settings that reports must say: "pseudo_queries", "normalizer", "seeds".
    """
    dataset, searcher, titles = load_dataset(corpus), indexes.load(index), load_titles(contextual)
    systems = {results.BM25: load_bm25(bm25, dataset), name: searcher.retriever}
    pages = f"documents as they are given; {len(titles):,} titles, documents of one title are found together"
    about = {"duplicate_rule": pages, "constraint": "trie over all titles", **provenance}
    report = results.judged_report(place, dataset, name, systems, hybrid, about)
    if not processes.first():
        return  # one report is enough
    results.add_training(report, name, model)
    results.finish(place, report, dataset, systems, name, index, [corpus, bm25, model, hybrid])
    retriever: Any = searcher.retriever
    # Those of a vocabulary that was made again while the network was trained are with the network.
    written = load_docids(model if (model / "docids").is_dir() else contextual)
    shown = senses_page(titles, written, load_text_of(contextual), retriever.vocabulary)
    storage.write_bytes(place.folder / "senses.html", shown.encode())

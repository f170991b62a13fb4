"""The stages around a writer of n-grams: the text and its FM-index, the retriever, and the results."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from gr_jax import processes
from gr_jax.constraints import FMIndex
from gr_jax.docids.spans import TokenText, token_text
from gr_jax.models.copying import CopyDecoder
from gr_jax.retrievers import index as indexes
from gr_jax.stages import results
from gr_jax.stages.bm25 import load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.pseudo_queries import load_pseudo_queries
from gr_jax.stages.training import folder_bytes
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.ngram.asking import ASKED, Asking, retriever_of


@stage()
def ngrams(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    pseudo_queries: pathlib.Path | None,
    *,
    views: tuple[str, ...],
) -> None:
    """The documents' text as tokens, and the index of its n-grams.

    Args:
      pseudo_queries: needed for the view of that name.
      views: of the text; see `token_text`.
    """
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    made = None if ASKED not in views or pseudo_queries is None else load_pseudo_queries(pseudo_queries)
    text = token_text(dataset.corpus, words, views=views, pseudo_queries=made, progress=True)
    text.save(place.folder / "text")
    found = FMIndex.from_text(text, filters=True)
    found.save(place.folder / "index")
    place.notes.update({"tokens": len(text.tokens), "bytes": folder_bytes(place.folder)})


@stage()
def index(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    ngrams: pathlib.Path,
    model: pathlib.Path,
    *,
    asking: Asking,
) -> None:
    """All that answering needs, in one folder."""
    dataset = load_dataset(corpus)
    retriever = retriever_of(
        CopyDecoder.load(model),
        FMIndex.load(ngrams / "index"),
        TokenText.load(ngrams / "text"),
        load_vocabulary(vocabulary),
        asking,
        dataset,
    )
    indexes.fill(place.folder, retriever, dataset.corpus)
    place.notes.update({"documents": len(dataset.corpus), "bytes": folder_bytes(place.folder)})


@stage(together=True)
def ngram_results(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path,
    model: pathlib.Path,
    index: pathlib.Path,
    hybrid: pathlib.Path,
    *,
    name: str,
    provenance: Mapping[str, Any],
) -> None:
    """Runs, measures and the report of a system that writes n-grams, with BM25 and the combination beside it.

    Args:
      name: of the system, in tables.
      provenance: settings that reports must say: "pseudo_queries", "normalizer", "seeds".
    """
    dataset, searcher = load_dataset(corpus), indexes.load(index)
    systems = {results.BM25: load_bm25(bm25, dataset), name: searcher.retriever}
    about = {"constraint": "FM-index over all documents", **provenance}
    report = results.judged_report(place, dataset, name, systems, hybrid, about)
    if not processes.first():
        return  # one report is enough
    results.add_training(report, name, model)
    results.finish(place, report, dataset, systems, name, index, [corpus, bm25, model, hybrid])

"""BM25 from documents to a saved index: the line that every table is read against."""

from __future__ import annotations

import os
from collections.abc import Callable

import gin

from gr_jax.recipes import dense_index, documents, mining, results
from gr_jax.recipes.dense_settings import Lexical
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Searcher, index

NAME = "BM25"


def bm25_stages(source: Source, *, lexical: Lexical) -> list[Stage]:
    """The stages of `bm25`, in order. That of the terms is the one that other recipes share."""
    corpus = documents.corpus_stage(source)
    terms = mining.bm25_stage(corpus, lexical)

    def fill(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        index.fill(place.folder, mining.load_bm25(place.inputs["bm25"], dataset), dataset.corpus)
        place.meta["documents"] = len(dataset.corpus)

    def judge(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        searcher = index.load(place.inputs["index"])
        provenance = {"pseudo_queries": "none: nothing is trained", "seeds": []}
        report = dense_index.start_report(NAME, dataset, provenance)
        results.judge(place, report, dataset, {NAME: searcher.retriever})
        splits = results.judged_splits(dataset)
        if splits:
            results.add_examples(report, NAME, dataset, splits[-1], searcher)
        results.finish(place, report, dataset)

    built = Stage("index", {}, (corpus, terms), fill)
    measures = {"measures": list(results.MEASURES), "depth": results.DEPTH}
    return [corpus, terms, built, Stage("results", measures, (corpus, built), judge)]


@gin.configurable(module="gr_jax.recipes")
def bm25(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    lexical: Lexical | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Indexes the documents' words and measures the index; see `recipes.dpr` for the other arguments.

    Args:
      lexical: settings; None takes the defaults (under gin: what gin binds).

    Raises:
      InputError: bad documents or settings, or the packages of BM25 are missing.
    """
    return run_stages(
        source,
        lambda found: bm25_stages(found, lexical=lexical or Lexical()),
        model_dir,
        shared_dir=shared_dir,
        until=until,
        say=say,
    )

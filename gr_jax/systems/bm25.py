"""BM25 from documents to a saved index: the line that every table is read against."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar

import gin

from gr_jax import processes
from gr_jax.retrievers import index as indexes
from gr_jax.stages import results
from gr_jax.stages.bm25 import Lexical, bm25, load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.settings import setting
from gr_jax.systems.base import System


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class BM25(System):
    """BM25: the documents' words, weighed by how rare they are and how often a document has them.

    Attributes:
      name: in tables.
      lexical: k1, b and the analyser.
    """

    paper: ClassVar[str] = "Robertson & Zaragoza 2009; Lucene's idf"

    name: str = "BM25"
    lexical: Lexical = setting(Lexical())

    def stages(self, corpus: Stage) -> Stage:
        terms = bm25(corpus, settings=self.lexical)
        return measured(corpus, index(corpus, terms), name=self.name).named("results")


@stage()
def index(place: Place, corpus: pathlib.Path, terms: pathlib.Path) -> None:
    """The words and the documents, in one folder."""
    dataset = load_dataset(corpus)
    indexes.fill(place.folder, load_bm25(terms, dataset), dataset.corpus)
    place.notes["documents"] = len(dataset.corpus)


@stage(together=True)
def measured(place: Place, corpus: pathlib.Path, index: pathlib.Path, *, name: str) -> None:
    """Runs, measures and the report."""
    dataset, searcher = load_dataset(corpus), indexes.load(index)
    report = results.start_report(name, dataset, {"pseudo_queries": "none: nothing is trained", "seeds": []})
    systems = {name: searcher.retriever}
    results.judge(place, report, dataset, systems)
    if processes.first():  # one report is enough
        results.finish(place, report, dataset, systems, name, index, [corpus])

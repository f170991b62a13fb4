"""The stages behind the generator: the queries that it writes, BM25 over documents with them, and the results."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np

from gr_jax import processes, retrievers
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.models.copying import CopyNetworkModel
from gr_jax.retrievers import Searcher
from gr_jax.retrievers import index as indexes
from gr_jax.stages import results
from gr_jax.stages.bm25 import Lexical, load_bm25
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.pseudo_queries import load_pseudo_queries
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.vocabulary import load_vocabulary
from gr_jax.systems.doct5query import generation
from gr_jax.systems.doct5query.generator import load_generator
from gr_jax.text import encode_texts

# Generated queries that a report shows, with what BM25 answers to them.
NUM_SHOWN = 10


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class GeneratedQueries(Settings):
    """The queries that the generator writes.

    Attributes:
      samples: drawn for each document.
      top_k: each token is drawn among so many best ones.
      temperature: below 1 the best are drawn more often.
      within: a query is kept if BM25 ranks its document among so many first; None keeps all.
      most: kept of a document.
      batch_size: documents whose queries are drawn together.
      seed: of the drawing.
    """

    samples: int = setting(30, at_least=1)
    top_k: int = setting(10, at_least=1)
    temperature: float = setting(1.0, above=0)
    within: int | None = setting(3, at_least=1)
    most: int = setting(8, at_least=1)
    batch_size: int = setting(16, at_least=1)
    seed: int = setting(0, at_least=0)


@stage(together=True)
def generated(
    place: Place,
    corpus: pathlib.Path,
    vocabulary: pathlib.Path,
    generator: pathlib.Path,
    bm25: pathlib.Path,
    *,
    document_tokens: int,
    query_tokens: int,
    settings: GeneratedQueries,
) -> None:
    """The queries that are kept, as `PseudoQueries`: any system can train on them, see `PseudoQueries.generated`.

    Args:
      document_tokens, query_tokens: read and written of each.
    """
    dataset, words = load_dataset(corpus), load_vocabulary(vocabulary)
    module, params, own = load_generator(generator)
    tokens, _ = encode_texts(words, dataset.document_texts(), document_tokens)
    drawn = generation.generate(
        CopyNetworkModel(module, own).decoder(params),
        words,
        tokens,
        samples=settings.samples,
        top_k=settings.top_k,
        temperature=settings.temperature,
        query_tokens=query_tokens,
        batch_size=settings.batch_size,
        seed=settings.seed,
        work=place.common,
        progress=True,
    )
    if not processes.first():
        return  # one filters
    kept = generation.filtered(
        drawn,
        load_bm25(bm25, dataset),
        within=settings.within or 0,
        most=settings.most,
        corpus=dataset.corpus.fingerprint,
        progress=True,
    )
    kept.save(place.folder / "pseudo_queries")
    number = len(dataset.corpus)
    place.notes.update({"drawn": settings.samples * number, "kept": len(kept), "per_document": len(kept) / number})


@stage()
def index(place: Place, corpus: pathlib.Path, generated: pathlib.Path, *, lexical: Lexical) -> None:
    """BM25 over documents and their generated queries."""
    dataset, expansions = load_dataset(corpus), load_pseudo_queries(generated)
    bm25 = retrievers.BM25(
        dataset.corpus,
        expansions=expansions,
        k1=lexical.k1,
        b=lexical.b,
        analyzer=lexical.analyzer,
        transform=dataset.transform,
        progress=True,
    )
    indexes.fill(place.folder, bm25, dataset.corpus)
    place.notes.update({"documents": bm25.num_documents, "queries": len(expansions)})


@stage(together=True)
def expanded_results(
    place: Place,
    corpus: pathlib.Path,
    bm25: pathlib.Path,
    generator: pathlib.Path,
    generated: pathlib.Path,
    index: pathlib.Path,
    *,
    name: str,
    provenance: Mapping[str, Any],
) -> None:
    """Runs, measures and a report with generated queries in it.

    Args:
      name: of the system, in tables.
      provenance: settings that reports must say: "pseudo_queries", "seeds".
    """
    dataset, searcher = load_dataset(corpus), indexes.load(index)
    plain = load_bm25(bm25, dataset)
    report = results.start_report(name, dataset, provenance)
    systems = {results.BM25: plain, name: searcher.retriever}
    results.judge(place, report, dataset, systems)
    if not processes.first():
        return  # one report is enough
    results.add_training(report, name, generator)
    _add_generated(report, load_pseudo_queries(generated), Searcher(plain, dataset.corpus))
    results.finish(place, report, dataset, systems, name, index, [corpus, bm25, generator])


def _add_generated(report: Any, queries: PseudoQueries, plain: Searcher) -> None:
    """Adds queries from all over the corpus, each with what BM25 answers."""
    for row in np.linspace(0, len(queries) - 1, min(NUM_SHOWN, len(queries))).astype(int).tolist():
        source, question = plain.corpus[int(queries.documents[row])].doc_id, queries.texts[row]
        report.add_example(question, plain.search(question, 3), relevant={source}, system="generated; BM25 answers")

"""BM25 over documents expanded by queries that a trained generator wrote (docT5query, Nogueira & Lin 2019)."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

import gin
import numpy as np

from gr_jax import retrievers
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.models.query_generator import QueryGeneratorModel
from gr_jax.recipes import dense_index, documents, examples, mining, query_generation, results
from gr_jax.recipes.dense_settings import Lexical
from gr_jax.recipes.learning import seconds_of_earlier_starts
from gr_jax.recipes.query_generator import QueryGenerating, generator_stage, load_generator
from gr_jax.recipes.running import run_stages
from gr_jax.recipes.settings import Settings, at_least
from gr_jax.recipes.sources import Source
from gr_jax.recipes.stages import Stage, Workplace
from gr_jax.retrievers import Searcher, index
from gr_jax.text import encode_texts

# Generated queries that a report shows, with what BM25 answers to them.
NUM_SHOWN = 10


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class GeneratedQueries(Settings):
    """The queries that the generator writes.

    Attributes:
      samples: drawn for each document.
      top_k: each token is drawn among so many best ones.
      temperature: below 1 the best are drawn more often.
      within: a query is kept if BM25 ranks its document among so many first; 0 keeps all.
      most: kept of a document.
      batch_size: documents whose queries are drawn together.
      seed: of the drawing.
    """

    samples: int = 30
    top_k: int = 10
    temperature: float = 1.0
    within: int = 3
    most: int = 8
    batch_size: int = 16
    seed: int = 0

    def __post_init__(self):
        at_least(1, samples=self.samples, top_k=self.top_k, most=self.most, batch_size=self.batch_size)
        at_least(0, within=self.within)
        if not self.temperature > 0:
            raise InputError("GeneratedQueries.temperature is not positive", "Set it to 1.", value=self.temperature)


def generated_stage(
    corpus: Stage, vocabulary: Stage, generator: Stage, bm25: Stage, about: QueryGenerating, settings: GeneratedQueries
) -> Stage:
    """The queries that are kept, as `PseudoQueries`: any system can train on them, see `PseudoQueries.generated`."""

    def make(place: Workplace) -> None:
        before, started = seconds_of_earlier_starts(place.work), time.monotonic()
        dataset = documents.load_dataset(place.inputs["corpus"])
        words = examples.load_vocabulary(place.inputs["vocabulary"])
        module, params, own = load_generator(place.inputs["generator"])
        tokens, _ = encode_texts(words, dataset.document_texts(), about.document_tokens)
        drawn = query_generation.generate(
            QueryGeneratorModel(module, own).decoder(params),
            words,
            tokens,
            samples=settings.samples,
            top_k=settings.top_k,
            temperature=settings.temperature,
            query_tokens=about.query_tokens,
            batch_size=settings.batch_size,
            seed=settings.seed,
            work=place.work,
            progress=True,
        )
        kept = query_generation.filtered(
            drawn,
            mining.load_bm25(place.inputs["bm25"], dataset),
            within=settings.within,
            most=settings.most,
            corpus=dataset.corpus.fingerprint,
            progress=True,
        )
        kept.save(place.folder / "pseudo_queries")
        number = len(dataset.corpus)
        place.meta.update({"drawn": settings.samples * number, "kept": len(kept), "per_document": len(kept) / number})
        place.meta["seconds"] = before + time.monotonic() - started
        shutil.rmtree(place.work, ignore_errors=True)

    return Stage("generated", settings.as_config(), (corpus, vocabulary, generator, bm25), make)


def expanded_index_stage(corpus: Stage, generated: Stage, lexical: Lexical) -> Stage:
    """BM25 over documents and their generated queries."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        expansions = PseudoQueries.load(place.inputs["generated"] / "pseudo_queries")
        bm25 = retrievers.BM25(
            dataset.corpus, expansions=expansions, transform=dataset.transform, progress=True, **lexical.as_config()
        )
        index.fill(place.folder, bm25, dataset.corpus)
        place.meta.update({"documents": bm25.num_documents, "queries": len(expansions)})

    return Stage("index", lexical.as_config(), (corpus, generated), make)


def results_stage(
    name: str, corpus: Stage, bm25: Stage, generator: Stage, generated: Stage, built: Stage, provenance: dict[str, Any]
) -> Stage:
    """Runs, measures and a report with generated queries in it."""

    def make(place: Workplace) -> None:
        dataset = documents.load_dataset(place.inputs["corpus"])
        searcher = index.load(place.inputs["index"])
        plain = mining.load_bm25(place.inputs["bm25"], dataset)
        report = dense_index.start_report(name, dataset, provenance)
        results.judge(place, report, dataset, {"BM25": plain, name: searcher.retriever})
        dense_index.add_training(report, name, place.inputs["generator"])
        queries = PseudoQueries.load(place.inputs["generated"] / "pseudo_queries")
        alone = Searcher(plain, dataset.corpus)
        for place_of in np.linspace(0, len(queries) - 1, min(NUM_SHOWN, len(queries))).astype(int).tolist():
            source = dataset.corpus[int(queries.documents[place_of])].doc_id
            question = queries.texts[place_of]
            report.add_example(question, alone.search(question, 3), relevant={source}, system="generated; BM25 answers")
        results.finish(place, report, dataset)

    settings = {"name": name, "measures": list(results.MEASURES), "depth": results.DEPTH, "provenance": provenance}
    return Stage("results", settings, (corpus, bm25, generator, generated, built), make)


@gin.configurable(module="gr_jax.recipes")
def bm25_doct5query(
    source: Source | str | os.PathLike = gin.REQUIRED,
    model_dir: str | os.PathLike = gin.REQUIRED,
    *,
    name: str = "BM25 + docT5query",
    generator: QueryGenerating | None = None,
    generated: GeneratedQueries | None = None,
    lexical: Lexical | None = None,
    shared_dir: str | os.PathLike | None = None,
    until: str | None = None,
    say: Callable[[str], None] = print,
) -> Searcher | None:
    """Trains a generator of queries, writes queries for every document, and indexes documents with them by BM25.

    The queries are a table in `model_dir/generated/pseudo_queries`, which every other recipe can train on.

    Args:
      source: a BEIR folder's path, or a `Source`. Its train split is learnt from.
      model_dir: folder of this run; the index is `model_dir/index`.
      name: of the system, in tables.
      generator, generated, lexical: settings; None takes the defaults (under gin: what gin binds).
      shared_dir: where stages that runs share are kept; by default `shared` beside `model_dir`.
      until: the last stage to make; None makes all.
      say: receives a line per stage.

    Returns:
      A searcher over the index; None where `until` ends before it.

    Raises:
      InputError: bad documents or settings, or no queries to learn from.
    """
    how, what, terms = generator or QueryGenerating(), generated or GeneratedQueries(), lexical or Lexical()

    def stages_of(found: Source) -> list[Stage]:
        corpus = documents.corpus_stage(found)
        vocabulary = examples.vocabulary_stage(corpus, how)
        bm25 = mining.bm25_stage(corpus, terms)
        trained = generator_stage(corpus, vocabulary, how)
        written = generated_stage(corpus, vocabulary, trained, bm25, how, what)
        built = expanded_index_stage(corpus, written, terms)
        provenance = {"pseudo_queries": f"at most {what.most} generated", "seeds": sorted({how.seed, what.seed})}
        judged = results_stage(name, corpus, bm25, trained, written, built, provenance)
        return [corpus, vocabulary, bm25, trained, written, built, judged]

    return run_stages(source, stages_of, model_dir, shared_dir=shared_dir, until=until, say=say)

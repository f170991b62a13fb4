"""BM25 over documents expanded by queries that a trained generator wrote (docT5query, Nogueira & Lin 2019)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.corpus import Dataset
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.graph import Stage
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.doct5query.expanding import GeneratedQueries as GeneratedQueries
from gr_jax.systems.doct5query.expanding import expanded_results, generated, index
from gr_jax.systems.doct5query.generator import QueryGenerating as QueryGenerating
from gr_jax.systems.doct5query.generator import check_questions, generator


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class BM25DocT5Query(System):
    """BM25 + docT5query: documents are indexed with queries that a generator wrote to them.

    A T5 decoder over MiniLM learns to write queries from the pairs of the train split, draws 30 for every document, and
    keeps at most 8, those that BM25 answers with it. They are a table in `MODEL_DIR/generated/pseudo_queries`, on which
    every other system can train; see `PseudoQueries.generated`. The paper fine-tunes a whole T5.

    Attributes:
      name: in tables.
      generator: of queries, and its training.
      generated: the queries that it writes.
      lexical: BM25, with the queries and without.
    """

    paper: ClassVar[str] = "Nogueira & Lin 2019, From doc2query to docTTTTTquery"

    name: str = "BM25 + docT5query"
    generator: QueryGenerating = setting(QueryGenerating())
    generated: GeneratedQueries = setting(GeneratedQueries())
    lexical: Lexical = setting(Lexical())

    def check_data(self, dataset: Dataset) -> None:
        """See `System.check_data`."""
        check_questions(self.name, dataset)

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.generator)
        terms = bm25(corpus, settings=self.lexical)
        trained = generator(corpus, words, settings=self.generator)
        written = generated(
            corpus, words, trained, terms,
            document_tokens=self.generator.document_tokens, query_tokens=self.generator.query_tokens,
            settings=self.generated,
        )  # fmt: skip
        expanded = index(corpus, written, lexical=self.lexical)
        about = {
            "pseudo_queries": f"at most {self.generated.most} generated",
            "seeds": sorted({self.generator.seed, self.generated.seed}),
        }
        return expanded_results(corpus, terms, trained, written, expanded, name=self.name, provenance=about).named(
            "results"
        )

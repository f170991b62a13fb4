"""DSI-QG (Zhuang et al. 2022, arXiv 2206.10128): documents are learned from queries that a generator wrote to them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.corpus import Dataset
from gr_jax.stages.bm25 import bm25
from gr_jax.stages.graph import Stage
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.stages.write_docids import Training
from gr_jax.systems.doct5query import GeneratedQueries, QueryGenerating
from gr_jax.systems.doct5query.expanding import generated
from gr_jax.systems.doct5query.generator import check_questions, generator
from gr_jax.systems.dsi import DSIBase


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DSIQG(DSIBase):
    """DSI-QG: DSI, in which generated queries stand for the documents, so that training and search read alike.

    The generator is that of `bm25_doct5query`, trained on the train split; the paper's is a docT5query trained on MS
    MARCO. No document is read as it is. All else is as in `DSI`, what it deviates in too.

    Attributes:
      generator: of queries, and its training.
      generated: the queries that it writes.
    """

    paper: ClassVar[str] = "Zhuang et al. 2022, arXiv 2206.10128"

    name: str = "DSI-QG"
    generator: QueryGenerating = setting(QueryGenerating())
    generated: GeneratedQueries = setting(GeneratedQueries())
    training: Training | None = setting(Training(rates={"query": 0.5, "document": 0.0, "pseudo": 0.5}))

    def check_data(self, dataset: Dataset) -> None:
        """See `System.check_data`."""
        check_questions(self.name, dataset)

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.generator).named("generator_vocabulary")
        terms = bm25(corpus, settings=self.lexical)
        writer = generator(corpus, words, settings=self.generator)
        made = generated(
            corpus, words, writer, terms,
            document_tokens=self.generator.document_tokens, query_tokens=self.generator.query_tokens,
            settings=self.generated,
        )  # fmt: skip
        about = f"at most {self.generated.most} generated"
        return self.stages_of(corpus, made, about, self.generator.seed, self.generated.seed)

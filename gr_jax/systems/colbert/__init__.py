"""Late interaction from documents to a searchable index: ColBERT (Khattab & Zaharia 2020)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.retrievers import index as indexes
from gr_jax.stages import contrastive, pair_training
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.dense_results import dense_results
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.negatives import Mining, mining_of, negatives_of
from gr_jax.stages.pairs import pairs_of
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.colbert import training as learning
from gr_jax.systems.colbert.index import index, token_vectors
from gr_jax.systems.colbert.interaction import Interaction as Interaction
from gr_jax.systems.colbert.retriever import KIND, LateInteractionRetriever

indexes.register(KIND, LateInteractionRetriever.load, reads_corpus=True)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class ColBERT(System):
    """ColBERT: a vector a token, documents ranked by MaxSim, over the whole corpus.

    Attributes:
      name: in tables.
      encoders: of queries and documents, without pooling.
      interaction: the network around it, and the index.
      pseudo_queries: that it is trained on beside the questions.
      mining: hard negatives.
      training: None leaves the network as it starts.
      lexical: BM25.
    """

    paper: ClassVar[str] = "Khattab & Zaharia 2020, arXiv 2004.12832"

    name: str = "ColBERT"
    encoders: Encoders = setting(Encoders(query_length=32))
    interaction: Interaction = setting(Interaction())
    pseudo_queries: PseudoQueries = setting(PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2, "cloze": 6}))
    mining: Mining = setting(Mining(shares={"bm25": 1.0}))
    training: ContrastiveTraining | None = setting(ContrastiveTraining())
    lexical: Lexical = setting(Lexical())

    def check(self) -> None:
        pair_training.check_settings("late interaction", self.encoders, self.mining, self.training)

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        network = self.interaction.network
        model = learning.untrained(corpus, words, encoders=self.encoders, network=network).named("model")
        if self.training is not None:
            read = self.training.of(self.encoders)
            made = pseudo_queries(corpus, settings=self.pseudo_queries)
            pairs = pairs_of(corpus, made, words, read, self.training.kept_back)
            wrong = negatives_of(corpus, made, words, pairs, terms, self.mining, self.training, encoders=read)
            model = learning.model(
                corpus, words, pairs, wrong,
                encoders=self.encoders, network=network, mining=self.mining, training=self.training,
            )  # fmt: skip
        vectors = token_vectors(corpus, model, precision=self.interaction.precision)
        first = terms if self.interaction.first else None
        searched = index(corpus, model, vectors, first, depth=self.interaction.depth)
        return dense_results(
            corpus, terms, searched, [model], hybrid(corpus, terms, searched, name=self.name),
            mining_of(model), vectors, None,
            name=self.name, titles=[self.name],
            provenance=contrastive.provenance(self.pseudo_queries, (self.mining, self.training)),
        ).named("results")  # fmt: skip

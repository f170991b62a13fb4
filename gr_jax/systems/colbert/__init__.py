"""Late interaction from documents to a searchable index: ColBERT (Khattab & Zaharia 2020)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.errors import InputError
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
from gr_jax.systems.colbert import frozen_documents
from gr_jax.systems.colbert import training as learning
from gr_jax.systems.colbert.index import index, token_vectors
from gr_jax.systems.colbert.interaction import Interaction as Interaction


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
      frozen_documents: documents are read once, before training, and the projection of their tokens' states is trained
        beside the side of queries. A step then costs little for each document, so that a query can have many negatives,
        or all: `ContrastiveTraining.negatives`.
      lexical: BM25.
    """

    paper: ClassVar[str] = "Khattab & Zaharia 2020, arXiv 2004.12832"

    name: str = "ColBERT"
    encoders: Encoders = setting(Encoders(query_length=32))
    interaction: Interaction = setting(Interaction())
    pseudo_queries: PseudoQueries = setting(PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2, "cloze": 6}))
    mining: Mining = setting(Mining(shares={"bm25": 1.0}))
    training: ContrastiveTraining | None = setting(ContrastiveTraining())
    frozen_documents: bool = setting(False, neutral=False)
    lexical: Lexical = setting(Lexical())

    def check(self) -> None:
        pair_training.check_settings(
            "late interaction", self.encoders, self.mining, self.training, frozen=self.frozen_documents
        )
        if self.frozen_documents and (self.training is None or self.interaction.projection == "none"):
            raise InputError(
                "a projection of documents that are read once is trained, and there is no "
                f"{'training' if self.training is None else 'projection'}",
                "Set ColBERT.training and Interaction.projection, or ColBERT.frozen_documents = False.",
                value=self.frozen_documents,
            )

    @property
    def _mined(self) -> Mining:
        """How negatives are mined: not at all where every query has all documents."""
        drawn = self.training is None or self.training.negatives is not None
        return self.mining if drawn else Mining(shares={"random": 1.0}, seed=self.mining.seed)

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        network = self.interaction.network
        model = learning.untrained(corpus, words, encoders=self.encoders, network=network).named("model")
        if self.training is not None:
            read = self.training.of(self.encoders)
            made = pseudo_queries(corpus, settings=self.pseudo_queries)
            pairs = pairs_of(corpus, made, words, read, self.training.kept_back)
            wrong = negatives_of(corpus, made, words, pairs, terms, self._mined, self.training, encoders=read)
        states = None
        if self.frozen_documents:
            reader, states = frozen_documents.reading(corpus, words, self.encoders, network)
            model = frozen_documents.model(
                corpus, words, pairs, wrong, reader, states,
                encoders=self.encoders, network=network, mining=self._mined, training=self.training,
            ).named("model")  # fmt: skip
            vectors = frozen_documents.projected(model, states, precision=self.interaction.precision)
            vectors = vectors.named("token_vectors")
        elif self.training is not None:
            model = learning.model(
                corpus, words, pairs, wrong,
                encoders=self.encoders, network=network, mining=self._mined, training=self.training,
            )  # fmt: skip
        if states is None:
            vectors = token_vectors(corpus, model, precision=self.interaction.precision)
        first = terms if self.interaction.first else None
        searched = index(corpus, model, vectors, first, depth=self.interaction.depth)
        return dense_results(
            corpus, terms, searched, [model], hybrid(corpus, terms, searched, name=self.name),
            mining_of(model), vectors, None,
            name=self.name, titles=[self.name],
            provenance=contrastive.provenance(self.pseudo_queries, (self._mined, self.training)),
        ).named("results")  # fmt: skip

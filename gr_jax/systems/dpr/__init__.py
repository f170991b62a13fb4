"""Dense retrieval from documents to a searchable index: DPR (Karpukhin et al. 2020) and ANCE (Xiong et al. 2021)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.errors import InputError
from gr_jax.stages import bi_encoder, contrastive, frozen_documents
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.dense_results import dense_results
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.negatives import Mining, check_refreshing, mining_of, negatives_of
from gr_jax.stages.pairs import pairs_of
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.training import check_stays
from gr_jax.stages.vectors import Vectors, encoded, pieces, vectors_of
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.dpr.index import Search as Search
from gr_jax.systems.dpr.index import index_of
from gr_jax.systems.dpr.query_side import query_model

# Meant for half an hour on 2 cores with what is measured on dev between; a step is 32 questions with 64 documents.
TRAINING = ContrastiveTraining(
    steps=600,
    batch_size=32,
    negatives=1,
    document_length=128,
    learning_rate=3e-5,
    warmup_steps=50,
    evaluate_every=150,
    checkpoint_every=150,
    dev_documents=2500,
    held_out=0.05,
    keep_best="dev_mean/RR@10",
)
# A step is 64 questions with 576 vectors.
QUERY_TRAINING = dataclasses.replace(
    TRAINING,
    steps=100,
    batch_size=64,
    negatives=8,
    warmup_steps=10,
    evaluate_every=25,
    checkpoint_every=25,
    dev_queries=1000,
)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DPR(System):
    """DPR: one encoder for queries and documents, trained by contrast, and an index of vectors.

    It learns from the other queries' documents and from mined negatives, on questions and on queries made from the
    documents themselves. Without the latter a fine-tuned encoder gets better on documents with training questions and
    worse on the others; `ContrastiveTraining.held_out` keeps some documents' questions back to watch that. With
    `Mining.refresh_every` this is ANCE: negatives are mined again by the model while it trains. The paper has two
    encoders of BERT and no pseudo-queries.

    Attributes:
      name: in tables.
      encoders: of queries and documents.
      pseudo_queries: that they are trained on beside the questions.
      mining: hard negatives.
      training: of both sides; None leaves them as they are.
      frozen_documents: documents are read once, before training, and a projection of what was read is trained beside
        the side of queries (`Encoders.projection`). A step then costs little for each document, so that a query can
        have many negatives, or all: `ContrastiveTraining.negatives`.
      query_training: then of the side of queries alone, against the vectors of the documents; None leaves it out.
      search: how the index searches, and whether it stands beside its combination with BM25.
      lexical: BM25.
      vectors: that are clustered for negatives of the kind "cluster".
    """

    paper: ClassVar[str] = "Karpukhin et al. 2020, arXiv 2004.04906; ANCE: Xiong et al. 2021, arXiv 2007.00808"

    name: str = "DPR"
    encoders: Encoders = setting(Encoders(temperature=0.02, document_length=256))
    pseudo_queries: PseudoQueries = setting(PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2, "cloze": 6}))
    mining: Mining = setting(Mining())
    training: ContrastiveTraining | None = setting(TRAINING)
    frozen_documents: bool = setting(False, neutral=False)
    query_training: ContrastiveTraining | None = setting(QUERY_TRAINING)
    search: Search = setting(Search())
    lexical: Lexical = setting(Lexical())
    vectors: Vectors = setting(Vectors())

    def check(self) -> None:
        check_refreshing(self.mining, self.training)
        if self.mining.refresh_every:
            check_stays(self.training, "negatives are mined again", "set Mining.refresh_every to None")
        self._check_frozen()
        if self.training is None or self.query_training is None:
            return
        for name in ("held_out", "seed"):
            first, second = getattr(self.training, name), getattr(self.query_training, name)
            if first != second:
                raise InputError(
                    f"{name} of the second training differs from the first's, whose queries it reads",
                    f"Set both to {first}.",
                    value=second,
                )

    def _check_frozen(self) -> None:
        """Refuses what documents that are read once cannot have."""
        if not self.frozen_documents:
            contrastive.check_drawn(self.training)
            return
        if self.training is None or self.encoders.projection is None:
            raise InputError(
                "a projection of documents that are read once is trained, and there is no "
                f"{'training' if self.training is None else 'projection'}",
                "Set DPR.training and Encoders.projection, or DPR.frozen_documents = False.",
                value=self.frozen_documents,
            )
        if self.mining.refresh_every is not None:
            raise InputError(
                "negatives are mined again by reading all documents, and these are read once",
                "Set Mining.refresh_every = None, or DPR.frozen_documents = False.",
                value=self.mining.refresh_every,
            )

    @property
    def _mined(self) -> Mining:
        """How negatives are mined: not at all where every query has all documents."""
        trainings = [one for one in (self.training, self.query_training) if one is not None]
        drawn = any(one.negatives is not None for one in trainings) or not trainings
        return self.mining if drawn else Mining(shares={"random": 1.0}, seed=self.mining.seed)

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        model = bi_encoder.untrained(corpus, words, settings=self.encoders).named("model")
        first = self.training or self.query_training
        if first is not None:
            read = first.of(self.encoders)
            made = pseudo_queries(corpus, settings=self.pseudo_queries)
            pairs = pairs_of(corpus, made, words, read, first.kept_back)
            embedded = vectors_of(corpus, self.vectors)
            wrong = negatives_of(
                corpus, made, words, pairs, terms, self._mined, first, self.query_training,
                encoders=read, vectors=embedded,
            )  # fmt: skip
        states = None
        if self.frozen_documents:
            reader, states = frozen_documents.reading(corpus, words, self.encoders)
            model = frozen_documents.model(
                corpus, words, pairs, wrong, reader, states,
                settings=self.encoders, mining=self._mined, training=self.training,
            ).named("model")  # fmt: skip
        elif self.training is not None:
            model = bi_encoder.bi_encoder(
                corpus, words, made, pairs, wrong,
                settings=self.encoders, mining=self._mined, training=self.training,
            ).named("model")  # fmt: skip
        whole = encoded(corpus, model, sentences=0) if states is None else frozen_documents.projected(model, states)
        whole = whole.named("embeddings")
        last, trained = model, {self.name: model}
        if self.query_training is not None:
            # Trained against whole documents, so that it is the same training whatever the index has vectors of.
            last = query_model(
                corpus, pairs, wrong, model, whole,
                scratch=self.encoders.encoder == "t5", mining=self._mined, training=self.query_training,
            )  # fmt: skip
            trained[f"{self.name}, queries alone"] = last
        parts, cut = whole, None
        if self.search.most_sentences:
            name = "embeddings" if last is model else "passage_embeddings"
            parts = encoded(corpus, model, sentences=self.search.most_sentences).named(name)
        elif self.search.unread is not None:
            cut = pieces(corpus, model, above=self.search.unread)
        index = index_of(corpus, last, parts, self.search, cut)
        both = hybrid(corpus, terms, index, name=self.name) if self.search.hybrid else None
        return dense_results(
            corpus, terms, index, list(trained.values()), both, mining_of(last), parts, cut,
            name=self.name, titles=list(trained),
            provenance=contrastive.provenance(self.pseudo_queries, (self._mined, first)),
        ).named("results")  # fmt: skip

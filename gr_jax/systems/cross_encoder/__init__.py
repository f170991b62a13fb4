"""BM25 → cross-encoder (Nogueira & Cho 2019), from documents to a searchable index."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import ClassVar

import gin

from gr_jax.errors import InputError
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.rerank import RerankRetriever
from gr_jax.stages import contrastive, pair_training
from gr_jax.stages.bm25 import Lexical, bm25, load_bm25
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.dense_results import dense_results
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.negatives import Mining, mining_of, negatives_of
from gr_jax.stages.pairs import pairs_of
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.training import folder_bytes
from gr_jax.stages.vectors import how_much_is_read, room_of, token_counts
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.cross_encoder import training as learning
from gr_jax.systems.cross_encoder.crossing import Crossing as Crossing
from gr_jax.systems.cross_encoder.scorer import CrossEncoderScorer

# Ten minutes on 2 cores. Dev was best after 40 steps, of 120.
TRAINING = ContrastiveTraining(
    steps=120,
    batch_size=8,
    negatives=3,
    rates={"query": 1.0},
    warmup_steps=12,
    evaluate_every=40,
    checkpoint_every=40,
    dev_queries=200,
    dev_documents=1000,
)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class BM25CrossEncoder(System):
    """BM25 → cross-encoder: what BM25 ranks first is read together with the query.

    There is no combination with BM25 beside it: what the cross-encoder did not read has BM25's order already, and no
    score that could be weighed.

    Attributes:
      name: in tables.
      encoders: of the pair.
      crossing: the network around it, and what it reranks.
      pseudo_queries: that it can be trained on beside the questions.
      mining: negatives. What BM25 ranks high is what it will have to tell apart.
      training: None leaves the network as it starts.
      lexical: BM25.
    """

    paper: ClassVar[str] = "Nogueira & Cho 2019, arXiv 1901.04085"

    name: str = "BM25 → cross-encoder"
    encoders: Encoders = setting(Encoders(query_length=32))
    crossing: Crossing = setting(Crossing())
    pseudo_queries: PseudoQueries = setting(PseudoQueries(kinds={"title": 1, "sentence": 3, "span": 2, "cloze": 6}))
    mining: Mining = setting(Mining(shares={"bm25": 1.0}))
    training: ContrastiveTraining | None = setting(TRAINING)
    lexical: Lexical = setting(Lexical())

    def check(self) -> None:
        pair_training.check_settings("a cross-encoder", self.encoders, self.mining, self.training)
        self._check_encoders()
        if self.training is None:
            return
        if self.training.chunks > 1:
            raise InputError(
                "a cross-encoder's pairs do not share a loss that would be computed in chunks",
                "Set ContrastiveTraining.chunks = 1, and a smaller batch_size where memory ends.",
                value=self.training.chunks,
            )
        if not self.training.negatives:
            raise InputError(
                "a cross-encoder learns from a query's own negatives alone",
                "Set ContrastiveTraining.negatives to 1 or more.",
                value=self.training.negatives,
            )

    def _check_encoders(self) -> None:
        """Refuses what a bi-encoder alone reads; as such they are asked only for negatives of the kind "model"."""
        mined = self.training is not None and "model" in self.mining.shares
        for name in ("temperature",) if mined else ("projection", "pooling", "shared", "similarity", "temperature"):
            value, default = getattr(self.encoders, name), getattr(Encoders, name)
            if value != default:
                raise InputError(
                    f"a cross-encoder reads a pair at once, and has no use for Encoders.{name}",
                    f"Leave it at {default!r}. What is made of a pair's states is a setting of Crossing.",
                    value=value,
                )

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        model = learning.untrained(words, encoders=self.encoders, network=self.crossing.network).named("model")
        if self.training is not None:
            read = self.training.of(self.encoders)
            made = pseudo_queries(corpus, settings=self.pseudo_queries)
            pairs = pairs_of(corpus, made, words, read, self.training.kept_back)
            texts = learning.pair_texts(corpus, words, length=read.document_length)
            wrong = negatives_of(
                corpus, made, words, pairs, terms, self.mining, self.training, encoders=read, texts=texts
            )
            model = learning.model(
                corpus, words, pairs, texts, terms, wrong,
                encoders=self.encoders, crossing=self.crossing, mining=self.mining, training=self.training,
            )  # fmt: skip
        built = index(corpus, terms, model, depth=self.crossing.depth)
        return dense_results(
            corpus, terms, built, [model], None, mining_of(model), built, None,
            name=self.name, titles=[self.name],
            provenance=contrastive.provenance(self.pseudo_queries, (self.mining, self.training)),
        ).named("results")  # fmt: skip


@stage()
def index(place: Place, corpus: pathlib.Path, bm25: pathlib.Path, model: pathlib.Path, *, depth: int) -> None:
    """BM25, the scorer of its first `depth` documents, and all documents, in one folder."""
    dataset, scorer = load_dataset(corpus), CrossEncoderScorer.load(model / "scorer")
    # What the longest query leaves of a pair, whose length counts the first token once.
    length = scorer.max_length - scorer.query_length + len(scorer.vocabulary.prefix)
    counts = token_counts(scorer.vocabulary, dataset.document_texts())
    read = how_much_is_read(counts, length, room_of(scorer.vocabulary, length))
    retriever = RerankRetriever(
        load_bm25(bm25, dataset),
        scorer,
        dataset.corpus,
        depth=depth,
        transform=dataset.transform,
    )
    indexes.fill(place.folder, retriever, dataset.corpus)
    place.notes.update({"documents": len(dataset.corpus), "bytes": folder_bytes(place.folder), "read": read})

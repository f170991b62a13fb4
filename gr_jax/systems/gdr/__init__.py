"""GDR (Yuan et al. 2024, arXiv 2401.10487), from documents to a searchable index."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import gin

from gr_jax.errors import InputError
from gr_jax.stages import contrastive
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.clusters import Clusters, clusters_of
from gr_jax.stages.contrastive import ContrastiveTraining
from gr_jax.stages.document_encoder import (
    ENCODER_TRAINING,
    ENCODERS,
    PSEUDO_QUERIES,
    check_document_encoder,
    check_query_encoder,
    check_widths,
    document_encoder_of,
    query_vocabulary,
)
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.negatives import Mining, check_refreshing, mining_of, negatives_of
from gr_jax.stages.networks import Network
from gr_jax.stages.pairs import pairs_of
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.training import check_stays
from gr_jax.stages.vectors import UNREAD, encoded, pieces
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.gdr import learning
from gr_jax.systems.gdr.index import gdr_results, index
from gr_jax.systems.gdr.settings import ClusterSearch as ClusterSearch
from gr_jax.systems.gdr.settings import Matching as Matching

# A list of 16 holds others of the answer's own cluster, which weigh alpha, and, where those are fewer, documents at
# random; a step draws from it. Other queries' documents are negatives too.
MINING = Mining(shares={"cluster": 1.0, "random": 0.0})
# Document vectors cost nothing: large batches, many negatives. The network's parts move at fractions of this rate.
TRAINING = ContrastiveTraining(
    steps=200,
    batch_size=64,
    negatives=8,
    learning_rate=5e-4,
    warmup_steps=20,
    document_length=128,
    evaluate_every=50,
    checkpoint_every=50,
    held_out=0.05,
    dev_documents=2500,
    keep_best="dev_mean/RR@10",
)
JOINT = dataclasses.replace(TRAINING, batch_size=16, negatives=2, learning_rate=3e-4)


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class GDR(System):
    """GDR: a decoder writes a query's clusters, and the query's vector is matched with documents inside them.

    Three trainings: of the document encoder as a dense retriever, whose vectors are clustered and then stay as they
    are; of the network that reads queries, writes clusters and gives queries' vectors; and, where `joint` is on, of the
    network and the document encoder together.

    The paper's encoders are BERT and T5; its similarity is tanh of a product and its clusters come from 30-ary k-means:
    `gin_configs/systems/gdr_as_published.gin` has its settings, and says what is different still.

    Attributes:
      name: in tables.
      encoders: the document encoder. Queries are pooled and read alike.
      encoder_training: how it is trained; None leaves it as it is.
      encoder_mining: its negatives.
      trained: folder of a finished run of `dpr`, whose encoder is taken instead.
      pseudo_queries: of every training.
      lexical: BM25.
      clusters: that are written.
      network: the encoder of queries and the decoder of clusters.
      matching: the loss.
      mining: GDR's negatives.
      training: GDR's, against document vectors that stay as they are; None leaves the network as it starts.
      joint: a second training, of the document encoder too; None leaves it out.
      search: how clusters are written and searched.
      most_sentences: of a document that have vectors of their own in its clusters; None: one vector a document, or of
        long documents as `unread` says.
      unread: where more than this share of the documents' tokens stands behind the first 256 of a document, or behind
        `Encoders.document_length` where that is more, and `most_sentences` is None, long documents get a vector for
        each piece of `Encoders.document_length`. None: never.
    """

    paper: ClassVar[str] = "Yuan et al. 2024, arXiv 2401.10487"

    name: str = "GDR"
    encoders: Encoders = setting(ENCODERS)
    encoder_training: ContrastiveTraining | None = setting(ENCODER_TRAINING)
    encoder_mining: Mining = setting(Mining())
    trained: str | None = None
    pseudo_queries: PseudoQueries = setting(PSEUDO_QUERIES)
    lexical: Lexical = setting(Lexical())
    clusters: Clusters = setting(Clusters())
    network: Network = setting(Network())
    matching: Matching = setting(Matching())
    mining: Mining = setting(MINING)
    training: ContrastiveTraining | None = setting(TRAINING)
    joint: ContrastiveTraining | None = setting(None, when_on=JOINT)
    search: ClusterSearch = setting(ClusterSearch())
    most_sentences: int | None = setting(None, at_least=1)
    unread: float | None = setting(UNREAD, at_least=0, at_most=1, neutral=UNREAD)

    def check(self) -> None:
        trainings = [one for one in (self.training, self.joint) if one is not None]
        check_refreshing(self.mining, self.training)
        if self.mining.refresh_every:
            check_stays(self.training, "negatives are mined again", "set Mining.refresh_every to None")
        check_query_encoder(self.encoders, self.matching.start)
        check_document_encoder(self.trained, self.encoder_training, self.encoder_mining, *trainings)
        check_widths(self.encoders, self.trained, self.network, self.matching.start, matched=True)
        if self.network.encoder == "t5" and self.matching.start == "pretrained" and not trainings:
            raise InputError(
                "the vectors of an untrained encoder from scratch mean nothing",
                'Set Matching.start = "document_encoder", or train it.',
            )
        if self.matching.similarity == "cosine" != self.encoders.similarity:
            raise InputError(
                "cosine similarity needs document vectors of unit length, and these have any",
                'Set Encoders.similarity = "cosine", or Matching.similarity = "dot" or "tanh".',
                value=self.encoders.similarity,
            )
        contrastive.check_drawn(*trainings)
        for one in trainings:
            if not one.in_batch:
                raise InputError(
                    "GDR's loss is over all documents of a batch, by their clusters",
                    "Set ContrastiveTraining.in_batch = True.",
                    value=one.in_batch,
                )
            if one.margin_mse or one.teacher_kl:
                raise InputError(
                    "GDR's loss does not use a teacher's scores",
                    "Set margin_mse and teacher_kl of ContrastiveTraining to None.",
                    value=(one.margin_mse, one.teacher_kl),
                )
        if self.joint is None:
            return
        if self.mining.refresh_every:
            raise InputError(
                "negatives are mined again while documents' vectors stay as they are, not in the joint training",
                "Set GDR.joint = None, or Mining.refresh_every = None and other Mining.shares.",
                value=self.mining.refresh_every,
            )
        for name in ("document_length", "held_out", "seed"):  # of the examples, which both read
            if self.training is not None and getattr(self.joint, name) != getattr(self.training, name):
                raise InputError(
                    f"joint/ContrastiveTraining.{name} differs from the first stage's, whose examples it reads",
                    f"Set both to {getattr(self.training, name)}.",
                    value=getattr(self.joint, name),
                )

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        made = pseudo_queries(corpus, settings=self.pseudo_queries)
        encoder = document_encoder_of(
            corpus, made, words, terms, self.encoders, self.encoder_training, self.encoder_mining, self.trained
        )
        vectors = encoded(corpus, encoder, sentences=0).named("vectors")
        clusters = clusters_of(vectors, self.clusters)
        reading = query_vocabulary(corpus, words, self.network, self.matching.start)
        parts = (corpus, reading, encoder, vectors, clusters)
        pooling = self.encoders.pooling
        about: dict[str, Any] = {"network": self.network, "matching": self.matching}
        first = self.training or self.joint  # both read its examples, where both train
        seed = 0 if first is None else first.seed
        model = learning.untrained(*parts, pooling=pooling, seed=seed, **about).named("model")
        if first is not None:
            read = first.of(self.encoders)
            pairs = pairs_of(corpus, made, words, read, first.kept_back, None if reading is words else reading)
            wrong = negatives_of(
                corpus, made, words, pairs, terms, self.mining, first, self.joint,
                encoder=encoder, clusters=clusters, share=True,
            )  # fmt: skip
            about |= {
                "mining": self.mining, "pooling": pooling, "look": self.search.look,
                "query_length": read.query_length,
            }  # fmt: skip
        if self.training is not None:
            length = self.training.of(self.encoders).document_length
            model = learning.model(*parts, made, pairs, wrong, training=self.training, document_length=length, **about)
        if self.joint is not None:
            length = self.joint.of(self.encoders).document_length
            model = encoder = learning.joint_model(
                *parts, pairs, wrong, model, training=self.joint, document_length=length, **about
            )
            vectors = encoded(corpus, encoder, sentences=0).named("joint_vectors")
        cut = None
        if self.most_sentences:
            vectors = encoded(corpus, encoder, sentences=self.most_sentences).named("passage_vectors")
        elif self.unread is not None:
            cut = pieces(corpus, encoder, above=self.unread)
        built = index(
            corpus, reading, clusters, model, encoder, vectors, cut,
            similarity=self.matching.similarity, pooling=pooling, search=self.search,
            most_sentences=self.most_sentences or 0,
        )  # fmt: skip
        both = hybrid(corpus, terms, built, name=self.name)
        return gdr_results(
            corpus, terms, clusters, model, built, both, mining_of(model), vectors, cut,
            name=self.name, provenance=self._provenance(),
        ).named("results")  # fmt: skip

    def _provenance(self) -> dict:
        before = None if self.trained is not None else self.encoder_training
        said = contrastive.provenance(
            self.pseudo_queries, (self.mining, self.training), (self.mining, self.joint), (self.encoder_mining, before)
        )
        return {**said, "seeds": sorted({*said["seeds"], self.clusters.seed})}

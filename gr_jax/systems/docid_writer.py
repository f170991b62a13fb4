"""What systems have in common that write a docid for each document, on the document encoder that GDR has."""

from __future__ import annotations

import dataclasses

from gr_jax.stages import pretrained, results, write_docids
from gr_jax.stages.bm25 import Lexical, bm25
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
from gr_jax.stages.examples import examples
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.negatives import Mining, mining_of
from gr_jax.stages.networks import Network
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.vectors import encoded
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.stages.write_docids import Decoding, Training
from gr_jax.systems.base import System

TRAINING = Training(
    steps=400,
    batch_size=32,
    warmup_steps=20,
    rates={"query": 0.5, "document": 0.0, "pseudo": 0.5},
    rdrop=0.15,
    checkpoint_every=100,
)


@dataclasses.dataclass(frozen=True)
class DocidWriter(System):
    """A network that writes docids made from the vectors of a trained document encoder, and reads queries from that
    encoder on.

    Attributes:
      encoders: the document encoder. Queries are pooled and read alike.
      encoder_training: how it is trained; None leaves it as it is.
      encoder_mining: its negatives.
      trained: folder of a finished run of `dpr`, whose encoder is taken instead.
      start: "document_encoder" or "pretrained": what the encoder of queries starts from.
      pseudo_queries: of every training.
      lexical: BM25.
      network: the encoder-decoder.
      training: None leaves it as it starts.
      decoding: how the index answers.
    """

    name: str
    encoders: Encoders = setting(ENCODERS)
    encoder_training: ContrastiveTraining | None = setting(ENCODER_TRAINING)
    encoder_mining: Mining = setting(Mining())
    trained: str | None = None
    start: str = setting("document_encoder", choices=("document_encoder", "pretrained"))
    pseudo_queries: PseudoQueries = setting(PSEUDO_QUERIES)
    lexical: Lexical = setting(Lexical())
    network: Network = setting(Network())
    training: Training | None = setting(TRAINING)
    decoding: Decoding = setting(Decoding())

    def docids(self, corpus: Stage, vectors: Stage) -> Stage:
        """The stage of the docids, named "docids"."""
        raise NotImplementedError

    @property
    def docid_seed(self) -> int:
        """Of the docids."""
        raise NotImplementedError

    def check(self) -> None:
        check_query_encoder(self.encoders, self.start)
        check_document_encoder(self.trained, self.encoder_training, self.encoder_mining)
        check_widths(self.encoders, self.trained, self.network, self.start, matched=False)
        if self.training is not None and (self.trained is None or self.start == "pretrained"):
            encoder = self.network.encoder if self.start == "pretrained" else self.encoders.encoder
            pretrained.check_positions("Training.max_input_length", self.training.max_input_length, encoder)

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.encoders)
        terms = bm25(corpus, settings=self.lexical)
        made = pseudo_queries(corpus, settings=self.pseudo_queries)
        encoder = document_encoder_of(
            corpus, made, words, terms, self.encoders, self.encoder_training, self.encoder_mining, self.trained
        )
        vectors = encoded(corpus, encoder, sentences=0).named("vectors")
        reading = query_vocabulary(corpus, words, self.network, self.start)
        ids = self.docids(corpus, vectors)
        rows = None
        if self.training is not None:
            rows = examples(
                corpus, ids, made, reading,
                sentences=0,
                max_input_length=self.training.max_input_length, document_words=self.training.document_words,
            )  # fmt: skip
        start = encoder if self.start == "document_encoder" else None
        model = write_docids.model_of(
            corpus, vectors, ids, reading, rows, self.network, self.training, self.decoding, start,
            self.encoders.pooling,
        )  # fmt: skip
        index = write_docids.index(corpus, ids, reading, model, decoding=self.decoding)
        both = hybrid(corpus, terms, index, name=self.name)
        return results.generative_results(
            corpus, terms, ids, model, index, both, mining_of(model), vectors, name=self.name,
            provenance=self._provenance(),
        ).named("results")  # fmt: skip

    def _provenance(self) -> dict:
        seeds = [self.docid_seed]
        seeds += [self.pseudo_queries.seed, self.training.seed] if self.training else []
        if self.trained is None and self.encoder_training is not None:
            seeds += [self.pseudo_queries.seed, self.encoder_mining.seed, self.encoder_training.seed]
        made = self.pseudo_queries.summary() if len(seeds) > 1 else "none: not trained"
        return write_docids.provenance(self.decoding, made, *seeds)

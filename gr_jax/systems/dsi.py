"""DSI (Tay et al. 2022, arXiv 2202.06991), from documents to a searchable index."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.errors import InputError
from gr_jax.stages import pretrained, results, write_docids
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.docids import Identifiers, docids_of
from gr_jax.stages.examples import examples
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.networks import Network
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.vectors import Vectors, vectors_of
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.stages.write_docids import Decoding, Training
from gr_jax.systems.base import System


@dataclasses.dataclass(frozen=True)
class DSIBase(System):
    """What DSI is, whatever queries are made from the documents that it learns.

    Every node of the cluster tree has a token of its own here, whose embedding and output row start from the centroid
    of the documents under it: the largest single gain at small budgets. The paper's start anywhere (`Network.outputs =
    "random"`).

    Attributes:
      name: in tables.
      vectors: that docids are made from.
      identifiers: the docid scheme.
      network: the encoder-decoder.
      training: None leaves the network as it starts.
      decoding: how the index answers.
      lexical: BM25, beside which it is measured.
    """

    name: str
    vectors: Vectors = setting(Vectors(encoder="minilm", max_length=256))
    identifiers: Identifiers = setting(Identifiers())
    network: Network = setting(Network())
    training: Training | None = setting(Training())
    decoding: Decoding = setting(Decoding())
    lexical: Lexical = setting(Lexical())

    def check(self) -> None:
        normalizers = (self.decoding.normalize, *([self.training.normalize] if self.training else []))
        if not self.identifiers.has_levels and "level" in normalizers:
            raise InputError(
                f"{self.identifiers.scheme} docids have no levels of tokens to normalise over",
                'Set Training.normalize and Decoding.normalize to "vocabulary".',
                value=normalizers,
            )
        if self.training is not None:
            length = self.training.max_input_length
            pretrained.check_positions("Training.max_input_length", length, self.network.encoder)
        if self.identifiers.scheme != "titles" or self.training is None:
            return
        if self.identifiers.title_tokens >= self.training.row_targets:
            raise InputError(
                f"titles of {self.identifiers.title_tokens} tokens and their end do not fit Training.row_targets",
                f"Set Training.row_targets to {self.identifiers.title_tokens + 1} or more.",
                value=self.training.row_targets,
            )

    def stages_of(self, corpus: Stage, made: Stage, about: str, *seeds: int) -> Stage:
        """The stages behind the queries that are made from documents.

        Args:
          corpus: the documents.
          made: the queries that training has beside those of people.
          about: what they are, for reports.
          seeds: that they were made with.
        """
        embedded = vectors_of(corpus, self.vectors)
        words = vocabulary_of(corpus, self.network)
        ids = docids_of(corpus, embedded, words, self.identifiers, self.vectors)
        rows = None
        if self.training is not None:
            rows = examples(
                corpus, ids, made, words,
                sentences=self.vectors.sentences,
                max_input_length=self.training.max_input_length, document_words=self.training.document_words,
            )  # fmt: skip
        model = self.model_of(corpus, embedded, ids, words, rows, made)
        index = write_docids.index(corpus, ids, words, model, decoding=self.decoding)
        terms = bm25(corpus, settings=self.lexical)
        trained = [*seeds, *self.seeds] if self.training else self.seeds
        provenance = write_docids.provenance(
            self.decoding, about if self.training else "none: not trained", self.identifiers.seed, *trained
        )
        both = hybrid(corpus, terms, index, name=self.name)
        return results.generative_results(
            corpus, terms, ids, model, index, both, [], embedded, name=self.name, provenance=provenance
        ).named("results")  # fmt: skip

    def model_of(
        self, corpus: Stage, vectors: Stage, docids: Stage, words: Stage, examples: Stage | None, made: Stage
    ) -> Stage:
        """The stage of the network, named "model".

        Args:
          corpus, vectors, docids, words, examples: what it is made of and trained with.
          made: the queries that are made from documents, which a student may be asked.
        """
        del made  # they are among the examples
        return write_docids.model_of(
            corpus, vectors, docids, words, examples, self.network, self.training, self.decoding
        )

    @property
    def seeds(self) -> list[int]:
        """Of what trains it."""
        return [] if self.training is None else [self.training.seed]


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class DSI(DSIBase):
    """DSI: a document's docid, written token by token under a trie.

    Trained on queries, on pseudo-queries made by rules, and on the documents' own text; see `DSIBase` for where tokens
    start.

    Attributes:
      pseudo_queries: that it is trained on beside the queries.
    """

    paper: ClassVar[str] = "Tay et al. 2022, arXiv 2202.06991"

    name: str = "DSI"
    pseudo_queries: PseudoQueries = setting(PseudoQueries())

    def stages(self, corpus: Stage) -> Stage:
        made = pseudo_queries(corpus, settings=self.pseudo_queries)
        return self.stages_of(corpus, made, self.pseudo_queries.summary(), self.pseudo_queries.seed)

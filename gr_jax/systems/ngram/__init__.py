"""Systems that write n-grams: SEAL (Bevilacqua et al. 2022, arXiv 2204.10628) and MINDER (Li et al. 2023, arXiv
2305.16675)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.pseudo_queries import PseudoQueries, pseudo_queries
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.ngram import index as indexing
from gr_jax.systems.ngram import writer
from gr_jax.systems.ngram.asking import ASKED
from gr_jax.systems.ngram.asking import Asking as Asking
from gr_jax.systems.ngram.writer import NgramWriting as NgramWriting


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class SEAL(System):
    """SEAL: any run of words of a document is a name of it. A model writes n-grams that stand somewhere, an FM-index
    keeps it to them (§3.1), and a document's score is that of the n-grams that it has (§3.2).

    It deviates from the paper in the writer, which is BART fine-tuned there: here a new decoder that copies from the
    question stands on MiniLM as it is, and before training it copies each word as often as training questions' words
    stand in what they lead to. Tokens are MiniLM's, without case. All kept hypotheses are scores of the whole
    vocabulary, so that nothing is scored again.

    Attributes:
      name: in tables.
      writing: the writer and its training.
      asking: how questions are put and n-grams are scored.
      pseudo_queries: None; MINDER's view of them.
      lexical: BM25, beside which it is measured.
    """

    paper: ClassVar[str] = "Bevilacqua et al. 2022, arXiv 2204.10628"

    name: str = "SEAL"
    writing: NgramWriting = setting(NgramWriting())
    asking: Asking = setting(Asking())
    pseudo_queries: PseudoQueries | None = None
    lexical: Lexical = setting(Lexical())

    def stages(self, corpus: Stage) -> Stage:
        words = vocabulary_of(corpus, self.writing)
        terms = bm25(corpus, settings=self.lexical)
        made = None if self.pseudo_queries is None else pseudo_queries(corpus, settings=self.pseudo_queries)
        views = self.asking.text_views
        text = indexing.ngrams(corpus, words, made if ASKED in views else None, views=views)
        model = writer.model(corpus, words, text, settings=self.writing, asking=self.asking)
        index = indexing.index(corpus, words, text, model, asking=self.asking)
        both = hybrid(corpus, terms, index, name=self.name)
        about = {
            "pseudo_queries": "none" if self.pseudo_queries is None else self.pseudo_queries.summary(),
            "normalizer": "vocabulary",
            "seeds": sorted({self.writing.seed}),
        }
        return indexing.ngram_results(corpus, terms, model, index, both, name=self.name, provenance=about).named(
            "results"
        )

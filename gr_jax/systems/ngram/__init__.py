"""Systems that write n-grams: SEAL (Bevilacqua et al. 2022, arXiv 2204.10628) and MINDER (Li et al. 2023, arXiv
2305.16675)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gin

from gr_jax.corpus import Dataset
from gr_jax.errors import InputError
from gr_jax.stages.asked import any_answered
from gr_jax.stages.bm25 import Lexical, bm25
from gr_jax.stages.graph import Stage
from gr_jax.stages.hybrid import hybrid
from gr_jax.stages.settings import setting
from gr_jax.stages.vocabulary import vocabulary_of
from gr_jax.systems.base import System
from gr_jax.systems.doct5query import GeneratedQueries, QueryGenerating
from gr_jax.systems.doct5query.expanding import generated
from gr_jax.systems.doct5query.generator import generator
from gr_jax.systems.ngram import index as indexing
from gr_jax.systems.ngram import writer
from gr_jax.systems.ngram.asking import ASKED
from gr_jax.systems.ngram.asking import Asking as Asking
from gr_jax.systems.ngram.samples import BODY, PSEUDO_QUERY, TITLE
from gr_jax.systems.ngram.writer import NgramWriting as NgramWriting


@dataclasses.dataclass(frozen=True)
class NgramSystem(System):
    """What SEAL and MINDER have in common: a writer of n-grams under an FM-index.

    Attributes:
      name: in tables.
      writing: the writer and its training.
      trained: False leaves it as it starts.
      asking: how questions are put and n-grams are scored.
      lexical: BM25, beside which it is measured.
    """

    name: str
    writing: NgramWriting = setting(NgramWriting())
    trained: bool = True
    asking: Asking = setting(Asking())
    lexical: Lexical = setting(Lexical())

    def check(self) -> None:
        if self.writing.made_questions and ASKED not in self.asking.text_views:
            raise InputError(
                "generated queries are to be asked, and none are generated",
                'Set NgramWriting.made_questions to 0, or write "pseudo_query" (Asking.writes), as MINDER does.',
                value=self.writing.made_questions,
            )

    def check_data(self, dataset: Dataset) -> None:
        """See `System.check_data`."""
        if not len(dataset.qrels.get("train", ())):  # an untrained writer is counted on them
            raise InputError(
                f"{self.name} learns to write from training questions, and there are none",
                "Add queries.jsonl and qrels/train.tsv, or use a system that needs none.",
            )
        if not any_answered(dataset):
            raise InputError(
                f"{self.name} learns to write from what answers training questions, and no grade in them is above 0",
                "Give documents that answer a grade of 1 or more in qrels/train.tsv.",
            )

    def model_of(self, corpus: Stage, words: Stage, text: Stage, made: Stage | None) -> Stage:
        """The stage of the writer, named "model".

        Args:
          corpus, words, text: documents, vocabulary, the text and its index.
          made: the queries that documents are named by; they are in the text, and a student may be asked them.
        """
        if self.trained:
            # Dev is asked as training reads questions, not as the index is told later.
            dev = dataclasses.replace(self.asking, max_query_length=self.writing.query_tokens)
            return writer.model(corpus, words, text, settings=self.writing, asking=dev)
        untrained = writer.untrained(corpus, words, text, settings=self.writing, asking=self.asking)
        return untrained.named(writer.model.name)

    def stages_of(
        self, corpus: Stage, words: Stage, terms: Stage, made: Stage | None, about: str, *seeds: int
    ) -> Stage:
        """The stages behind the queries that documents are named by.

        Args:
          corpus, words, terms: documents, vocabulary, BM25.
          made: the queries; None: documents have none.
          about: what they are, for reports.
          seeds: that they were made with.
        """
        text = indexing.ngrams(corpus, words, made, views=self.asking.text_views)
        model = self.model_of(corpus, words, text, made)
        index = indexing.index(corpus, words, text, model, asking=self.asking)
        both = hybrid(corpus, terms, index, name=self.name)
        about_all = {
            "pseudo_queries": about,
            "normalizer": "vocabulary",
            "seeds": sorted({*seeds, self.writing.seed}),
        }
        return indexing.ngram_results(corpus, terms, model, index, both, name=self.name, provenance=about_all).named(
            "results"
        )


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class SEAL(NgramSystem):
    """SEAL: any run of words of a document is a name of it. A model writes n-grams that stand somewhere, an FM-index
    keeps it to them (§3.1), and a document's score is that of the n-grams that it has (§3.2).

    It deviates from the paper in the writer, which is BART fine-tuned there: here a new decoder that copies from the
    question stands on MiniLM as it is, and before training it copies each word as often as training questions' words
    stand in what they lead to. Tokens are MiniLM's, without case. N-grams are scored over the whole vocabulary while
    they are searched for, so that nothing is scored again. Weights are cubed, where the paper squares them
    (`Asking.alpha`).
    """

    paper: ClassVar[str] = "Bevilacqua et al. 2022, arXiv 2204.10628"

    name: str = "SEAL"

    def check(self) -> None:
        super().check()
        if ASKED in self.asking.text_views:
            raise InputError(
                "SEAL's documents have no queries made from them",
                'Leave "pseudo_query" out of Asking.writes, or use MINDER.',
                value=self.asking.writes,
            )

    def stages(self, corpus: Stage) -> Stage:
        words, terms = vocabulary_of(corpus, self.writing), bm25(corpus, settings=self.lexical)
        return self.stages_of(corpus, words, terms, None, "none")


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class MINDER(NgramSystem):
    """MINDER: SEAL with names of three kinds, each written to a prompt of its own: titles, runs of words of the text,
    and runs of words of queries that a generator wrote to the document (§3.2). All of them make a document's score.

    Queries are those of `bm25_doct5query`, where the paper has them of DocT5Query. It deviates from the paper as `SEAL`
    does. §3.3's pairs without labels are left out, unless `NgramWriting.made_questions` asks generated queries too.
    What is written of queries counts a little less than the rest: 1 is taken off its log-probabilities
    (`Asking.pseudo_query_shift`). The released code adds 14, which put all that stands in any query first here.

    Attributes:
      generator: of queries, and its training.
      generated: the queries that it writes.
    """

    paper: ClassVar[str] = "Li et al. 2023, arXiv 2305.16675"

    name: str = "MINDER"
    asking: Asking = setting(Asking(writes=(BODY, TITLE, PSEUDO_QUERY)))
    generator: QueryGenerating = setting(QueryGenerating())
    generated: GeneratedQueries = setting(GeneratedQueries())

    def stages(self, corpus: Stage) -> Stage:
        words, terms = vocabulary_of(corpus, self.writing), bm25(corpus, settings=self.lexical)
        if ASKED not in self.asking.text_views:
            return self.stages_of(corpus, words, terms, None, "none")
        reads = vocabulary_of(corpus, self.generator).named("generator_vocabulary")
        made = generated(
            corpus, reads, generator(corpus, reads, settings=self.generator), terms,
            document_tokens=self.generator.document_tokens, query_tokens=self.generator.query_tokens,
            settings=self.generated,
        )  # fmt: skip
        about = f"at most {self.generated.most} generated"
        return self.stages_of(corpus, words, terms, made, about, self.generator.seed, self.generated.seed)

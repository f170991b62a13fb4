"""How questions are put to a writer of n-grams, and documents made of what it writes."""

from __future__ import annotations

import dataclasses

import gin
import numpy as np

from gr_jax.constraints import FMIndex
from gr_jax.corpus import Dataset
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.models.copying import CopyDecoder
from gr_jax.retrievers.generative import GenerativeRetriever
from gr_jax.retrievers.ngram_scorer import NgramScoring
from gr_jax.retrievers.ngrams import NgramAggregation, NgramView
from gr_jax.retrievers.views import QUERY, View
from gr_jax.stages.settings import Settings, setting
from gr_jax.systems.ngram.samples import BODY, PSEUDO_QUERY, TITLE
from gr_jax.text import Vocabulary

# The view of the text that holds what documents say, and that of the queries that were made from them.
SAID, ASKED = "title+body", "pseudo_query"
# What each view reads: a question and a word for what is to be written.
PROMPTS = {BODY: QUERY, TITLE: f"{QUERY} || title", PSEUDO_QUERY: f"{QUERY} || query"}
PSEUDO_QUERY_MOST = -1.0  # as MINDER's released code has it
WALKS = {BODY: SAID, TITLE: f"^{SAID}", PSEUDO_QUERY: ASKED}


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Asking(Settings):
    """How questions are put and n-grams are scored. Defaults are those of SEAL's released code. `alpha` and
    `pseudo_query_shift` are not: released values were found for BART, and these were chosen on dev.

    Attributes:
      writes: what is written, each in its view: "body", "title", "pseudo_query".
      beams: hypotheses of each view.
      tokens: of an n-gram at most.
      title_tokens: of a title at most; titles count as a whole alone.
      max_query_length: tokens read of a question.
      alpha: see `NgramScoring`; 2 is the value of SEAL's released code.
      beta, smoothing, most_occurrences, most_documents: see `NgramScoring`.
      own_words: n-grams of the question's own text, of so many words at most, join; 0: none do.
      pseudo_query_shift: added to log-probabilities in the view "pseudo_query", up to −1; 14 is the value of MINDER's
        released code. None leaves them.
      singles: so many of the likeliest first tokens count where no n-gram covers them; 0: none do.
    """

    writes: tuple[str, ...] = (BODY, TITLE)
    beams: int = setting(15, at_least=1)
    tokens: int = setting(10, at_least=1)
    title_tokens: int = setting(15, at_least=1)
    max_query_length: int = setting(64, at_least=3)
    alpha: float = setting(3.0, at_least=0)
    beta: float = setting(0.8, at_least=0, at_most=1)
    smoothing: float = setting(5.0, above=0)
    most_occurrences: int = setting(1500, at_least=1)
    most_documents: int = setting(1500, at_least=1)
    own_words: int = setting(3, at_least=0)
    singles: int = setting(5000, at_least=0)
    pseudo_query_shift: float | None = -1.0

    def check(self) -> None:
        unknown = [what for what in self.writes if what not in WALKS]
        if unknown or not self.writes or len(set(self.writes)) != len(self.writes):
            raise InputError(
                "no such views of a question", f"Name some of {', '.join(WALKS)}, each once.", value=self.writes
            )

    @property
    def views(self) -> tuple[tuple[str, str, View], ...]:
        """Of each view what it writes, where that stands in the text, and how the question is asked."""
        return tuple((what, WALKS[what].lstrip("^"), View(PROMPTS[what], walks=WALKS[what])) for what in self.writes)

    @property
    def text_views(self) -> tuple[str, ...]:
        """The views of the text."""
        return tuple(dict.fromkeys(segment for _, segment, _ in self.views))


def retriever_of(
    model: CopyDecoder,
    index: FMIndex,
    text: TokenText,
    vocabulary: Vocabulary,
    asking: Asking,
    dataset: Dataset,
) -> GenerativeRetriever:
    """The retriever around a writer."""
    views = [view for _, _, view in asking.views]
    longest = max(asking.title_tokens if what == TITLE else asking.tokens for what in asking.writes)
    scoring = NgramScoring(asking.alpha, asking.beta, asking.smoothing, asking.most_occurrences, asking.most_documents)
    return GenerativeRetriever(
        model,
        index,
        vocabulary,
        documents_of=NgramAggregation(
            vocabulary,
            text,
            np.asarray(index.row_documents),
            views=[_ngram_view(what, view, vocabulary, asking) for what, _, view in asking.views],
            scoring=scoring,
        ),
        views=views,
        transform=dataset.transform,
        beams=asking.beams,
        max_len=longest,
        normalize="vocabulary",
        max_query_length=asking.max_query_length,
    )


def _ngram_view(what: str, view: View, vocabulary: Vocabulary, asking: Asking) -> NgramView:
    behind = view.prompt[view.prompt.index(QUERY) + len(QUERY) :]
    own_to = len(vocabulary.encode(behind)) + len(vocabulary.suffix)
    made = NgramView(tokens=asking.tokens, own_words=0, singles=0, own_from=len(vocabulary.prefix), own_to=own_to)
    if what == TITLE:
        return dataclasses.replace(made, whole=True, tokens=asking.title_tokens)
    if what == PSEUDO_QUERY:
        shift = asking.pseudo_query_shift
        return dataclasses.replace(made, shift=shift, most=None if shift is None else PSEUDO_QUERY_MOST)
    return dataclasses.replace(made, own_words=asking.own_words, singles=asking.singles)

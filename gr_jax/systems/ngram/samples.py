"""What a writer of n-grams learns from: questions in every view, and what to write to each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Int32

from gr_jax.corpus import Dataset
from gr_jax.docids import span_samplers
from gr_jax.docids.spans import TokenText
from gr_jax.errors import InputError
from gr_jax.retrievers.views import View
from gr_jax.text import Vocabulary, encode_texts, get_transform
from gr_jax.text.word_starts import word_starts
from gr_jax.training.source_batches import SourceTargets

BODY, TITLE, PSEUDO_QUERY = "body", "title", "pseudo_query"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How many identifiers of a document a question learns to write in each view, and how they are drawn.

    Attributes:
      spans, titles: of a document in its view.
      pseudo_queries: so many of a document's are chosen; spans are drawn of them, in all as many as `spans`.
      made_questions: so many of a document's pseudo-queries are asked like questions of train.
      span_tokens: of a span.
      title_tokens: titles are cut there.
      temperature: of the overlap by which spans and pseudo-queries are drawn; None draws all alike.
      seed: of the drawing.
    """

    spans: int
    titles: int
    pseudo_queries: int
    span_tokens: int
    title_tokens: int
    temperature: float | None
    seed: int
    made_questions: int = 0


class Documents:
    """The identifiers that documents have.

    Args:
      text: segments of tokens; see `token_text`.
      vocabulary: of the text.
      titles: tokens of each document's title.
    """

    def __init__(self, text: TokenText, vocabulary: Vocabulary, titles: Sequence[Sequence[int]]):
        self._text, self._titles = text, titles
        self._starts = word_starts(vocabulary)
        order = np.argsort(text.documents, kind="stable")
        self._segments = np.split(order, np.searchsorted(text.documents[order], np.arange(1, text.num_documents)))
        self.rarity = self._rarity()

    def _rarity(self) -> Float[np.ndarray, " vocab"]:
        lengths = np.diff(self._text.offsets)
        owner = np.repeat(self._text.documents.astype(np.int64), lengths)
        pairs = np.unique(owner * self._text.vocab_size + self._text.tokens)
        counts = np.bincount(pairs % self._text.vocab_size, minlength=self._text.vocab_size)
        return span_samplers.rarity_of(counts, self._text.num_documents)

    def segments(self, document: int, view: str) -> list[Int[np.ndarray, " n"]]:
        """Tokens of a document's segments in a view of the text."""
        number = self._text.view_names.index(view)
        own = (int(one) for one in self._segments[document] if self._text.views[one] == number)
        found = (self._text.tokens[self._text.offsets[one] : self._text.offsets[one + 1]] for one in own)
        return [tokens.astype(np.int64) for tokens in found if len(tokens)]

    def spans(
        self, document: int, view: str, query: Sequence[int], sampling: Sampling, rng: np.random.Generator
    ) -> list[list[int]]:
        """Spans of a document's longest segment, drawn by their overlap with a question."""
        segments = self.segments(document, view)
        return self._spans(max(segments, key=len), query, sampling.spans, sampling, rng) if segments else []

    def _spans(
        self,
        tokens: Int[np.ndarray, " n"],
        query: Sequence[int],
        count: int,
        sampling: Sampling,
        rng: np.random.Generator,
    ) -> list[list[int]]:
        starts = self._starts[tokens]
        starts[0] = True
        length = sampling.span_tokens
        if sampling.temperature is None:
            return span_samplers.uniform_spans(tokens, starts, count=count, length=length, rng=rng)
        return span_samplers.overlapping_spans(
            tokens, starts, query, self.rarity,
            count=count, length=length, temperature=sampling.temperature, rng=rng,
        )  # fmt: skip

    def title(self, document: int, sampling: Sampling) -> list[list[int]]:
        """A document's title as often as it is to be learned; nothing where it has none or too long a one."""
        title = list(self._titles[document])
        fits = 0 < len(title) <= sampling.title_tokens
        return [title] * sampling.titles if fits else []

    def pseudo_queries(
        self,
        document: int,
        view: str,
        query: Sequence[int],
        sampling: Sampling,
        rng: np.random.Generator,
        *,
        repeated: bool = True,
    ) -> list[list[int]]:
        """Spans of those of a document's pseudo-queries that share the most with a question, with some chance.

        Not the queries' first words: "what is the name of" stands in many and names none.

        Args:
          repeated: the question itself counts where it is one of them.
        """
        segments = self.segments(document, view)
        if not repeated:
            segments = [tokens for tokens in segments if tokens.tolist() != list(query)]
        if not segments or not sampling.pseudo_queries:
            return []
        asked = np.asarray(query, np.int64)
        shared = np.asarray([self.rarity[np.intersect1d(tokens, asked)].sum() for tokens in segments])
        if sampling.temperature is not None:
            shared = shared / sampling.temperature
        best = np.argsort(-(shared + rng.gumbel(size=len(segments))), kind="stable")[: sampling.pseudo_queries]
        count = -(-sampling.spans // len(best))
        found = [self._spans(segments[one], query, count, sampling, rng) for one in best]
        return [span for of_one in zip(*found, strict=True) for span in of_one]  # each query's turn


def source_targets(
    dataset: Dataset,
    split: str,
    documents: Documents,
    vocabulary: Vocabulary,
    views: Sequence[tuple[str, str, View]],
    sampling: Sampling,
    query_tokens: int,
) -> SourceTargets:
    """The questions of a split, in every view, with identifiers of the documents that they lead to.

    Args:
      documents: what they are called.
      views: of each what it writes (`BODY`, `TITLE`, `PSEUDO_QUERY`), in which view of the text that stands, and how
        questions are asked.
      sampling: of the identifiers.
      query_tokens: read of a question.

    Raises:
      InputError: no question of the split leads to a document.
    """
    corpus = dataset.corpus
    pairs: dict[str, list[int]] = {}
    for query_id, grades in dataset.split(split).items():
        relevant = [corpus.index_of(doc_id) for doc_id, grade in grades.items() if grade > 0]
        if relevant:
            pairs[query_id] = relevant
    if not pairs:
        raise InputError(f"no query of the split {split!r} leads to a document", "Give queries and qrels.")
    rewrite = get_transform(dataset.transform)
    questions = [rewrite(question) for question in dataset.query_texts(list(pairs))]
    read = vocabulary.encode_batch(questions)
    return _with_targets(
        questions, read, list(pairs.values()), documents, vocabulary, views, sampling, query_tokens, repeated=True
    )


def made_targets(
    documents: Documents,
    count: int,
    vocabulary: Vocabulary,
    views: Sequence[tuple[str, str, View]],
    sampling: Sampling,
    query_tokens: int,
) -> SourceTargets | None:
    """`sampling.made_questions` pseudo-queries of each document as questions that it answers (MINDER, §3.3); None
    where there are none. Arguments are those of `source_targets`.

    Args:
      count: how many documents there are.
    """
    segment = next((segment for what, segment, _ in views if what == PSEUDO_QUERY), None)
    read: list[list[int]] = []
    relevant: list[list[int]] = []
    if segment is not None and sampling.made_questions:
        for document in range(count):
            own = documents.segments(document, segment)
            rng = np.random.default_rng([sampling.seed, document])
            for place in rng.permutation(len(own))[: sampling.made_questions].tolist():
                read.append(own[place].tolist())
                relevant.append([document])
    if not read:
        return None
    # Of the question itself nothing is written: it would learn to repeat what it is asked.
    return _with_targets(
        list(map(vocabulary.decode, read)), read, relevant, documents, vocabulary, views, sampling, query_tokens,
        repeated=False,
    )  # fmt: skip


def _with_targets(
    questions: Sequence[str],
    read: Sequence[Sequence[int]],
    relevant: Sequence[Sequence[int]],
    documents: Documents,
    vocabulary: Vocabulary,
    views: Sequence[tuple[str, str, View]],
    sampling: Sampling,
    query_tokens: int,
    *,
    repeated: bool,
) -> SourceTargets:
    targets: list[list[list[int]]] = []
    for number, tokens in enumerate(read):
        for place, (what, segment, _) in enumerate(views):
            rng = np.random.default_rng([sampling.seed, number, place])
            found: list[list[int]] = []
            for document in relevant[number]:
                if what == TITLE:
                    found += documents.title(document, sampling)
                elif what == PSEUDO_QUERY:
                    found += documents.pseudo_queries(document, segment, tokens, sampling, rng, repeated=repeated)
                else:
                    found += documents.spans(document, segment, tokens, sampling, rng)
            targets.append(found)
    return SourceTargets(_asked(questions, vocabulary, views, query_tokens), [targets])


def question_tokens(
    questions: Sequence[str],
    transform: str,
    vocabulary: Vocabulary,
    views: Sequence[tuple[str, str, View]],
    query_tokens: int,
) -> Int32[np.ndarray, "rows query_tokens"]:
    """Tokens of questions, each in every view; 0 is padding. See `source_targets`."""
    return _asked(list(map(get_transform(transform), questions)), vocabulary, views, query_tokens)


def _asked(
    questions: Sequence[str], vocabulary: Vocabulary, views: Sequence[tuple[str, str, View]], query_tokens: int
) -> Int32[np.ndarray, "rows query_tokens"]:
    asked = [view.ask(question) for question in questions for _, _, view in views]
    sources, lengths = encode_texts(vocabulary, asked, query_tokens)
    sources[np.arange(query_tokens) >= lengths[:, None]] = 0
    return sources


def copy_rates(data: SourceTargets, vocab_size: int, smoothing: float = 2.0) -> np.ndarray:
    """How often each token of a source stands in what is written to it: float64[vocab], smoothed by the mean rate.

    Args:
      data: sources and targets.
      smoothing: so many sources at the mean rate are added.
    """
    seen, copied = np.zeros(vocab_size), np.zeros(vocab_size)
    for source, targets in zip(data.sources, data.kinds[0], strict=True):
        if targets:
            tokens = np.unique(source[source != 0])
            written = np.unique(np.concatenate([np.asarray(target) for target in targets]))
            seen[tokens] += 1
            copied[np.intersect1d(tokens, written)] += 1
    mean = copied.sum() / max(seen.sum(), 1.0)
    return (copied + smoothing * mean) / (seen + smoothing)

"""Pseudo-queries: queries made from the documents themselves, for corpora and documents that nobody has queried yet.

Without them a model that writes identifiers has never seen a query-like text lead to most documents (DSI-QG, Zhuang et
al. 2022; NCI, Wang et al. 2022, section 3.3). They are made by rules here, so they need no model and no download.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int8, Int32

from gr_jax import progress as progress_lib
from gr_jax import storage
from gr_jax.corpus.columns import ColumnWriter, TextColumn
from gr_jax.corpus.documents import Corpus, Document
from gr_jax.errors import InputError
from gr_jax.text.questions import ask
from gr_jax.text.sentences import is_unspaced, split_sentences, word_spans
from gr_jax.text.transforms import get_transform, split_identifiers

STORE_KIND = "pseudo_queries"
GENERATED = "generated"
DEFAULT_KINDS: Mapping[str, int] = {"title": 1, "sentence": 4, "span": 4, "cloze": 8}

# How long spans are, in words (in characters, twice that, where a script has no spaces).
SPAN_WORDS = (4, 16)
MAX_SENTENCE_WORDS = 40

# A few tries more than are asked for: equal queries of one document count once.
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class PseudoQueries:
    """Queries made from documents, in the order of the documents.

    Attributes:
      texts: lazy sequence of strings.
      documents: position of the document that each was made from.
      kinds: of what kind each is: a place in `kind_names`.
      kind_names: the kinds, in the order in which they were asked for.
      corpus: fingerprint of the corpus.
    """

    texts: Sequence[str]
    documents: Int32[np.ndarray, " n"]
    kinds: Int8[np.ndarray, " n"]
    kind_names: tuple[str, ...]
    corpus: str = ""

    def __len__(self) -> int:
        return len(self.documents)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes an artefact of kind "pseudo_queries"."""
        meta = {"kind_names": list(self.kind_names), "queries": len(self)}
        with storage.write_folder(folder, STORE_KIND, corpus=self.corpus, meta=meta) as new:
            texts = self.texts if isinstance(self.texts, TextColumn) else TextColumn.of(self.texts)
            texts.save(new, "texts")
            np.save(new / "documents.npy", self.documents)
            np.save(new / "kinds.npy", self.kinds)

    @classmethod
    def load(cls, folder: str | os.PathLike, *, verify: bool = True) -> PseudoQueries:
        """Memory-maps what `save` wrote.

        Raises:
          InputError: `folder` holds no pseudo-queries, or truncated or altered ones.
        """
        manifest = storage.read_folder(folder, STORE_KIND, verify=verify)
        folder = pathlib.Path(folder)
        texts = TextColumn.load(folder, "texts", mmap=True)
        documents = storage.load_array(folder / "documents.npy", mmap=True)
        kinds = storage.load_array(folder / "kinds.npy", mmap=True)
        if not len(texts) == len(documents) == len(kinds):
            raise InputError("the columns differ in length", "Make the pseudo-queries again.", file=folder)
        return cls(texts, documents, kinds, tuple(manifest.meta["kind_names"]), manifest.corpus)


def pseudo_queries(
    corpus: Corpus,
    *,
    kinds: Mapping[str, int] = DEFAULT_KINDS,
    seed: int = 0,
    transform: str | None = None,
    generated: PseudoQueries | None = None,
    progress: bool = False,
) -> PseudoQueries:
    """Makes queries from every document.

    What a document gets depends on the document, its id, the kind and `seed` alone: not on the other documents, their
    order, or the other kinds that are asked for. A document that says too little gets fewer than asked for.

    Kinds:
      span: a run of words of the text.
      sentence: a whole sentence, cut after 40 words.
      title: the title, then the title without what stands in parentheses.
      cloze: a question to which a sentence holds the answer (`gr_jax.text.questions`); in texts that are not English
        the words around a gap.
      generated: the first ones of the document in a table that was made before, by a trained generator of queries
        (`bm25_doct5query`).

    Args:
      corpus: the documents.
      kinds: kind → how many for each document.
      seed: of the choice.
      transform: name of a transform of `gr_jax.text.TRANSFORMS` that each query goes through.
      generated: where the kind "generated" comes from.
      progress: show a bar.

    Raises:
      InputError: an unknown kind or transform, a negative number, or generated queries that are not there or of
        another corpus.
    """
    for kind, count in kinds.items():
        if kind not in (*_MAKERS, GENERATED):
            known = ", ".join((*_MAKERS, GENERATED))
            raise InputError("no such kind of pseudo-query", f"Choose among {known}.", value=kind)
        if not isinstance(count, int) or count < 0:
            raise InputError(f"not a number of {kind} pseudo-queries", "Give 0 or more.", value=count)
    change = get_transform(transform or "none")
    table = _table(corpus, kinds, generated)
    texts = ColumnWriter()
    documents: list[int] = []
    of_kind: list[int] = []
    with progress_lib.bar("Making pseudo-queries", len(corpus), enabled=progress) as bar:
        for index, document in enumerate(corpus):
            source = _Source(document)
            for number, (kind, count) in enumerate(kinds.items()):
                candidates = (
                    table(index) if kind == GENERATED else _MAKERS[kind](source, _generator(seed, kind, document))
                )
                for query in _distinct(candidates, count):
                    texts.append(change(query).encode("utf-8"))
                    documents.append(index)
                    of_kind.append(number)
            bar.advance()
    return PseudoQueries(
        texts.column(), np.array(documents, np.int32), np.array(of_kind, np.int8), tuple(kinds), corpus.fingerprint
    )


_PARENTHESES = re.compile(r"\s*[(（][^()（）]*[)）]")
_EDGES = ' ,;:.()[]"“”、。「」（）'
_ENGLISH = re.compile(r"\b(?:the|of|and|to|in|is|a|for|was|by|are|with|or|on|an|be)\b", re.IGNORECASE)
_SYMBOL = re.compile(r"[^\w\s]|_")


class _Source:
    """A document's parts, cut once for all kinds.

    Attributes:
      title: on one line.
      topic: the title as one would say it in a question: without parentheses, "stepped schedule" for the name of an
        object ("optax.stepped_schedule").
      sentences: of the text; those that are code or tables only where there is nothing else.
      text: the same in one string.
      unspaced, english: how it is written.
    """

    def __init__(self, document: Document):
        self.title = " ".join(document.title.split())
        topic = _PARENTHESES.sub("", self.title).strip()
        if len(topic.split()) == 1 and any(mark in topic for mark in "._/"):
            topic = split_identifiers(re.split(r"[./]", topic.rstrip("./"))[-1]).strip()
        self.topic = topic
        self.unspaced = is_unspaced(document.text)
        sentences = split_sentences(document.text)
        prose = [sentence for sentence in sentences if 5 * len(_SYMBOL.findall(sentence)) <= len(sentence)]
        self.sentences = prose or sentences
        self.text = ("" if self.unspaced else " ").join(self.sentences)
        self.english = not self.unspaced and 10 * len(_ENGLISH.findall(self.text)) >= self.text.count(" ")


def _table(corpus: Corpus, kinds: Mapping[str, int], generated: PseudoQueries | None) -> Callable[[int], Iterator[str]]:
    """The queries of each document in a table that was made before."""
    if generated is None and GENERATED in kinds:
        raise InputError(
            'pseudo-queries of the kind "generated" need a table of generated queries',
            "Name the table that bm25_doct5query made, as PseudoQueries.generated.",
        )
    if generated is None:
        return lambda index: iter(())
    if generated.corpus != corpus.fingerprint:
        raise InputError(
            f"these queries were generated from the corpus {generated.corpus}, not from {corpus.fingerprint}",
            "Generate queries from this corpus.",
        )
    starts = np.searchsorted(generated.documents, np.arange(len(corpus) + 1)).tolist()
    texts = generated.texts
    return lambda index: (texts[place] for place in range(starts[index], starts[index + 1]))


def _generator(seed: int, kind: str, document: Document) -> random.Random:
    digest = hashlib.blake2b(f"{seed}\0{kind}\0{document.doc_id}".encode(), digest_size=8)
    return random.Random(int.from_bytes(digest.digest(), "little"))


def _distinct(candidates: Iterator[str], count: int) -> list[str]:
    """The first `count` different candidates, without trying for ever."""
    found: dict[str, None] = {}
    tries = 0
    while len(found) < count and tries < _TRIES * count + 2:
        tries += 1
        candidate = next(candidates, None)
        if candidate is None:
            break
        if candidate.strip():
            found[candidate] = None
    return list(found)


def _titles(source: _Source, generator: random.Random) -> Iterator[str]:
    yield source.title
    yield _PARENTHESES.sub("", source.title).strip()


def _sentences(source: _Source, generator: random.Random) -> Iterator[str]:
    order = list(range(len(source.sentences)))
    generator.shuffle(order)
    for index in order:
        spans = word_spans(source.sentences[index])
        limit = MAX_SENTENCE_WORDS * (2 if source.unspaced else 1)
        yield " ".join(source.sentences[index][: spans[min(limit, len(spans)) - 1][1]].split())


def _spans(source: _Source, generator: random.Random) -> Iterator[str]:
    spans = word_spans(source.text)
    if not spans:
        return
    scale = 2 if source.unspaced else 1
    while True:
        length = generator.randint(SPAN_WORDS[0] * scale, SPAN_WORDS[1] * scale)
        start = generator.randint(0, max(0, len(spans) - length))
        end = min(start + length, len(spans)) - 1
        yield " ".join(source.text[spans[start][0] : spans[end][1]].split()).strip(_EDGES)


def _clozes(source: _Source, generator: random.Random) -> Iterator[str]:
    sentences = [sentence for sentence in source.sentences if len(sentence) >= (8 if source.unspaced else 15)]
    if not sentences:
        return
    weights = [min(len(sentence), 250) for sentence in sentences]
    while True:
        sentence = generator.choices(sentences, weights)[0]
        if source.unspaced:
            yield _ask_unspaced(sentence, generator)
        elif source.english:
            yield ask(sentence, source.topic, generator) or ""
        else:
            yield _leave_gap(sentence, generator)


def _leave_gap(sentence: str, generator: random.Random) -> str:
    """A window of a sentence in any language with spaces, without one of its longer words."""
    words = [word.strip(',;:.!?()[]«»„“”"') for word in sentence.split()]
    width = generator.randint(5, 12)
    start = generator.randint(0, max(0, len(words) - width))
    window = [word for word in words[start : start + width] if word]
    long = [place for place, word in enumerate(window) if len(word) > 4]
    if len(long) > 2:
        del window[generator.choice(long)]
    return f"{' '.join(window)}?"


_COMMA = re.compile(r"[、，]")
_GAPS = (
    (re.compile(r"\d{3,4}年(?:\d+月)?(?:\d+日)?"), ("いつ", "何年")),
    (re.compile(r"\d[\d.,]*"), ("何", "いくつ")),
    (re.compile(r"[ァ-ヶー]{3,}"), ("誰", "何", "どこ")),
    (re.compile(r"[一-龥]{2,}"), ("何", "どこ")),
)


def _ask_unspaced(sentence: str, generator: random.Random) -> str:
    """Clauses of Japanese (other scripts without spaces take what fits) with a question word for one of their parts."""
    clauses = [clause for clause in _COMMA.split(sentence.strip(_EDGES)) if clause]
    start = generator.randrange(len(clauses)) if clauses else 0
    question = ""
    for clause in clauses[start:]:
        question += clause
        if len(question) >= 15:
            break
    question = question[:45]
    gaps = [(match.span(), words) for pattern, words in _GAPS for match in pattern.finditer(question)]
    if gaps:
        (first, last), words = generator.choice(gaps)
        question = f"{question[:first]}{generator.choice(words)}{question[last:]}"
    return f"{question}?"


_MAKERS: Mapping[str, Callable[[_Source, random.Random], Iterator[str]]] = {
    "span": _spans,
    "sentence": _sentences,
    "title": _titles,
    "cloze": _clozes,
}

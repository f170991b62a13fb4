"""Long documents as passages by a named rule, and titles for documents without one.

A word is a run without white space, or one character of a script without spaces.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from gr_jax.corpus.dataset import Dataset
from gr_jax.corpus.documents import Corpus, Document
from gr_jax.corpus.trec import Qrels
from gr_jax.errors import InputError
from gr_jax.text.sentences import split_sentences, word_spans

MARK = "#"  # between a document's id and the number of a passage
_NUMBER = re.compile(r"#[0-9]+$")
TRAIN = "train"
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Rule:
    """How documents are cut.

    Attributes:
      name: "first", a document is its first words; "windows", passages of as many words, each `stride` behind the one
        before; or "sentences", passages of as many whole sentences as have room, of a longer sentence its words.
      words: of a passage at most.
      stride: of windows; 0 is `words`, so that they do not overlap.
      title_words: of a document without a title, so many of its first sentence become one; 0 leaves it without.
    """

    name: str = "windows"
    words: int = 100
    stride: int = 0
    title_words: int = 0

    def __post_init__(self):
        if self.name not in RULES:
            raise InputError("no such rule for passages", f"Use {', '.join(RULES)}.", value=self.name)
        for name, least in (("words", 1), ("stride", 0), ("title_words", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is below {least}", "Raise it.", value=getattr(self, name))
        if self.stride > self.words:
            raise InputError("a stride beyond the words of a window leaves words out", "Lower it.", value=self.stride)

    def passages(self, text: str) -> list[str]:
        """The passages of a text, in order; [""] of one without words."""
        return list(RULES[self.name](text, self)) or [""]

    def title(self, document: Document) -> str:
        """A document's title, or the one that it gets."""
        if document.title.strip() or not self.title_words:
            return document.title
        sentence = next(iter(split_sentences(document.text)), "")
        spans = word_spans(sentence)[: self.title_words]
        return sentence[: spans[-1][1]].rstrip(".,;:!?。！？") if spans else ""


def _first(text: str, rule: Rule) -> Iterator[str]:
    spans = word_spans(text)[: rule.words]
    if spans:
        yield text[spans[0][0] : spans[-1][1]]


def _windows(text: str, rule: Rule) -> Iterator[str]:
    spans, stride = word_spans(text), rule.stride or rule.words
    for start in range(0, len(spans), stride):
        chosen = spans[start : start + rule.words]
        yield text[chosen[0][0] : chosen[-1][1]]
        if start + rule.words >= len(spans):
            return


def _sentences(text: str, rule: Rule) -> Iterator[str]:
    held: list[str] = []
    filled = 0
    for sentence in split_sentences(text):
        for part in _windows(sentence, dataclasses.replace(rule, stride=0)):
            count = len(word_spans(part))
            if held and filled + count > rule.words:
                yield " ".join(held)
                held, filled = [], 0
            held.append(part)
            filled += count
    if held:
        yield " ".join(held)


RULES: Mapping[str, Callable[[str, Rule], Iterator[str]]] = {
    "first": _first, "windows": _windows, "sentences": _sentences
}  # fmt: skip


def cut(dataset: Dataset, rule: Rule, store: str | os.PathLike | None = None) -> Dataset:
    """The data set with passages as its documents.

    With "first" documents keep their ids. Otherwise passage n of d is "d#n". What was judged of a document holds for
    all of its passages, but in training: there a question is asked of the passage that shares most of its words, the
    first of equal ones.

    Args:
      dataset: with whole documents.
      rule: of passages.
      store: folder for the passages' columns, see `Corpus.from_documents`; None keeps them in memory.

    Raises:
      InputError: an id that ends like a passage's already.
    """
    numbered = rule.name != "first"
    corpus, counts = dataset.corpus, dict[str, int]()
    notes = {"documents": len(corpus), "titles made": 0}
    judged = {doc_id for qrels in dataset.qrels.values() for grades in qrels.values() for doc_id in grades}
    asked: dict[str, list[str]] = {}  # document → the training questions that it answers
    for query, grades in dataset.qrels.get(TRAIN, {}).items():
        for doc_id in grades:
            asked.setdefault(doc_id, []).append(query)
    best: dict[tuple[str, str], int] = {}

    def documents() -> Iterator[Document]:
        for document in corpus:
            if _NUMBER.search(document.doc_id):
                raise InputError("an id that ends like a passage's", "Replace the #.", value=document.doc_id)
            title = rule.title(document)
            notes["titles made"] += title != document.title
            passages = rule.passages(document.text)
            if numbered and document.doc_id in judged:
                counts[document.doc_id] = len(passages)
                for query in asked.get(document.doc_id, ()):
                    best[query, document.doc_id] = _closest(dataset.queries.text(query), passages)
            for number, text in enumerate(passages):
                yield Document(f"{document.doc_id}{MARK}{number}" if numbered else document.doc_id, title, text)

    made = Corpus.from_documents(documents(), store)
    qrels = dataset.qrels
    if numbered:
        qrels = {split: _judged(dataset.qrels[split], split == TRAIN, counts, best) for split in dataset.qrels}
    return dataclasses.replace(dataset, corpus=made, qrels=qrels, notes={**dataset.notes, **notes})


def _judged(qrels: Qrels, train: bool, counts: Mapping[str, int], best: Mapping[tuple[str, str], int]) -> Qrels:
    found: dict[str, dict[str, int]] = {}
    for query, grades in qrels.items():
        of_query = found.setdefault(query, {})
        for doc_id, grade in grades.items():
            chosen = [best[query, doc_id]] if train else range(counts[doc_id])
            of_query.update({f"{doc_id}{MARK}{number}": grade for number in chosen})
    return Qrels(found)


def _closest(question: str, passages: list[str]) -> int:
    words = set(_WORD.findall(question.lower()))
    shared = [len(words & set(_WORD.findall(passage.lower()))) for passage in passages]
    return shared.index(max(shared))


def documents_of(passages: Iterable[str]) -> dict[str, str]:
    """Passage's id → its document's, for `evaluation.pages`."""
    return {passage: _NUMBER.sub("", passage) for passage in passages}

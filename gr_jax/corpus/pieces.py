"""Long documents in pieces, each as long as an encoder reads, so that all of a document has a vector."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Int, Int32

from gr_jax.corpus.documents import Corpus, Document
from gr_jax.text.sentences import split_sentences, word_spans

Count = Callable[[Sequence[str]], Int[np.ndarray, " texts"]]
_AT_ONCE = 1024  # documents whose tokens are counted at once


def text_pieces(
    corpus: Corpus, count: Count, room: int, lengths: Int[np.ndarray, " documents"] | None = None
) -> tuple[list[str], Int32[np.ndarray, " pieces"]]:
    """The pieces of every document: all of it, of which an encoder reads the beginning, and where it is longer what
    follows, sentence by sentence, in pieces as long as there is room, each with the title that says what it is about.

    Args:
      corpus: the documents.
      count: tokens of each of some texts.
      room: tokens that are read of a text.
      lengths: tokens of each document's contents, where they have been counted.

    Returns:
      Texts, and the position of the document that each belongs to, ascending.
    """
    texts: list[str] = []
    owner: list[int] = []
    for start in range(0, len(corpus), _AT_ONCE):
        documents = [corpus[index] for index in range(start, min(start + _AT_ONCE, len(corpus)))]
        if lengths is None:
            their = count([document.contents for document in documents])
        else:
            their = lengths[start : start + len(documents)]
        for index, (document, length) in enumerate(zip(documents, their, strict=True), start):
            further = _further(document, count, room) if length > room else []
            texts += [document.contents, *further]
            owner += [index] * (1 + len(further))
    return texts, np.asarray(owner, np.int32)


def _further(document: Document, count: Count, room: int) -> list[str]:
    """The pieces of a long document behind its beginning, which an encoder reads anyway."""
    title = f"{document.title} " if document.title else ""
    of_title = int(count([document.title])[0]) if title else 0
    if 2 * of_title > room:  # a title that leaves less than half of the room to the text
        return list(_packed("", document.text, count, room))
    return list(_packed(title, document.text, count, room - of_title))[1:]


def _packed(title: str, text: str, count: Count, room: int) -> Iterator[str]:
    """Sentences one after the other, as many in a piece as there is room for, each piece after the title."""
    sentences = split_sentences(text)
    held: list[str] = []
    filled = 0
    for sentence, length in zip(sentences, count(sentences).tolist(), strict=True):
        for part, tokens in _parts(sentence, length, count, room):
            if held and filled + tokens > room:
                yield title + " ".join(held)
                held, filled = [], 0
            held.append(part.strip())
            filled += tokens
    if held:
        yield title + " ".join(held)


def _parts(text: str, length: int, count: Count, room: int) -> Iterator[tuple[str, int]]:
    """A text and its tokens; one that is longer than there is room in parts of as many words as fit, and a word that is
    longer in parts of itself."""
    if length <= room or len(text) < 2:
        yield text, length
        return
    starts = [start for start, _ in word_spans(text)]
    if len(starts) < 2:
        starts = [0, len(text) // 2]
    units = [text[start:stop] for start, stop in itertools.pairwise([*starts, len(text)])]
    held, filled = "", 0
    for unit, tokens in zip(units, count(units).tolist(), strict=True):
        for part, size in _parts(unit, tokens, count, room):
            if held and filled + size > room:
                yield held, filled
                held, filled = "", 0
            held += part
            filled += size
    yield held, filled

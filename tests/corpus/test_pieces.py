"""Pieces of long documents: nothing of a document is left out, and nothing is longer than there is room."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from gr_jax.corpus import Corpus, Document
from gr_jax.corpus.pieces import text_pieces

WORDS = strategies.text("abc", min_size=1, max_size=4)
SENTENCE = strategies.lists(WORDS, min_size=1, max_size=12).map(lambda words: " ".join(words).capitalize() + ".")
DOCUMENT = strategies.tuples(
    strategies.lists(WORDS, max_size=8).map(" ".join), strategies.lists(SENTENCE, max_size=8).map(" ".join)
)


def count(texts) -> np.ndarray:
    """A token a word."""
    return np.array([len(text.split()) for text in texts], np.int64)


def of_each(documents: list[tuple[str, str]], room: int) -> list[list[str]]:
    corpus = Corpus.from_documents(Document(f"d{n}", title, text) for n, (title, text) in enumerate(documents))
    texts, owner = text_pieces(corpus, count, room)
    assert owner.dtype == np.int32 and (np.diff(owner) >= 0).all()
    return [[text for text, whose in zip(texts, owner, strict=True) if whose == n] for n in range(len(documents))]


@hypothesis.given(strategies.lists(DOCUMENT, min_size=1, max_size=3), strategies.integers(1, 10))
def test_every_word_is_read_in_its_order(documents, room):
    for (title, text), pieces in zip(documents, of_each(documents, room), strict=True):
        whole = f"{title} {text}".split()
        assert pieces[0].split() == whole
        assert all(len(piece.split()) <= room for piece in pieces[1:])
        if len(whole) <= room:
            assert len(pieces) == 1
            continue
        # What is read of the first is the beginning; the others follow one another to the end.
        before = title.split() if 2 * len(title.split()) <= room else []
        assert all(piece.split()[: len(before)] == before for piece in pieces[1:])
        after = [word for piece in pieces[1:] for word in piece.split()[len(before) :]]
        words = text.split()
        assert words[len(words) - len(after) :] == after
        assert len(words) - len(after) <= max(0, room - len(title.split()))


def test_sentences_stay_whole_where_there_is_room():
    text = "One two three. Four five. Six seven eight nine. Ten."
    (pieces,) = of_each([("A title", text)], 7)
    assert pieces == [f"A title {text}", "A title Six seven eight nine. Ten."]


@pytest.mark.parametrize("room", [1, 3, 100])
def test_a_text_without_sentences_or_spaces(room):
    text = "水" * 10
    corpus = Corpus.from_documents([Document("d", "", text)])
    texts, owner = text_pieces(corpus, lambda some: np.array([len(one) for one in some]), room)
    further = "".join(texts[1:])
    assert texts[0] == text and text[: min(room, 10)] + further == text and all(len(one) <= room for one in texts[1:])
    assert owner.tolist() == [0] * len(texts)


@hypothesis.given(strategies.text("ab. ", max_size=120), strategies.integers(1, 30))
def test_words_of_any_length_fit(text, room):
    """A token is a letter, so that words differ, and one may be longer than there is room."""

    def letters(texts) -> np.ndarray:
        return np.array([len("".join(one.split())) for one in texts], np.int64)

    corpus = Corpus.from_documents([Document("d", "", text)])
    pieces, _ = text_pieces(corpus, letters, room)
    whole = "".join(text.split())
    assert "".join(pieces[0].split()) == whole
    assert (letters(pieces[1:]) <= room).all()
    after = "".join("".join(piece.split()) for piece in pieces[1:])
    assert whole.endswith(after) and len(whole) - len(after) <= room
    assert text_pieces(corpus, letters, room, letters(corpus.contents))[0] == pieces

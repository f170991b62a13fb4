import dataclasses

import numpy as np
import pytest

from gr_jax.corpus import Corpus
from gr_jax.corpus.documents import Document
from gr_jax.docids.pseudo_queries import pseudo_queries
from gr_jax.docids.spans import TokenText, token_text
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import ByteVocabulary


@pytest.fixture(scope="module")
def corpus():
    return Corpus.from_documents(
        Document(f"d{i}", f"Title {i}", f"The text of document {i} says that {i} is {'odd' if i % 2 else 'even'}.")
        for i in range(6)
    )


def test_text_of_a_corpus(corpus):
    vocabulary = ByteVocabulary()
    queries = pseudo_queries(corpus, kinds={"span": 2})
    text = token_text(corpus, vocabulary, views=("title", "title+body", "pseudo_query"), pseudo_queries=queries)
    segments = [
        (text.view_names[view], int(document), vocabulary.decode(text.tokens[a:b]))
        for view, document, a, b in zip(text.views, text.documents, text.offsets, text.offsets[1:], strict=False)
    ]
    titles, bodies = list(corpus.titles), list(corpus.texts)
    assert segments == [
        *(("title", i, title) for i, title in enumerate(titles)),
        *(("title+body", i, title) for i, title in enumerate(titles)),
        *(("title+body", i, body) for i, body in enumerate(bodies)),
        *(("pseudo_query", int(d), query) for d, query in zip(queries.documents, queries.texts, strict=True)),
    ]
    assert text.corpus == corpus.fingerprint and text.vocabulary == vocabulary.fingerprint


def test_token_text_is_saved_and_loaded(corpus, tmp_path):
    text = token_text(corpus, ByteVocabulary())
    text.save(tmp_path / "text")
    loaded = TokenText.load(tmp_path / "text")
    for field in dataclasses.fields(text):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(text, field.name))
    with pytest.raises(InputError, match="do not fit: a token out of range"):
        dataclasses.replace(text, vocab_size=10).save(tmp_path / "text")
        TokenText.load(tmp_path / "text")


@pytest.mark.parametrize("wrong", [{"num_documents": 2**40}, {"vocab_size": -1}, {"vocab_size": "many"}])
def test_numbers_that_nothing_has_are_refused(wrong):
    with pytest.raises(InputError, match="no such number of"):
        dataclasses.replace(TokenText.of([[1], [2]], np.int64(5)), **wrong).check()


@pytest.mark.parametrize(
    "views, problem",
    [
        (("title", "abstract"), "no such view"),
        (("pseudo_query",), "no pseudo-queries"),
        (("title", "title"), "different names"),
    ],
)
def test_views_that_cannot_be_made_are_refused(corpus, views, problem):
    with pytest.raises(InputError, match=problem):
        token_text(corpus, ByteVocabulary(), views=views).check()


def test_pseudo_queries_of_another_corpus_are_refused(corpus):
    other = pseudo_queries(Corpus.from_documents([Document("x", "", "Another text of a few words.")]))
    with pytest.raises(InputError, match="another corpus"):
        token_text(corpus, ByteVocabulary(), views=("pseudo_query",), pseudo_queries=other)


@pytest.mark.parametrize(
    "segments, settings, problem",
    [
        ([[1, 9]], {}, "token out of range.*got 9"),
        ([[1, -1]], {}, "token out of range.*got -1"),
        ([[1]], {"documents": [3], "num_documents": 2}, "document out of range"),
        ([[1]], {"views": [1]}, "view out of range"),
        ([[1], [2]], {"documents": [0]}, "2 segments with 1 documents"),
    ],
)
def test_text_that_is_wrong_is_refused(segments, settings, problem):
    with pytest.raises(InputError, match=problem):
        TokenText.of(segments, 9, **settings)

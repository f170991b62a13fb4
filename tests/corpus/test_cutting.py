"""Passages of long documents: worked examples of each rule, and what holds for every text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.corpus import Corpus, Dataset, Document, Qrels, Queries, Run
from gr_jax.corpus.cutting import RULES, Rule, cut, documents_of
from gr_jax.errors import InputError
from gr_jax.evaluation.pages import qrels_of_pages, run_of_pages
from gr_jax.text.sentences import word_spans

TEXT = "One two three. Four five six seven. Eight.\nNine ten eleven twelve thirteen fourteen."


@pytest.mark.parametrize(
    ("rule", "passages"),
    [
        (Rule("first", 4), ["One two three. Four"]),
        (
            Rule("windows", 6),
            ["One two three. Four five six", "seven. Eight.\nNine ten eleven twelve", "thirteen fourteen."],
        ),
        (
            Rule("windows", 8, stride=4),
            ["One two three. Four five six seven. Eight.", "five six seven. Eight.\nNine ten eleven twelve",
             "Nine ten eleven twelve thirteen fourteen."],
        ),
        (
            Rule("sentences", 8),
            ["One two three. Four five six seven. Eight.", "Nine ten eleven twelve thirteen fourteen."],
        ),
        (
            Rule("sentences", 4),
            ["One two three.", "Four five six seven.", "Eight.", "Nine ten eleven twelve", "thirteen fourteen."],
        ),
    ],
)  # fmt: skip
def test_worked_examples(rule, passages):
    assert rule.passages(TEXT) == passages


def test_a_script_without_spaces():
    assert Rule("windows", 4).passages("東京は日本の首都") == ["東京は日", "本の首都"]


@settings(max_examples=300)
@given(st.text(alphabet="ab .!?\n漢字A", max_size=80), st.integers(1, 9), st.integers(0, 9))
def test_every_word_is_in_a_passage(text, words, stride):
    """And no passage has more words than it may; windows without overlap have each word once, in order."""
    all_words = [text[start:end] for start, end in word_spans(text)]
    for name in RULES:
        passages = Rule(name, words, min(stride, words)).passages(text)
        found = [[passage[start:end] for start, end in word_spans(passage)] for passage in passages]
        assert all(len(one) <= words for one in found)
        if name == "first":
            assert found == [all_words[:words]]
        elif name == "windows" and not min(stride, words):
            assert [word for one in found for word in one] == all_words
        else:
            assert set(all_words) == {word for one in found for word in one}


def dataset():
    corpus = Corpus.from_documents(
        [Document("a", "", "Red cats sleep. Blue dogs run far. Green birds sing."), Document("b", "B", "Short.")]
    )
    queries = Queries(("q", "t"), ("what do blue dogs do", "who sings"))
    return Dataset(corpus, queries, {"train": Qrels({"q": {"a": 1}}), "test": Qrels({"t": {"a": 2, "b": 0}})})


def test_judgements_of_passages():
    made = cut(dataset(), Rule("sentences", 4, title_words=2))
    assert list(made.corpus.doc_ids) == ["a#0", "a#1", "a#2", "b#0"]
    assert [one.title for one in made.corpus] == ["Red cats", "Red cats", "Red cats", "B"]
    assert made.qrels["train"] == {"q": {"a#1": 1}}
    assert made.qrels["test"] == {"t": {"a#0": 2, "a#1": 2, "a#2": 2, "b#0": 0}}
    assert made.notes == {"documents": 2, "titles made": 1}
    # And back to documents.
    pages = documents_of(made.corpus.doc_ids)
    assert qrels_of_pages(made.qrels["test"], pages) == dataset().qrels["test"]
    run = run_of_pages(Run({"t": [("a#2", 3.0), ("b#0", 2.0), ("a#0", 1.0)]}), pages)
    assert run["t"] == [("a", 3.0), ("b", 2.0)]


def test_first_words_keep_ids_and_judgements():
    made = cut(dataset(), Rule("first", 3))
    assert [(one.doc_id, one.text) for one in made.corpus] == [("a", "Red cats sleep."), ("b", "Short.")]
    assert made.qrels == dataset().qrels and documents_of(made.corpus.doc_ids) == {"a": "a", "b": "b"}


def test_what_is_refused():
    with pytest.raises(InputError, match="first, windows, sentences"):
        Rule("paragraphs")
    with pytest.raises(InputError, match="words is below 1"):
        Rule(words=0)
    with pytest.raises(InputError, match="leaves words out"):
        Rule(words=3, stride=4)
    marked = Dataset(Corpus.from_documents([Document("a#1", "", "text")]))
    with pytest.raises(InputError, match="Replace the #"):
        cut(marked, Rule())

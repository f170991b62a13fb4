"""Answers in passages, by words as a regular expression has them; and what was found, as DPR reads it."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.corpus import Corpus, Document, Run
from gr_jax.errors import InputError
from gr_jax.evaluation import answer_match
from gr_jax.evaluation.answer_match import answer_hits, has_answer, words, write_found

LETTERS = ("a", "B", "é", "e\u0301", "1", "-", " ", "ß")


def reference(text: str) -> list[str]:
    """Letters, numbers and marks in runs; every other character but separators and control characters by itself."""
    regex = pytest.importorskip("regex")
    pattern = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)
    return [found.group().lower() for found in pattern.finditer(unicodedata.normalize("NFD", text))]


@settings(deadline=None, max_examples=1000)
@given(st.text(max_size=20))
def test_words_of_any_text(text):
    assigned = "".join(one for one in text if unicodedata.category(one) != "Cn")  # editions of Unicode differ there
    assert words(assigned) == reference(assigned)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(["a", "B", "é", "e\u0301", "1", "-", " ", "ß"]), max_size=12),
    st.integers(0, 9),
    st.integers(0, 4),
)
def test_an_answer_stands_where_its_words_stand_in_a_row(letters, start, length):
    text, answer = "".join(letters), "".join(letters[start : start + length])
    wanted, passage = reference(answer), reference(text)
    expected = bool(wanted) and any(passage[i : i + len(wanted)] == wanted for i in range(len(passage)))
    assert has_answer(text, ["zzz", answer]) == expected


def test_worked_examples():
    assert has_answer("It was written by BOBBY scott.", ["Bob Russell", "Bobby Scott"])
    assert not has_answer("Bobby and Scott", ["Bobby Scott"]) and not has_answer("1972", ["72"])
    assert has_answer("14 December 1972, UTC", ["December 1972"]) and has_answer("Beyonce\u0301", ["Beyoncé"])
    assert not has_answer("anything", ["", " "]) and not has_answer("", ["x"])


def test_hits_at_k():
    texts = {"1": "one", "2": "two", "3": "three"}
    run = {"a": [("2", 3.0), ("1", 2.0)], "b": [("3", 1.0)]}
    found = answer_hits(run, {"a": ["one"], "b": ["three"], "c": ["two"]}, texts, cutoffs=(1, 2))
    assert found == {"hits@1": pytest.approx(1 / 3), "hits@2": pytest.approx(2 / 3)}
    np.testing.assert_array_equal(found.per_query["hits@2"], [1, 1, 0])
    with pytest.raises(InputError, match="no text"):
        answer_hits({"a": [("9", 1.0)]}, {"a": ["x"]}, texts)
    with pytest.raises(InputError, match="answers of one"):
        answer_hits(run, {}, texts)
    with pytest.raises(InputError, match="k ≥ 1"):
        answer_hits(run, {"a": ["x"]}, texts, cutoffs=(0,))
    assert answer_match.CUTOFFS == (1, 5, 20, 100)


def test_what_was_found_as_dpr_reads_it(tmp_path):
    corpus = Corpus.from_documents([Document("1", "One", "It is one."), Document("2", "Two", "It is two.")])
    file = tmp_path / "found.json"
    write_found(file, [("q", "which", ["two"])], Run({"q": [("2", 0.5), ("1", 0.25)]}), corpus)
    (record,) = json.loads(file.read_text())
    assert record["question"] == "which" and record["answers"] == ["two"]
    assert record["ctxs"] == [
        {"id": "2", "title": "Two", "text": "It is two.", "score": "0.5", "has_answer": True},
        {"id": "1", "title": "One", "text": "It is one.", "score": "0.25", "has_answer": False},
    ]
    with pytest.raises(InputError, match="1 or more"):
        write_found(file, [], Run({}), corpus, k=0)

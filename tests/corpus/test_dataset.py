"""Datasets of texts in memory: what is kept, and what does not fit together."""

import pytest

from gr_jax.corpus import Dataset, Document
from gr_jax.errors import InputError

TEXTS = ["Cats sleep.", "Owls see."]
JUDGED = {"queries": {"q1": "who sees?"}, "qrels": {"test": {"q1": {"1": 1}}}}


def test_texts_alone():
    made = Dataset.from_texts(iter(TEXTS))
    assert list(made.corpus) == [Document("0", "", TEXTS[0]), Document("1", "", TEXTS[1])]
    assert len(made.queries) == 0 and not made.qrels


def test_texts_with_all_that_belongs_to_them():
    judged = {"train": {"q1": {"b": 2}}, "test": {"q2": {"a": 1, "b": 0}}}
    queries = {"q1": "who sees?", "q2": "who sleeps?"}
    made = Dataset.from_texts(TEXTS, ["a", "b"], ["Cat", "Owl"], queries=queries, qrels=judged, name="animals")
    assert list(made.corpus) == [Document("a", "Cat", TEXTS[0]), Document("b", "Owl", TEXTS[1])]
    assert dict(zip(made.queries.ids, made.queries.texts, strict=True)) == queries and made.name == "animals"
    assert {split: {q: dict(grades) for q, grades in of.items()} for split, of in made.qrels.items()} == judged


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"texts": []}, "corpus is empty"),
        ({"texts": "Cats sleep."}, "texts are no list"),
        ({"texts": ["Cats sleep.", None]}, "number 1 of the texts is no text"),
        ({"ids": ["a", "a"]}, "documents 0 and 1 have the same id .got 'a'"),
        ({"ids": ["a"]}, "1 ids for 2 texts"),
        ({"ids": ["a", 1]}, "number 1 of the ids is no text"),
        ({"ids": ["a", "b c"]}, "white space"),
        ({"titles": ["Cat", "Owl", "Cow"]}, "3 titles for 2 texts"),
        ({"queries": ["who sees?"]}, "queries are no mapping.*query id → text"),
        ({"queries": {"q1": 3}}, "number 0 of the queries is no text"),
        ({"queries": {"q1": " "}}, "blank query"),
        ({**JUDGED, "qrels": {"q1": {"1": 1}}}, "qrels without splits.*split → query id"),
        ({**JUDGED, "qrels": {"test": {"q2": {"1": 1}}}}, "qrels of a query that is not there"),
        ({**JUDGED, "qrels": {"test": {"q1": {"1": 1, "7": 1}}}}, "qrels of a document that is not there .got '7'"),
        ({**JUDGED, "ids": ["a", "b"]}, "no judgement names a document of the corpus .got '1'.*like 'a'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(InputError, match=message):
        Dataset.from_texts(**{"texts": TEXTS, **given})

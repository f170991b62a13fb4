import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.errors import InputError
from gr_jax.text import ByteVocabulary, encode_texts
from gr_jax.training.example_sources import BUILT_IN
from gr_jax.training.features import Pair, PairFeatures, pair_from_json, pair_to_json

texts = st.text(st.characters(codec="utf-8"), max_size=30)
pairs = st.builds(
    Pair,
    text=texts,
    target=st.lists(st.integers(2, 500), min_size=1, max_size=6) | texts.filter(bool),
    source=st.sampled_from(BUILT_IN),
)


class Bert(ByteVocabulary):
    """Bytes with something before and after the text."""

    prefix, suffix = (101,), (102, 103)


@given(st.lists(texts, min_size=1, max_size=5), st.integers(4, 20))
def test_inputs_are_the_rows_that_retrieval_encodes(batch, longest):
    for vocabulary in (ByteVocabulary(), Bert()):
        features = PairFeatures(vocabulary, max_input_length=longest)
        rows = features.rows([Pair(text, [5], "query") for text in batch])
        padded, lengths = encode_texts(vocabulary, batch, longest)
        for row, expected, length in zip(rows, padded, lengths, strict=True):
            np.testing.assert_array_equal(row["inputs"], expected[:length])


@given(st.lists(st.builds(Pair, text=texts, target=st.lists(st.integers(2, 500), min_size=1, max_size=4))))
def test_many_at_once_equal_one_at_a_time(batch):
    features = PairFeatures(ByteVocabulary(), max_input_length=10, eos_id=1)
    for pair, row in zip(batch, features.rows(batch), strict=True):
        alone = features.row(pair)
        assert alone.keys() == row.keys()
        for name in row:
            np.testing.assert_array_equal(alone[name], row[name])
            assert alone[name].dtype == row[name].dtype


def test_a_worked_example():
    features = PairFeatures(Bert(), max_input_length=6, eos_id=1)
    row = features.row(Pair("abcdef", [7, 9], "pseudo"))
    assert row["inputs"].tolist() == [101, 100, 101, 102, 102, 103]  # "abc" is 97+3, 98+3, 99+3
    assert row["targets"].tolist() == [7, 9, 1]
    assert BUILT_IN[row["source"]] == "pseudo"


def test_targets_that_are_texts_are_cut_and_docids_are_not():
    features = PairFeatures(
        ByteVocabulary(), eos_id=1, target_vocabulary=ByteVocabulary(), max_target_length=3, max_input_length=8
    )
    assert features.row(Pair("q", "abc"))["targets"].tolist() == [100, 101, 1]
    with pytest.raises(InputError, match="names another document"):
        features.row(Pair("q", [4, 5, 6]))


@pytest.mark.parametrize(
    "pair, problem",
    [
        (Pair("q", [3], "guess"), "unknown source"),
        (Pair("q", []), "empty target"),
        (Pair("q", "title"), "no vocabulary for targets"),
    ],
)
def test_malformed_pairs_are_named(pair, problem):
    with pytest.raises(InputError, match=problem):
        PairFeatures(ByteVocabulary()).row(pair)


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(InputError, match="at least 4"):
        PairFeatures(Bert(), max_input_length=3)


@given(pairs)
def test_pairs_survive_json(pair):
    line = pair_to_json(pair)
    assert "\n" not in line
    assert pair_from_json(line) == pair


@given(st.text() | st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_what_is_no_pair_is_named_by_file_and_line(line):
    try:
        assert isinstance(pair_from_json(line), Pair)
    except InputError as error:
        with pytest.raises(InputError, match=r"pairs\.jsonl:7: not a pair"):
            pair_from_json(line, file="pairs.jsonl", number=7)
        assert error.remedy


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "a"}',
        '{"text": 3, "target": [1]}',
        '{"text": "a", "target": [true]}',
        '{"text": "a", "target": [1.5]}',
        '{"text": "a", "target": [1], "source": "guess"}',
        '{"text": "a", "target": [1]',
        "[]",
    ],
)
def test_wrong_fields_are_refused(line):
    with pytest.raises(InputError, match="not a pair"):
        pair_from_json(line)

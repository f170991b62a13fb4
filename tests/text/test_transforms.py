"""Identifiers split into words."""

import hypothesis
import pytest
from hypothesis import strategies as st

from gr_jax import InputError
from gr_jax.text import TRANSFORMS, get_transform, split_identifiers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("jax.lax.scan_fooBar", "jax lax scan foo Bar"),
        ("HTTPServer", "HTTP Server"),
        ("parseXMLFile2", "parse XML File2"),
        ("__init__", " init "),
        ("with 0.5 and v1.2.", "with 0.5 and v1.2."),
        ("End. Start of e.g. this", "End. Start of e g. this"),
        ("Plain English, unchanged (really)!", "Plain English, unchanged (really)!"),
        ("USA 東京 éCole", "USA 東京 é Cole"),
        ("", ""),
    ],
)
def test_splits(text, words):
    assert split_identifiers(text) == words


@hypothesis.given(text=st.one_of(st.text(), st.text("aB_. 1", max_size=12)))
def test_nothing_is_lost_and_nothing_is_left_to_split(text):
    once = split_identifiers(text)
    assert split_identifiers(once) == once
    assert [c for c in once if c not in " _."] == [c for c in text if c not in " _."]


def test_names():
    assert TRANSFORMS["none"]("aB") == "aB" and get_transform("split_identifiers") is split_identifiers
    with pytest.raises(InputError, match="'lower'"):
        get_transform("lower")

"""Spans to learn from: where they start, and how often."""

import numpy as np
import pytest

from gr_jax.docids import span_samplers
from gr_jax.errors import InputError

DOCUMENT = np.array([1, 2, 3, 4, 5, 6, 7, 8, 2, 9])
STARTS = np.array([1, 1, 0, 1, 1, 1, 1, 1, 1, 1], bool)
RARITY = np.array([0.0, 0.0, 1.0, 9.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def overlapping(query, count=6000, temperature=1.0, length=3):
    return span_samplers.overlapping_spans(
        DOCUMENT, STARTS, query, RARITY,
        count=count, length=length, temperature=temperature, rng=np.random.default_rng(0),
    )  # fmt: skip


def shares(spans):
    """Of each span its share of all."""
    found = {}
    for span in spans:
        found[tuple(span)] = found.get(tuple(span), 0) + 1 / len(spans)
    return found


def test_spans_start_where_the_query_is_and_words_begin():
    # 2 twice and 4: from the first 2 the window has 2, 3, 4; 3 begins no word; from the second 2 only 2.
    found = shares(overlapping([2, 3, 4]))
    weights = {(2, 3, 4): 1 + 9 + 2, (4, 5, 6): 2, (2, 9): 1}
    assert found.keys() == weights.keys()
    for span, weight in weights.items():
        assert found[span] == pytest.approx(weight / 15, abs=0.02)


def test_a_low_temperature_takes_the_largest_overlap():
    assert shares(overlapping([2, 4], temperature=0.02)).keys() == {(2, 3, 4)}
    flat = shares(overlapping([2, 3, 4], temperature=1e6))
    assert all(share == pytest.approx(1 / 3, abs=0.03) for share in flat.values())


def test_no_temperature_is_too_low():
    assert shares(overlapping([2, 3, 4], temperature=0.001)).keys() == {(2, 3, 4)}


def test_a_document_without_a_start_is_refused():
    with pytest.raises(InputError, match="no span may start"):
        span_samplers.uniform_spans(DOCUMENT, np.zeros(10, bool), count=1, length=1, rng=np.random.default_rng(0))


def test_where_nothing_is_shared_all_starts_are_alike():
    same = shares(overlapping([0, 1], count=9000, length=1))  # 1 is shared and everywhere
    uniform = shares(span_samplers.uniform_spans(DOCUMENT, STARTS, count=9000, length=1, rng=np.random.default_rng(1)))
    for found in (same, uniform):
        assert found.keys() == {(token,) for token in DOCUMENT[STARTS].tolist()}
        assert found[(2,)] == pytest.approx(2 / 9, abs=0.02) and found[(5,)] == pytest.approx(1 / 9, abs=0.02)


def test_rarity():
    found = span_samplers.rarity_of(np.array([0, 1, 5, 10]), 10)
    np.testing.assert_allclose(found, [0.0, np.log(10), np.log(2), 0.0])


def test_nothing_asked_for_is_refused():
    for wrong in ({"count": 0}, {"length": 0}, {"temperature": 0.0}):
        with pytest.raises(InputError, match="≥ 1|> 0"):
            overlapping([2], **{"count": 1, **wrong})

"""Several texts in a row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.training.padding import pack_evenly


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 3))
def test_every_text_is_packed_whole_and_no_row_is_much_fuller_than_others(lengths, rows, parts):
    lengths = np.array(lengths * parts)
    found = pack_evenly(lengths, parts, rows)
    assert found.shape[:2] == (parts, rows)
    for text, length in enumerate(lengths):
        part, row, place = np.nonzero(found == text + 1)
        assert len(place) == length
        if length:
            assert set(part) == {text * parts // len(lengths)}
            assert len(set(row)) == 1
            np.testing.assert_array_equal(place, place[0] + np.arange(length))
    used = np.count_nonzero(found, axis=-1)
    assert (used.max(axis=1) - used.min(axis=1) <= lengths.max()).all()
    assert found.shape[2] < used.max() + 16 or not used.any()

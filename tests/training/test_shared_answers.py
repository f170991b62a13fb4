"""Queries with equal tokens, against a loop over all pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.training.shared_answers import share_answers
from gr_jax.training.token_store import TokenStore

ANSWERS = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)


@given(st.lists(st.tuples(st.integers(1, 3), ANSWERS), min_size=1))
def test_what_answers_one_answers_all(rows):
    before = TokenStore.from_rows({"inputs": [5, word], "targets": answers} for word, answers in rows)
    after = share_answers(before)
    for row, (word, answers) in enumerate(rows):
        expected = {d for other, found in rows if other == word for d in found}
        assert after.targets[row].tolist() == answers + sorted(expected - set(answers))
        np.testing.assert_array_equal(after.inputs[row], before.inputs[row])
    same = all(after.targets[row].tolist() == answers for row, (_, answers) in enumerate(rows))
    assert (after.fingerprint == before.fingerprint) == same


def test_no_more_than_so_many():
    queries = TokenStore.from_rows({"inputs": [7], "targets": [n]} for n in range(10))
    assert share_answers(queries, most=3).targets[5].tolist() == [5, 0, 1]

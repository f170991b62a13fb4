"""Contextual tokens: every title is among the ways to write it, by the nearest vector, and small groups stay whole."""

import numpy as np
import pytest

from gr_jax.constraints import TokenTextTrie
from gr_jax.docids import Docids, contextual_tokens
from gr_jax.errors import InputError

ROWS = [[2, 3], [2], [2, 3, 4], [4, 5], [5, 2], [2, 2, 2], [2, 5]]


def make(**settings):
    docids = Docids.build(ROWS, vocab_size=6, **settings)
    states = np.random.default_rng(0).normal(size=(sum(map(len, ROWS)), 4)).astype(np.float32)
    return docids, states


def test_each_token_has_as_many_ids_as_it_may_and_each_title_its_nearest():
    docids, states = make(eos_id=1)
    found = contextual_tokens(docids, states, clusters=3)
    # Token 2 stands eight times, 3 twice, 4 twice, 5 three times.
    assert found.text_of.tolist() == [-1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 5, 1]
    assert found.vocab_size == 12 and found.table.shape == (12, 4) and not found.table[[0, 11]].any()
    for row, targets in enumerate(found.targets.tolist()):
        written = [target for target in targets if target > 0]
        assert found.text_of[written].tolist() == [*docids.sequence(row), 1]
        for place, target in enumerate(written[:-1]):
            same = np.flatnonzero(found.text_of == found.text_of[target])
            state = states[int(docids.lengths[:row].sum()) + place]
            distances = np.linalg.norm(found.table[same] - state, axis=1)
            assert same[np.argmin(distances)] == target
            if found.text_of[target] != 2:
                np.testing.assert_array_equal(found.table[target], state)
    trie = TokenTextTrie.from_docids(docids, found.text_of)
    assert (trie.vocab_size, trie.eos_id) == (12, 11)


def test_equal_states_share_an_id():
    docids, states = make(eos_id=1)
    states[:] = 1.0
    assert contextual_tokens(docids, states, clusters=2).text_of.tolist().count(2) == 1


def test_what_does_not_fit():
    docids, states = make(eos_id=1)
    with pytest.raises(InputError, match="7 docids of 15 tokens"):
        contextual_tokens(docids, states[:14])
    with pytest.raises(InputError, match="clusters"):
        contextual_tokens(docids, states, clusters=0)

"""Tables of targets whose rows keep their lengths."""

import types

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.training.batches import make_batches
from gr_jax.training.relabelling import Relabelled
from tests.training.toy import toy_store

TARGETS = np.array([[2, 3, 4], [5, -1, -1], [6, 7, -1], [8, -1, -1]], np.int32)
OTHER = np.array([[9, 9, 9], [8, -1, -1], [7, 7, -1], [6, 5, -1]], np.int32)  # the last row is longer


def tables(later):
    return types.SimpleNamespace(name="made", at=lambda step: {"targets": TARGETS if step == 0 else later})


def test_rows_take_the_room_that_they_need():
    store, labels = toy_store(4), np.array([0, 1, 2, -1])
    own = store.lengths(np.arange(4))
    widest = Relabelled(store, labels, tables(TARGETS))
    exact = Relabelled(store, labels, tables(TARGETS), same_lengths=True)
    np.testing.assert_array_equal(widest.lengths(np.arange(4))[:, 1], [3, 3, 3, own[3, 1]])
    np.testing.assert_array_equal(exact.lengths(np.arange(4))[:, 1], [3, 1, 2, own[3, 1]])
    assert widest.fingerprint != exact.fingerprint


def test_packed_as_the_same_store_without_a_table():
    """Where the table says what the store says, batches are the store's."""
    store = toy_store(12)
    own = [store.read(row)[1] for row in range(12)]
    targets = np.full((12, max(map(len, own)) + 3), -1, np.int32)
    for row, one in enumerate(own):
        targets[row, : len(one)] = one
    same = types.SimpleNamespace(name="same", at=lambda step: {"targets": targets})
    relabelled = Relabelled(store, np.arange(12), same, same_lengths=True)
    settings = {"batch_size": 2, "lengths": {"inputs": 24, "targets": 6}, "seed": 1, "epochs": 2}
    for one, other in zip(make_batches(store, **settings), make_batches(relabelled, **settings), strict=True):
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


def test_a_row_that_becomes_longer_is_named():
    store = Relabelled(toy_store(4), np.arange(4), tables(OTHER), same_lengths=True)
    np.testing.assert_array_equal(store.read(0, 5)[1], [9, 9, 9])
    with pytest.raises(InputError, match="has 2 tokens in row 3 at step 5, and 1 in the first one"):
        store.read(3, 5)

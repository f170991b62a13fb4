"""Batches with documents' vectors: those of ContrastiveBatches, and the rows that their documents have."""

import itertools

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.training import VectorBatches
from gr_jax.training.token_store import TokenStore
from tests.training.test_contrastive_batches import make, stores

VECTORS = np.random.default_rng(0).normal(size=(12, 5))


def test_batches_are_the_same_with_vectors_for_tokens():
    queries, documents = stores(queries=19)
    settings = {"num_negatives": 2, "seed": 3, "epochs": 1}
    plain = make(queries, documents, **settings)
    made = VectorBatches(make(queries, documents, document_tokens=False, **settings), VECTORS)
    batches = list(made)
    assert len(batches) == len(list(plain)) and any((batch["document_index"] < 0).any() for batch in batches)
    for batch, expected in zip(batches, plain, strict=True):
        vectors = batch.pop("document_vectors")
        expected.pop("document_tokens")
        assert batch.keys() == expected.keys() and vectors.dtype == np.float32
        for name, array in expected.items():
            np.testing.assert_array_equal(batch[name], array)
        for index, vector in zip(batch["document_index"], vectors, strict=True):
            own = {-1: np.zeros((1, 5)), 0: VECTORS[[0, 11]]}.get(int(index), VECTORS[[index]])  # 11 equals 0
            assert np.isclose(own, vector, rtol=1e-6).all(axis=1).any()
    assert made.input_shapes == {"query_tokens": (4, 4), "document_index": (12,), "document_vectors": (12, 5)}


def test_documents_with_equal_tokens_keep_their_own_vectors():
    """The last document's tokens are the first one's, as they are where texts are cut after the same beginning."""
    documents = stores()[1]
    queries = TokenStore.from_rows({"inputs": [n + 1], "targets": [n]} for n in range(12))
    found = {}
    for batch in VectorBatches(make(queries, documents, num_negatives=0, document_tokens=False, epochs=1), VECTORS):
        for query, index, vector in zip(
            batch["query_tokens"], batch["document_index"], batch["document_vectors"], strict=True
        ):
            found[int(query[0]) - 1] = index, vector
    assert sorted(found) == list(range(12)) and found[11][0] == found[0][0] == 0
    for document, (_, vector) in found.items():
        np.testing.assert_allclose(vector, VECTORS[document], rtol=1e-6)


def test_it_goes_on_where_it_was():
    made = VectorBatches(make(*stores(), num_negatives=1, document_tokens=False), VECTORS)
    iterator = iter(made)
    for _ in range(3):
        next(iterator)
    state = iterator.get_state()
    expected = list(itertools.islice(iterator, 4))
    again = iter(made)
    again.set_state(state)
    for one, other in zip(itertools.islice(again, 4), expected, strict=True):
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)


def test_other_vectors_are_other_settings():
    batches = make(*stores(), document_tokens=False)
    changed = VECTORS.copy()
    changed[7, 2] += 1
    one, same, other = (VectorBatches(batches, array).settings for array in (VECTORS, VECTORS.copy(), changed))
    assert one == same != other


def test_refused():
    queries, documents = stores(queries=19)
    with pytest.raises(InputError, match="document_tokens=False"):
        VectorBatches(make(queries, documents), VECTORS)
    with pytest.raises(InputError, match="vectors of 11 documents, and there are 12"):
        VectorBatches(make(queries, documents, document_tokens=False), VECTORS[:11])

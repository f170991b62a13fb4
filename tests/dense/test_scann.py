import numpy as np
import pytest

from gr_jax.dense import ScannSearch
from gr_jax.errors import InputError
from tests.dense import brute_force
from tests.dense.brute_force import assert_same, whole_numbers

pytest.importorskip("scann.scann_ops.py.scann_ops_pybind")
DOCUMENTS, WIDTH = 5000, 16


def _recall(found, expected):
    return (found[0][:, :, None] == expected[0][:, None, :]).any(-1).mean()


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((50, WIDTH))
    vectors = centers[rng.integers(0, 50, DOCUMENTS)] + rng.standard_normal((DOCUMENTS, WIDTH))
    return vectors.astype(np.float32), (vectors[:40] + 0.3 * rng.standard_normal((40, WIDTH))).astype(np.float32)


@pytest.fixture(scope="module")
def built(data):
    return ScannSearch(data[0], leaves=50, searched=25)


def test_finds_nearly_what_brute_force_finds(data, built):
    vectors, queries = data
    expected, found = brute_force.search(queries, vectors, 10), built.search(queries, 10)
    assert _recall(found, expected) > 0.95
    positions, scores = found
    np.testing.assert_allclose(scores, np.einsum("bd,bkd->bk", queries, vectors[positions]), rtol=1e-4, atol=1e-4)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("share", [0.9, 0.3, 0.01])
def test_filters_are_kept_and_filled(data, built, share):
    vectors, queries = data
    allowed = np.random.default_rng(1).random((len(queries), DOCUMENTS)) < share
    expected, found = brute_force.search(queries, vectors, 20, allowed), built.search(queries, 20, allowed=allowed)
    assert np.take_along_axis(allowed, found[0], 1).all()
    assert _recall(found, expected) > 0.95
    assert (built.search(queries, 5, allowed=np.zeros(DOCUMENTS, bool))[0] == -1).all()


def test_more_answers_than_are_scored_again(data, built):
    found = built.search(data[1], 400)
    assert (found[0] >= 0).all() and _recall(found, brute_force.search(data[1], data[0], 400)) > 0.9


def test_added_removed_saved_and_loaded(data, tmp_path):
    vectors, queries = data
    search = ScannSearch(vectors[:4500], leaves=45, searched=45)
    search.add(vectors[4500:])
    gone = brute_force.search(queries, vectors, 1)[0][:, 0]
    search.remove(gone)
    keep = np.ones(DOCUMENTS, bool)
    keep[gone] = False
    expected, found = brute_force.search(queries, vectors, 10, keep), search.search(queries, 10)
    assert _recall(found, expected) > 0.95
    search.save(tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "moved")
    loaded = ScannSearch.load(tmp_path / "moved")
    assert loaded.num_documents == DOCUMENTS
    np.testing.assert_array_equal(loaded.search(queries, 10)[0], found[0])


def test_tuned_to_a_recall(data):
    vectors, queries = data
    search = ScannSearch(vectors, leaves=64, searched=1, reorder=10, recall=0.97, tune_queries=queries)
    few = ScannSearch(vectors, leaves=64, searched=1, reorder=10)
    expected = brute_force.search(queries, vectors, 10)
    assert _recall(few.search(queries, 10), expected) < 0.97 <= _recall(search.search(queries, 10), expected)


def test_few_documents_are_scored_one_and_all(tmp_path):
    rng = np.random.default_rng(0)
    vectors, queries = whole_numbers(rng, 200, 6), whole_numbers(rng, 4, 6)
    search = ScannSearch(vectors, recall=0.9)
    assert_same(search.search(queries, 30), brute_force.search(queries, vectors, 30))
    search.save(tmp_path / "few")
    assert_same(ScannSearch.load(tmp_path / "few").search(queries, 300), brute_force.search(queries, vectors, 300))


def test_what_cannot_be_is_refused(data):
    with pytest.raises(InputError, match="recall"):
        ScannSearch(data[0], recall=1.2)
    with pytest.raises(InputError, match="counted from 1"):
        ScannSearch(data[0], reorder=0)

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from gr_jax.dense import ExactSearch, streaming
from gr_jax.errors import InputError
from tests.dense import brute_force
from tests.dense.brute_force import assert_same, whole_numbers


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return whole_numbers(rng, 3000, 12), whole_numbers(rng, 5, 12)


@pytest.mark.parametrize(("n", "k"), [(1024, 1), (1024, 7), (20_000, 100), (1000, 30), (16, 16), (4, 9)])
def test_the_highest_are_those_of_a_stable_sort(n, k):
    scores = np.random.default_rng(n + k).integers(0, 50, (3, n)).astype(np.float32)
    best, places = streaming.highest(scores, k)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(best, np.take_along_axis(scores, order, 1))


@pytest.mark.parametrize(("n", "k"), [(9, 4), (20_000, 8)])
def test_minus_zero_is_zero(n, k):
    scores = np.zeros((1, n), np.float32)
    scores[0, : n // 2] *= -1
    best, places = jax.jit(streaming.highest, static_argnums=1)(scores, k)
    assert places[0].tolist() == list(range(k)) and not best.any()


def test_the_highest_where_nothing_is_left():
    scores = np.full((2, 1024), -np.inf, np.float32)
    scores[0, [900, 3]] = 1.0
    best, places = streaming.highest(scores, 4)
    assert places[0, :2].tolist() == [3, 900] and np.isneginf(best[0, 2:]).all() and np.isneginf(best[1]).all()


@pytest.mark.parametrize("k", [1, 10, 3500])
@pytest.mark.parametrize("block", [128, 1 << 16])
def test_is_brute_force_on_eight_devices(data, k, block):
    vectors, queries = data
    assert jax.local_device_count() == 8
    assert_same(ExactSearch(vectors, block=block).search(queries, k), brute_force.search(queries, vectors, k))


def test_any_mesh_gives_the_same(data):
    vectors, queries = data
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ("data", "model"))
    found = ExactSearch(vectors, mesh=mesh, block=128).search(queries, 20)
    assert_same(found, brute_force.search(queries, vectors, 20))


@pytest.mark.parametrize("device_bytes", [0, 2048 * 12 * 4 // 8, 10**9])
def test_documents_that_do_not_fit_are_streamed(data, device_bytes):
    vectors, queries = data
    search = ExactSearch(vectors, block=128, device_bytes=device_bytes)
    search.remove([0, 2999, 1500])
    keep = np.ones(len(vectors), bool)
    keep[[0, 2999, 1500]] = False
    assert_same(search.search(queries, 50), brute_force.search(queries, vectors, 50, keep))
    resident = search.nbytes - vectors.nbytes - len(vectors)
    assert resident <= max(8 * device_bytes, 0) or device_bytes == 10**9


def test_filters(data):
    vectors, queries = data
    rng = np.random.default_rng(1)
    search = ExactSearch(vectors, block=256, max_batch=2, device_bytes=1024 * 12)
    for_all, for_each = rng.random(3000) < 0.01, rng.random((5, 3000)) < 0.3
    for_each[3] = False
    for allowed in (for_all, for_each):
        assert_same(search.search(queries, 40, allowed=allowed), brute_force.search(queries, vectors, 40, allowed))


def test_added_documents_take_the_next_positions(data):
    vectors, queries = data
    search = ExactSearch(vectors[:500], block=128)
    for start, stop in ((500, 501), (501, 640), (640, 640), (640, 3000)):
        search.add(vectors[start:stop])
    search.remove([10, 600])
    keep = np.ones(3000, bool)
    keep[[10, 600]] = False
    assert search.num_documents == 3000
    assert_same(search.search(queries, 25), brute_force.search(queries, vectors, 25, keep))


def test_a_long_tail_is_merged():
    rng = np.random.default_rng(2)
    vectors, queries = whole_numbers(rng, 9000, 4), whole_numbers(rng, 2, 4)
    search = ExactSearch(vectors[:4000])
    search.add(vectors[4000:])
    assert len(search._stored.tail) == 0
    assert_same(search.search(queries, 9), brute_force.search(queries, vectors, 9))


@settings(max_examples=10)
@given(
    seed=st.integers(0, 1000),
    steps=st.lists(st.tuples(st.sampled_from(["add", "remove", "save"]), st.integers(0, 9)), max_size=6),
)
def test_any_sequence_of_adds_removes_and_saves_is_a_rebuild(tmp_path_factory, seed, steps):
    rng = np.random.default_rng(seed)
    vectors, queries, live = whole_numbers(rng, 20, 3, 2), whole_numbers(rng, 2, 3, 2), np.ones(20, bool)
    search = ExactSearch(vectors)
    for step, count in steps:
        if step == "add":
            vectors = np.concatenate([vectors, whole_numbers(rng, count, 3, 2)])
            live = np.concatenate([live, np.ones(count, bool)])
            search.add(vectors[len(vectors) - count :])
        elif step == "remove":
            gone = rng.integers(0, len(vectors), count)
            search.remove(gone)
            live[gone] = False
        else:
            folder = tmp_path_factory.mktemp("exact") / "search"
            search.save(folder)
            search = ExactSearch.load(folder, mmap=count > 4)
    allowed = rng.random((2, len(vectors))) < 0.8
    expected = brute_force.search(queries, vectors, 8, allowed & live)
    assert_same(search.search(queries, 8, allowed=allowed), expected)


def test_saved_and_loaded(data, tmp_path):
    vectors, queries = data
    search = ExactSearch(vectors[:2000])
    search.add(vectors[2000:])
    search.remove([7])
    search.save(tmp_path / "search")
    loaded = ExactSearch.load(tmp_path / "search")
    assert_same(loaded.search(queries, 30), search.search(queries, 30))
    loaded.remove([8])
    loaded.add(vectors[:3])
    loaded.save(tmp_path / "search")  # over the file that it is mapped from
    again = ExactSearch.load(tmp_path / "search", mmap=False)
    keep = np.ones(3003, bool)
    keep[[7, 8]] = False
    assert_same(
        again.search(queries, 30), brute_force.search(queries, np.concatenate([vectors, vectors[:3]]), 30, keep)
    )


def test_nothing_to_find(tmp_path):
    search = ExactSearch(np.zeros((0, 3), np.float32))
    assert (search.search(np.ones((2, 3)), 4)[0] == -1).all()
    search.save(tmp_path / "empty")
    search = ExactSearch.load(tmp_path / "empty")
    search.add(np.eye(3))
    assert search.search(np.array([[0.0, 2.0, 0.0]]), 1)[0].tolist() == [[1]]
    search.remove([0, 1, 2])
    assert np.isneginf(search.search(np.ones((1, 3)), 2)[1]).all()
    assert search.search(np.zeros((0, 3)), 2)[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.search(np.ones((1, 5)), 3), "matrix"),
        (lambda s: s.search(np.full((1, 12), np.nan), 3), "not finite"),
        (lambda s: s.search(np.ones((1, 12)), 0), "k ≥ 1"),
        (lambda s: s.search(np.ones((2, 12)), 3, allowed=np.ones(7, bool)), r"bool\[3000\]"),
        (lambda s: s.search(np.ones((2, 12)), 3, allowed=np.ones(3000)), "filter"),
        (lambda s: s.add(np.ones((2, 3))), "matrix"),
        (lambda s: s.remove([3000]), "no such document"),
        (lambda s: s.remove([-1]), "no such document"),
        (lambda s: ExactSearch(np.ones((2, 3)), block=0), "block ≥ 1"),
        (lambda s: ExactSearch(np.full((2, 3), np.inf)), "row 0"),
    ],
)
def test_what_cannot_be_is_refused(data, call, message):
    with pytest.raises(InputError, match=message):
        call(ExactSearch(data[0]))

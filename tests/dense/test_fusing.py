"""Search inside clusters as a part of a program: what search on the host finds, for clusters chosen on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gr_jax.dense import ClusteredSearch, fusing
from tests.dense.test_clustered import DOCUMENTS, WIDTH, _expected, _setting


@jax.jit
def find(search, queries, clusters, bonus, allowed):
    return search.search(queries, clusters, bonus, allowed, tanh=False)


def ask(search, queries, picked, bonus, k, allowed=None):
    program = search.fused(len(queries), picked.shape[1], k)
    found = jax.device_get(find(program, queries, jnp.asarray(picked), bonus, allowed))
    return search.finish(found, queries, picked, bonus, k), program


@pytest.fixture(params=fusing.gathering.PLANS)
def plan(request, monkeypatch):
    monkeypatch.setattr(fusing.gathering, "choose_plan", lambda *sizes: request.param)
    return request.param


@pytest.mark.parametrize("several", [1, 3])
def test_it_finds_what_a_plain_loop_finds(plan, several):
    vectors, clusters, queries, picked = _setting(several=several)
    bonus = np.random.default_rng(5).integers(-4, 5, picked.shape).astype(np.float32)
    search = ClusteredSearch(vectors, clusters, backend="xla")
    for k in (40, 1600) if several == 1 else (40,):
        found, program = ask(search, queries, picked, bonus, k)
        expected = _expected(vectors, clusters, queries, picked, k, bonus=bonus)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1])
        assert [part.name for part in program.plans] == [plan]


def test_codes_filters_and_what_was_added_and_removed(plan):
    vectors, clusters, queries, picked = _setting(several=2)
    bonus = np.zeros(picked.shape, np.float32)
    search = ClusteredSearch(vectors[:1200], clusters[:1200], codes="dimension", backend="xla", num_clusters=23)
    ask(search, queries, picked, bonus, 5)
    search.add(vectors[1200:], clusters[1200:])
    search.remove(np.arange(0, DOCUMENTS, 7))
    allowed = np.random.default_rng(1).random((len(queries), DOCUMENTS)) < 0.5
    allowed[3] = False
    keep = allowed & (np.arange(DOCUMENTS) % 7 != 0)
    found, program = ask(search, queries, picked, bonus, 30, allowed)
    np.testing.assert_allclose(found[1], _expected(vectors, clusters, queries, picked, 30, keep=keep)[1])
    products = queries @ vectors.T
    for row, documents in enumerate(found[0]):  # of equal ones, which there are many of, any may be a candidate
        real = documents[documents >= 0]
        np.testing.assert_allclose(products[row, real], found[1][row, : len(real)])
        assert keep[row, real].all() and len(set(real.tolist())) == len(real)
    assert len(program.tiles) == 2 and program.tiles[0].rows.dtype == np.int8
    host = search.search_clusters(queries, picked, 30, allowed=allowed)
    np.testing.assert_allclose(found[1], host[1])


def test_a_filter_of_clusters_and_who_is_in_them():
    """`holding`, `sizes` and `contains`, by loops over documents, with an added tail and removed documents."""
    vectors, clusters, _, _ = _setting(several=2)
    search = ClusteredSearch(vectors[:1400], clusters[:1400], num_clusters=23, backend="xla")
    search.add(vectors[1400:], clusters[1400:])
    search.remove(np.arange(0, DOCUMENTS, 3))
    live = np.arange(DOCUMENTS) % 3 != 0
    allowed = np.random.default_rng(0).random((4, DOCUMENTS)) < 0.01
    inside = np.stack([(clusters == c).any(axis=1) for c in range(23)])
    np.testing.assert_array_equal(search.holding(allowed), (inside[None] & (allowed & live)[:, None]).any(axis=2))
    np.testing.assert_array_equal(search.sizes(), (inside & live).sum(axis=1))
    assert search.num_live == live.sum() and search.width == WIDTH
    some = np.array([0, 5, 1499, 1400, 77, -1])
    expected = inside[[3, 4, 22, 0]][:, some] & (some >= 0)
    np.testing.assert_array_equal(search.contains(some, np.array([3, 4, 22, -1]))[:3], expected[:3])
    assert not search.contains(some, np.array([-1])).any()


def test_plans_have_room_for_the_largest_clusters():
    sizes = [200, 1, 65, 64, 0, 3]
    search = ClusteredSearch(np.ones((333, 2), np.float32), np.repeat(np.arange(6), sizes), backend="xla")
    assert search.fused(1, 2, 5).plans == (fusing.Plan("tiles", 8, 5),)  # 4 pieces and 2
    assert search.fused(2, 2, 5).plans[0].name == "full"

"""Balanced k-means: no cluster is too large, and the matching is stable, as Gale and Shapley promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.clustering import balanced_kmeans, kmeans
from gr_jax.clustering.balanced import _assign, match
from gr_jax.errors import InputError


def points(n=200, d=5, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 10), st.integers(0, 2**31))
def test_nobody_prefers_a_cluster_that_would_have_him(n, k, spare, seed):
    random = np.random.default_rng(seed)
    distances = random.integers(0, 6, (n, k)).astype(np.float32)  # with many equal ones
    room = np.bincount(random.integers(0, k, n + spare), minlength=k)
    near = np.argsort(distances, axis=1, kind="stable")
    cluster = match(near, np.take_along_axis(distances, near, 1), room)
    assert (np.bincount(cluster, minlength=k) <= room).all() and (cluster >= 0).all()
    ordered = np.take_along_axis(distances, near, 1)

    def loses(point, cluster):
        place = near[point].tolist().index(cluster)
        return np.inf if place == k - 1 else ordered[point, place + 1] - ordered[point, place]

    for point in range(n):
        for other in near[point, : near[point].tolist().index(cluster[point])]:
            inside = np.flatnonzero(cluster == other)
            assert len(inside) == room[other]
            assert all(loses(member, other) >= loses(point, other) for member in inside)


def test_those_with_most_to_lose_stay_and_those_that_all_turn_away_are_left_out():
    near, distances = np.array([[0, 1], [0, 2], [1, 0]]), np.array([[1.0, 2.0], [1.0, 3.0], [5.0, 6.0]])
    assert match(near, distances, np.array([1, 1, 1])).tolist() == [1, 2, 0]
    assert match(near, distances, np.array([2, 0, 1])).tolist() == [-1, 0, 0]


@pytest.mark.parametrize(("n", "k", "slack"), [(200, 8, 0.0), (203, 8, 0.0), (200, 7, 0.3), (20, 19, 0.0)])
def test_sizes_are_bounded(n, k, slack):
    found = balanced_kmeans(points(n), k, slack=slack)
    sizes = np.bincount(found.assignments, minlength=k)
    assert len(sizes) == k and sizes.max() <= math.ceil((1 + slack) * n / k) and sizes.min() > 0
    means = np.stack([points(n)[found.assignments == c].mean(axis=0) for c in range(k)])
    np.testing.assert_allclose(found.centroids, means, atol=1e-5)
    np.testing.assert_allclose(found.inertia, np.square(points(n) - means[found.assignments]).sum(), rtol=1e-4)


def test_few_nearest_clusters_are_enough_for_all():
    lumps = np.concatenate([points(150, seed=1) * 0.01, points(50, seed=2) + 5])
    cluster = _assign(lumps, lumps[::20].copy(), 20, 2)
    assert np.bincount(cluster, minlength=10).tolist() == [20] * 10


def test_clusters_of_one_size_are_found():
    centers = np.eye(6, dtype=np.float32) * 9
    mixed = np.random.default_rng(0).permutation(np.repeat(np.arange(6), 15))
    found = balanced_kmeans(centers[mixed] + points(90, 6) * 0.1, 6)
    assert len({*zip(mixed.tolist(), found.assignments.tolist(), strict=True)}) == 6


def test_it_costs_little_inertia():
    """Though k-means itself is far from balanced, or this would say nothing."""
    given_points = points(400, 3)
    free = kmeans(given_points, 10)
    found = balanced_kmeans(given_points, 10)
    assert np.bincount(free.assignments).max() > 40
    assert found.inertia < free.inertia * 1.1


def test_the_seed_decides_and_directions_count_for_cosine():
    first, again = (balanced_kmeans(points(), 5, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.assignments, again.assignments)
    scaled = points() * np.random.default_rng(1).uniform(0.5, 2, (200, 1)).astype(np.float32)
    plain, stretched = (balanced_kmeans(p, 5, metric="cosine") for p in (points(), scaled))
    assert (plain.assignments == stretched.assignments).mean() > 0.98


def test_fewer_points_than_clusters():
    assert sorted(balanced_kmeans(points(4), 9).assignments) == [0, 1, 2, 3]


@pytest.mark.parametrize("changes", [{"slack": -0.1}, {"iterations": 0}, {"nearest": 0}, {"k": 0}])
def test_refused(changes):
    with pytest.raises(InputError):
        balanced_kmeans(**{"embeddings": points(), "k": 3, **changes})

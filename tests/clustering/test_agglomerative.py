"""Agglomerative clustering against scikit-learn's."""

import numpy as np
import pytest

from gr_jax.clustering import agglomerative
from gr_jax.errors import InputError


def points(n=150, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def same_partition(one, other) -> bool:
    pairs = {*zip(np.asarray(one).tolist(), np.asarray(other).tolist(), strict=True)}
    return len(pairs) == len(set(one.tolist())) == len(set(other.tolist()))


@pytest.mark.parametrize("linkage", ["ward", "average", "complete", "single"])
@pytest.mark.parametrize("k", [1, 2, 9, 149, 150])
def test_it_is_that_of_scikit_learn(linkage, k):
    cluster = pytest.importorskip("sklearn.cluster")
    found = agglomerative(points(), k, linkage=linkage)
    expected = cluster.AgglomerativeClustering(k, linkage=linkage).fit_predict(points())
    assert same_partition(found.assignments, expected)
    means = np.stack([points()[found.assignments == c].mean(axis=0) for c in range(k)])
    np.testing.assert_allclose(found.centroids, means, atol=1e-5)
    np.testing.assert_allclose(found.inertia, np.square(points() - means[found.assignments]).sum(), atol=1e-3)


def test_equal_points_still_make_so_many_clusters():
    """Where merges tie, as they all do here, a cut by height would give one."""
    found = agglomerative(np.ones((10, 3), np.float32), 4)
    assert sorted(set(found.assignments.tolist())) == [0, 1, 2, 3]


def test_beyond_the_sample_points_go_to_the_nearest_mean():
    everything = points(400)
    found = agglomerative(everything, 6, max_points=100, seed=2)
    sample = np.sort(np.random.default_rng(2).choice(400, 100, replace=False))
    labels = agglomerative(everything[sample], 6).assignments
    np.testing.assert_array_equal(found.assignments[sample], labels)
    means = np.stack([everything[sample][labels == c].mean(axis=0) for c in range(6)])
    nearest = np.square(everything[:, None] - means).sum(axis=-1).argmin(axis=1)
    rest = np.setdiff1d(np.arange(400), sample)
    np.testing.assert_array_equal(found.assignments[rest], nearest[rest])


def test_directions_count_for_cosine():
    scaled = points() * np.random.default_rng(1).uniform(0.5, 2, (150, 1)).astype(np.float32)
    one, other = (agglomerative(p, 7, metric="cosine").assignments for p in (points(), scaled))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("changes", [{"k": 0}, {"max_points": 2}, {"linkage": "centroid"}, {"metric": "l1"}])
def test_refused(changes):
    with pytest.raises(InputError):
        agglomerative(**{"embeddings": points(), "k": 3, **changes})

"""k-means within groups: as scikit-learn clusters each of them alone."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from gr_jax.clustering import grouped, kmeans_of_groups
from gr_jax.errors import InputError


def points_of(sizes, seed=0, width=6):
    """Points of groups of these sizes in any order, each group in some heaps."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    heaps = rng.normal(size=(len(sizes), 4, width)) * 4
    points = heaps[groups // 7, rng.integers(4, size=len(groups))] + rng.normal(size=(len(groups), width))
    return points.astype(np.float32), groups


@pytest.mark.parametrize("large", [1 << 13, 100])
def test_inertia_is_that_of_scikit_learn(large, monkeypatch):
    monkeypatch.setattr(grouped, "_LARGE", large)
    monkeypatch.setattr(grouped, "_FLOATS", 1 << 12)  # several batches of a size
    sizes = [1, 2, 5, 6, 7, 9, 20, 33, 60, 140, 500, *[12] * 30]
    points, groups = points_of(sizes)
    found = kmeans_of_groups(points, groups, 5)
    expected = sum(
        KMeans(5, n_init=3, random_state=0).fit(points[groups == 7 * group]).inertia_
        for group, size in enumerate(sizes)
        if size > 5
    )
    assert found.inertia == pytest.approx(np.sum((points - found.centroids[found.assignments]) ** 2), rel=1e-5)
    assert found.inertia < 1.02 * expected
    np.testing.assert_array_equal(found.groups[found.assignments], groups)
    assert len(found.centroids) == sum(min(5, size) for size in sizes)
    assert (np.diff(found.groups) >= 0).all() and set(found.assignments) == set(range(len(found.centroids)))
    for group in (0, 7, 14):  # of 1, 2 and 5 points: as they are
        np.testing.assert_array_equal(found.centroids[found.assignments[groups == group]], points[groups == group])
    # Each point is with the nearest centroid of its own group.
    for group in np.unique(groups).tolist():
        own = np.flatnonzero(found.groups == group)
        distances = np.linalg.norm(points[groups == group][:, None] - found.centroids[own], axis=-1)
        np.testing.assert_array_equal(own[distances.argmin(axis=1)], found.assignments[groups == group])


def test_the_best_of_several_starts_stays():
    points, groups = points_of([60, 140, *[12] * 30])
    one, four = (kmeans_of_groups(points, groups, 5, starts=starts) for starts in (1, 4))

    def of_groups(found):
        distances = np.sum((points - found.centroids[found.assignments]) ** 2, axis=1)
        return np.bincount(groups // 7, distances)

    assert (of_groups(four) <= of_groups(one) * (1 + 1e-5)).all()  # of each, and not only together
    assert four.inertia < one.inertia
    with pytest.raises(InputError, match="starts ≥ 1"):
        kmeans_of_groups(points, groups, 5, starts=0)


def test_a_group_does_not_depend_on_the_others():
    points, groups = points_of([30, 200, 12, 7])
    whole = kmeans_of_groups(points, groups, 3, seed=4)
    for group in np.unique(groups).tolist():
        alone = kmeans_of_groups(points[groups == group], groups[groups == group], 3, seed=4)
        np.testing.assert_allclose(whole.centroids[whole.groups == group], alone.centroids, atol=1e-5)
    again = kmeans_of_groups(points, groups, 3, seed=4)
    np.testing.assert_array_equal(again.centroids, whole.centroids)


def test_every_point_may_be_kept_and_equal_ones_share():
    points, groups = points_of([30, 3])
    every = kmeans_of_groups(points, groups, None)
    assert every.inertia == 0 and len(every.centroids) == 33
    np.testing.assert_array_equal(every.centroids[every.assignments], points)
    points[:] = points[0]
    assert len(kmeans_of_groups(points, groups, 5).centroids) == 2


def test_bad_input():
    points, groups = points_of([9])
    with pytest.raises(InputError, match="at least one cluster"):
        kmeans_of_groups(points, groups, 0)
    with pytest.raises(InputError, match="for 9 points"):
        kmeans_of_groups(points, groups[:3], 2)
    points[2, 1] = np.nan
    with pytest.raises(InputError, match="row 2"):
        kmeans_of_groups(points, groups, 2)

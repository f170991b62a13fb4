import numpy as np
import pytest

from gr_jax.clustering import cluster_means, nearby_clusters
from gr_jax.errors import InputError


@pytest.fixture(scope="module")
def clustered():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((130, 6)).astype(np.float32)
    return points, np.append(np.arange(7), rng.integers(0, 7, 123))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize(("most", "margin"), [(1, 0.05), (2, 0.2), (3, np.inf), (20, np.inf), (1, 0.0), (0, 1.0)])
def test_pairs_are_those_of_a_plain_loop(clustered, metric, most, margin):
    points, cluster = clustered
    found = list(zip(*nearby_clusters(points, cluster, most=most, margin=margin, metric=metric), strict=True))
    if metric == "cosine":
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
    means = np.stack([points[cluster == number].mean(axis=0) for number in range(7)])
    expected = []
    for point in range(len(points)):
        distances = np.linalg.norm(points[point] - means, axis=1)
        reach = (1 + margin) * distances[cluster[point]]
        near = [other for other in np.argsort(distances) if other != cluster[point] and distances[other] <= reach]
        expected += [(point, other) for other in near[:most]]
    assert found == expected
    if margin == np.inf:
        assert len(found) == 130 * min(most, 6)


def test_means(clustered):
    points, cluster = clustered
    means = cluster_means(points, cluster, 9)
    for number in range(7):
        np.testing.assert_allclose(means[number], points[cluster == number].mean(axis=0), rtol=1e-4, atol=1e-6)
    assert not means[7:].any()


def test_one_cluster_has_no_neighbours(clustered):
    points, _ = clustered
    found = nearby_clusters(points, np.zeros(130, int), most=2, margin=1.0)
    assert [len(part) for part in found] == [0, 0]


@pytest.mark.parametrize(("changes", "words"), [({"most": -1}, "negative"), ({"margin": -0.1}, "margin")])
def test_refused(clustered, changes, words):
    with pytest.raises(InputError, match=words):
        nearby_clusters(*clustered, **{"most": 1, "margin": 0.1, **changes})

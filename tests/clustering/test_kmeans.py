import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans as SklearnKMeans

from gr_jax.clustering import assign, kmeans, lloyd
from gr_jax.clustering.kmeans import bucket, seeding_numbers, together
from gr_jax.errors import InputError


def make_blobs(count, blobs, d=16, spread=0.3, seed=0):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(blobs, d))
    return (centers[rng.integers(0, blobs, count)] + spread * rng.normal(size=(count, d))).astype(np.float32)


@pytest.mark.parametrize(
    "points", [make_blobs(900, 12), make_blobs(700, 5, spread=3.0, seed=1)], ids=["apart", "mixed"]
)
def test_inertia_is_that_of_scikit_learn(points):
    ours = kmeans(points, 12, iterations=100)
    theirs = min(SklearnKMeans(12, n_init=1, random_state=seed).fit(points).inertia_ for seed in range(3))
    assert ours.inertia <= 1.03 * theirs


def test_is_a_fixed_point_of_lloyds_algorithm():
    points = make_blobs(500, 8, spread=1.0)
    found = kmeans(points, 8, iterations=200, tolerance=0.0)
    distances = ((points[:, None] - found.centroids[None]) ** 2).sum(-1)
    np.testing.assert_array_equal(found.assignments, distances.argmin(1))
    means = np.stack([points[found.assignments == c].mean(0) for c in range(8)])
    np.testing.assert_allclose(found.centroids, means, atol=1e-4)
    np.testing.assert_allclose(found.inertia, distances.min(1).sum(), rtol=1e-4)


def test_same_seed_same_clusters_other_seed_others():
    points = make_blobs(300, 40, spread=2.0)
    first, again, other = (kmeans(points, 10, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.assignments, again.assignments)
    assert (first.assignments != other.assignments).any()


def test_an_empty_cluster_moves_to_the_worst_served_points():
    # Seeds that all fall on one point: without help every other center would stay empty.
    points = np.concatenate([np.zeros((60, 2)), np.eye(2) * 5, [[9.0, 9.0]]]).astype(np.float32)
    padded = np.zeros((1, 64, 2), np.float32)
    padded[0, :63] = points
    counts = np.asarray([63], np.int32)
    uniforms = np.zeros((1, 4, 3), np.float32)
    centers, nearest, inertia, _ = lloyd.fit_batch(
        padded, counts, uniforms, k=4, iterations=20, tolerance=0.0, spherical=False
    )
    assert len(set(np.asarray(nearest[0, :63]).tolist())) == 4
    assert float(inertia[0]) < 1e-6


def test_many_points_and_centers_are_compared_in_blocks(monkeypatch):
    points, uniforms = jnp.asarray(make_blobs(700, 9, spread=2.0)), jnp.asarray(seeding_numbers(13, 0))

    def fit():
        how = {"k": 13, "iterations": 30, "tolerance": 0.0, "spherical": False}
        return lloyd.fit_one(points, 650, uniforms, **how)

    centers, nearest, inertia, steps = fit()
    monkeypatch.setattr(lloyd, "_MOST_DISTANCES", 13 * 64)
    in_blocks = fit()
    np.testing.assert_array_equal(in_blocks[1][:650], nearest[:650])
    np.testing.assert_allclose(in_blocks[0], centers, atol=1e-5)
    assert float(in_blocks[2]) == pytest.approx(float(inertia), rel=1e-5) and int(in_blocks[3]) == int(steps)


@pytest.mark.parametrize("count, distinct, k", [(5, 5, 8), (200, 3, 8), (1, 1, 4), (50, 1, 3)])
def test_fewer_distinct_points_than_clusters(count, distinct, k):
    points = np.arange(distinct, dtype=np.float32)[np.arange(count) % distinct, None] * [[1.0, 2.0]]
    found = kmeans(points, k)
    assert len(np.unique(found.assignments)) == distinct
    assert found.inertia == pytest.approx(0.0, abs=1e-4)
    assert np.isfinite(found.centroids).all()


def test_cosine_ignores_length_and_keeps_centroids_on_the_sphere():
    points = make_blobs(400, 6)
    scaled = points * np.random.default_rng(3).uniform(0.1, 10, (400, 1))
    one, other = kmeans(points, 6, metric="cosine"), kmeans(scaled, 6, metric="cosine")
    np.testing.assert_array_equal(one.assignments, other.assignments)
    np.testing.assert_allclose(np.linalg.norm(one.centroids, axis=1), 1.0, rtol=1e-5)


def test_fits_on_a_sample_and_assigns_all():
    points = make_blobs(4000, 6, spread=0.2)
    whole, sampled = kmeans(points, 6), kmeans(points, 6, max_points=500)
    assert sampled.assignments.shape == (4000,)
    assert sampled.inertia <= 1.1 * whole.inertia


def test_assign_works_in_chunks():
    points, centroids = make_blobs(300, 5), make_blobs(7, 7, seed=2)
    nearest, inertia = assign(points, centroids, chunk=64)
    distances = ((points[:, None] - centroids[None]) ** 2).sum(-1)
    np.testing.assert_array_equal(nearest, distances.argmin(1))
    assert inertia == pytest.approx(distances.min(1).sum(), rel=1e-4)


def test_problems_of_a_batch_do_not_see_each_other_or_their_padding():
    sets = [make_blobs(count, 5, seed=count) for count in (20, 64, 33)]
    uniforms = np.stack([seeding_numbers(5, number) for number in range(3)])
    counts = np.asarray([len(points) for points in sets], np.int32)
    settings = {"k": 5, "iterations": 30, "tolerance": 1e-4, "spherical": False}
    batch = np.full((3, 64, 16), 7.0, np.float32)
    for row, points in enumerate(sets):
        batch[row, : len(points)] = points
    centers, nearest, _, _ = lloyd.fit_batch(batch, counts, uniforms, **settings)
    for row, points in enumerate(sets):
        alone = np.zeros((1, 64, 16), np.float32)
        alone[0, : len(points)] = points
        one_centers, one_nearest, _, _ = lloyd.fit_batch(alone, counts[row][None], uniforms[row][None], **settings)
        np.testing.assert_array_equal(nearest[row, : len(points)], one_nearest[0, : len(points)])
        np.testing.assert_allclose(centers[row], one_centers[0], atol=1e-5)


def test_sizes_share_few_shapes():
    sizes = {bucket(size) for size in range(1, 100_001)}
    assert all(bucket(size) >= size for size in (1, 64, 65, 4096, 4097, 100_000))
    assert len(sizes) <= 10


@pytest.mark.parametrize(
    "embeddings, settings, words",
    [
        (np.zeros((0, 4)), {}, "matrix"),
        (np.zeros(4), {}, "matrix"),
        (np.full((3, 2), np.nan), {}, "not finite"),
        (np.zeros((3, 2)), {"k": 0}, "at least one cluster"),
        (np.zeros((3, 2)), {"metric": "manhattan"}, "unknown metric"),
        (np.zeros((3, 2)), {"seed": -1}, "negative"),
    ],
)
def test_refuses(embeddings, settings, words):
    with pytest.raises(InputError, match=words):
        kmeans(embeddings, **{"k": 2, **settings})


def test_the_first_of_equal_minima_is_taken():
    x = np.random.default_rng(0).integers(0, 3, (50, 7)).astype(np.float32)
    index, smallest = lloyd.first_minimum(x)
    np.testing.assert_array_equal(index, x.argmin(axis=1))
    np.testing.assert_array_equal(smallest, x.min(axis=1))


@pytest.mark.parametrize("how", [lloyd.sum_rows, lloyd.sum_by_product])
def test_sums_of_clusters(how):
    """Which of the two runs is the platform's choice."""
    rng = np.random.default_rng(0)
    points, cluster = rng.standard_normal((50, 3)).astype(np.float32), rng.integers(0, 5, 50)
    expected = [points[cluster == number].sum(axis=0) for number in range(6)]
    np.testing.assert_allclose(how(points, cluster, k=6), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [30, 31, 100])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_equal_points_are_in_one_cluster(count, metric):
    for seed in range(5):
        point = np.random.default_rng(seed).normal(size=(1, 50)).astype(np.float32)
        assert len(set(kmeans(np.repeat(point, count, axis=0), 2, seed=seed, metric=metric).assignments.tolist())) == 1


def test_copies_go_where_the_first_of_them_goes():
    points = make_blobs(120, 6)[np.random.default_rng(0).integers(0, 40, 200)]
    cluster = together(points, np.arange(200, dtype=np.int32))
    for row, point in enumerate(points):
        assert cluster[row] == np.flatnonzero((points == point).all(axis=1))[0]

"""What is drawn depends on the seed: codebooks of other seeds are others, and those of one the same."""

import numpy as np
import pytest

from gr_jax.clustering import balanced_kmeans, kmeans, learn_codebooks

POINTS = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
MADE = {
    "residual quantization": lambda seed: learn_codebooks(POINTS, levels=2, bits=3, seed=seed),
    "k-means": lambda seed: kmeans(POINTS, 8, seed=seed).centroids,
    "balanced k-means": lambda seed: balanced_kmeans(POINTS, 8, seed=seed).centroids,
}


@pytest.mark.parametrize("name", MADE)
def test_the_seed_decides(name):
    first, again, other = (MADE[name](seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(np.sort(first, axis=-2) - np.sort(other, axis=-2)).max() > 1e-3

"""What every search is compared with: all products in NumPy, sorted by score and position."""

import numpy as np


def whole_numbers(rng, n, d, largest=3):
    """Vectors whose inner products are exact in float32 in any order of summation, with many equal ones."""
    return rng.integers(-largest, largest + 1, (n, d)).astype(np.float32)


def search(queries, vectors, k, keep=None, scores=None):
    """keep: bool[documents] or bool[batch, documents]; scores: float[batch, documents] instead of inner products."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T if scores is None else scores
    scores = scores if keep is None else np.where(keep, scores, -np.inf)
    positions = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.lexsort((positions, -scores), axis=1)[:, :k]
    best = np.take_along_axis(scores, order, 1)
    pad = ((0, 0), (0, k - order.shape[1]))
    positions = np.pad(np.where(np.isneginf(best), -1, order), pad, constant_values=-1)
    return positions.astype(np.int32), np.pad(best, pad, constant_values=-np.inf).astype(np.float32)


def assert_same(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-6)
    assert found[0].dtype == np.int32 and found[1].dtype == np.float32

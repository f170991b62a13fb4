"""Selection and sorting of keys against NumPy's."""

import numpy as np
import pytest

pytest.importorskip("numba")

from gr_jax.dense import compiled  # noqa: E402


@pytest.mark.parametrize("count", [1, 2, 3, 12, 13, 14, 100, 264, 5000])
@pytest.mark.parametrize("order", ["random", "rising", "falling", "few values", "one value", "organ pipe"])
def test_the_smallest_and_all_in_order(count, order):
    rng = np.random.default_rng(count)
    if order == "random":
        keys = rng.integers(0, 1 << 63, count)
    elif order == "few values":
        keys = rng.integers(0, 3, count)
    elif order == "one value":
        keys = np.full(count, 7)
    else:
        keys = np.arange(count)
        keys = {"rising": keys, "falling": keys[::-1], "organ pipe": np.minimum(keys, keys[::-1])}[order]
    keys = np.append(keys, [0]).astype(np.uint64)  # what stands behind is left alone
    right = np.sort(keys[:-1])
    for k in {1, max(1, count // 3), count}:
        found = keys.copy()
        compiled.smallest(found, count, k)
        np.testing.assert_array_equal(np.sort(found[:k]), right[:k])
        np.testing.assert_array_equal(np.sort(found[:-1]), right)
        assert found[k - 1] == right[k - 1]
    found = keys.copy()
    compiled.sort(found, count)
    np.testing.assert_array_equal(found, np.append(right, np.uint64(0)))


def test_keys_rise_as_scores_fall_and_places_rise():
    scores = np.array([np.inf, 3.5, 1e-40, 0.0, 0.0, -0.5, -2.0, -np.inf], np.float32)
    keys = [int(compiled.key_of(bits, place)) for place, bits in enumerate(scores.view(np.uint32))]
    assert keys == sorted(keys)
    bits = np.array([compiled.bits_of(np.uint64(key)) for key in keys], np.uint32)
    np.testing.assert_array_equal(bits.view(np.float32), scores)

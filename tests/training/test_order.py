import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gr_jax.training import order
from gr_jax.training.order import Stream, interleave, permute

seeds = st.integers(0, 2**32)


def keys(seed, rounds=6):
    return np.random.default_rng(seed).integers(0, 2**64, rounds, np.uint64)


@given(st.integers(1, 3000), seeds)
def test_a_permutation_has_every_place_once(size, seed):
    assert sorted(permute(np.arange(size), size, keys(seed))) == list(range(size))


@given(st.integers(2**31, 2**52), seeds, st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=20))
def test_large_permutations_stay_inside_and_apart(size, seed, places):
    found = permute(np.array(places, np.int64), size, keys(seed))
    assert len(set(found.tolist())) == len(places)
    assert all(0 <= place < size for place in found.tolist())


def test_permutations_look_like_random_ones():
    size, trials = 1000, 300
    found = np.array([permute(np.arange(size), size, keys(seed)) for seed in range(trials)])
    # Where place 0 lands, and how far neighbours land apart, as for permutations drawn uniformly.
    uniform = np.array([np.random.default_rng(seed).permutation(size) for seed in range(trials)])
    for statistic in (
        lambda p: p[:, 0],
        lambda p: np.abs(np.diff(p, axis=1)).mean(axis=1),
        lambda p: (p == np.arange(size)).sum(1),
    ):
        ours, theirs = statistic(found), statistic(uniform)
        assert abs(ours.mean() - theirs.mean()) < 5 * theirs.std() / np.sqrt(trials)


@given(st.integers(1, 50), seeds, st.booleans())
def test_every_epoch_of_a_stream_has_every_row_once(size, seed, by_arithmetic):
    rows = np.arange(size) * 3
    with pytest.MonkeyPatch.context() as patch:
        if by_arithmetic:
            patch.setattr(order, "_LISTED", 0)
        stream = Stream(rows, (seed,))
        seen = stream.at(np.arange(4 * size)).reshape(4, size)
        assert (np.sort(seen) == rows).all()
        backwards = Stream(rows, (seed,)).at(np.arange(4 * size)[::-1])[::-1].reshape(4, size)
    np.testing.assert_array_equal(backwards, seen)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=4))
def test_streams_are_interleaved_evenly(weights):
    cycle, rank = interleave(np.array(weights))
    shares = np.array(weights) / np.sum(weights)
    for stream, share in enumerate(shares):
        here = cycle == stream
        assert rank[here].tolist() == list(range(here.sum()))
        so_far = np.cumsum(here) - share * np.arange(1, len(cycle) + 1)
        assert np.abs(so_far).max() < len(weights) + len(cycle) * 2e-4

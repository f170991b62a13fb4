"""What inner products can express, and that a maximum over tokens is not bound by it."""

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.evaluation import theory


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (4, 1), (4, 3)])
def test_scores_have_no_more_rank_than_their_vectors_width(width, channels):
    random = np.random.default_rng(width)
    scores = sum(random.normal(size=(20, width)) @ random.normal(size=(width, 30)) for _ in range(channels))
    assert theory.numeric_rank(scores) == width * channels
    assert theory.low_rank_error(scores, width * channels) == pytest.approx(0, abs=1e-18)


def test_noise_is_that_of_the_scores_own_floats():
    random = np.random.default_rng(0)
    vectors = [random.normal(size=(many, 4)).astype(np.float32) for many in (40, 60)]
    assert theory.numeric_rank(vectors[0] @ vectors[1].T) == 4


def test_late_interaction_is_not_bilinear():
    """Token vectors of width 2, three of each document: the scores have more than three times their rank."""
    random = np.random.default_rng(0)
    queries, documents = random.normal(size=(20, 2)), random.normal(size=(30, 3, 2))
    scores = np.einsum("qr,dtr->qdt", queries, documents).max(axis=2)
    assert theory.numeric_rank(scores) > 6


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
def test_the_least_error_is_that_of_the_cut_decomposition_and_no_other_is_less(rank):
    random = np.random.default_rng(rank)
    scores = random.normal(size=(8, 11))
    left, values, right = np.linalg.svd(scores, full_matrices=False)
    cut = (left[:, :rank] * values[:rank]) @ right[:rank]
    least = theory.low_rank_error(scores, rank)
    assert np.square(scores - cut).sum() == pytest.approx(least)
    queries = left[:, :rank] * values[:rank]
    for _ in range(20):  # the best documents' vectors for other queries' vectors
        moved = queries + random.normal(size=queries.shape) * 0.3
        fitted = moved @ np.linalg.lstsq(moved, scores, rcond=None)[0] if rank else np.zeros_like(scores)
        assert np.square(scores - fitted).sum() >= least - 1e-9


def test_identity_needs_every_dimension():
    """Each question has a document of its own: half the width loses half of them."""
    assert theory.low_rank_error(np.eye(10), 5) == pytest.approx(5)
    with pytest.raises(InputError, match="0 or more"):
        theory.low_rank_error(np.eye(3), -1)

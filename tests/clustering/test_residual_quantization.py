"""Residual quantisation against NumPy by brute force, and against faiss."""

import itertools

import numpy as np
import pytest

from gr_jax.clustering import fit_to_codes, quantize, reconstruct, residual_quantization
from gr_jax.errors import InputError

LEVELS, SIZE, WIDTH = 3, 8, 12


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((20, WIDTH))
    return (centers[rng.integers(0, 20, 300)] + 0.3 * rng.standard_normal((300, WIDTH))).astype(np.float32)


@pytest.fixture(scope="module")
def learnt(points):
    return residual_quantization(points, levels=LEVELS, bits=3, beams=4, seed=1)


@pytest.fixture(scope="module")
def codebooks() -> np.ndarray:
    """Not learnt: beams matter more where codewords are of the same size at every level."""
    return np.random.default_rng(2).standard_normal((LEVELS, SIZE, WIDTH)).astype(np.float32)


def squared_distance(points, codes, codebooks) -> np.ndarray:
    total = sum(codebooks[level].astype(np.float64)[codes[:, level]] for level in range(len(codebooks)))
    return ((points - total) ** 2).sum(axis=1)


def test_one_beam_takes_the_nearest_codeword_level_by_level(points, codebooks):
    codes, errors = quantize(points, codebooks, beams=1)
    residual = points.astype(np.float64)
    for level in range(LEVELS):
        distances = ((residual[:, None] - codebooks[level]) ** 2).sum(axis=-1)
        np.testing.assert_array_equal(codes[:, level], distances.argmin(axis=1))
        residual = residual - codebooks[level][codes[:, level]]
    np.testing.assert_allclose(errors, (residual**2).sum(axis=1), rtol=1e-4)


def test_the_full_beam_finds_the_nearest_of_all_sums(points, codebooks):
    every = np.array(list(itertools.product(range(SIZE), repeat=LEVELS)))
    sums = sum(codebooks[level].astype(np.float64)[every[:, level]] for level in range(LEVELS))
    distances = ((points[:, None] - sums) ** 2).sum(axis=-1)  # --> [n, 512]
    codes, errors = quantize(points, codebooks, beams=SIZE ** (LEVELS - 1))
    np.testing.assert_array_equal(codes, every[distances.argmin(axis=1)])
    np.testing.assert_allclose(errors, distances.min(axis=1), rtol=1e-4)


def test_a_narrow_beam_is_the_plain_beam_search(points, codebooks):
    codes, _ = quantize(points[:40], codebooks, beams=3)
    for point, found in zip(points[:40].astype(np.float64), codes, strict=True):
        kept = [()]
        for _ in range(LEVELS):
            longer = [(*path, code) for path in kept for code in range(SIZE)]
            kept = sorted(
                longer, key=lambda path: ((point - sum(codebooks[i][c] for i, c in enumerate(path))) ** 2).sum()
            )[:3]
        assert tuple(found) == kept[0]


def test_what_is_returned_belongs_together(points, learnt):
    assert learnt.codebooks.shape == (LEVELS, SIZE, WIDTH) and learnt.codebooks.dtype == np.float32
    assert learnt.codes.shape == (len(points), LEVELS) and learnt.codes.dtype == np.int32
    distances = squared_distance(points, learnt.codes, learnt.codebooks)
    assert learnt.error == pytest.approx(distances.mean(), rel=1e-4)
    difference = points - reconstruct(learnt.codes, learnt.codebooks)
    np.testing.assert_allclose((difference**2).sum(axis=1), distances, rtol=1e-4, atol=1e-5)
    again = residual_quantization(points, levels=LEVELS, bits=3, beams=4, seed=1)
    np.testing.assert_array_equal(again.codebooks, learnt.codebooks)
    np.testing.assert_array_equal(again.codes, learnt.codes)


def test_codewords_are_the_means_of_what_they_serve(points, learnt):
    """The first codebook is a k-means: ten Lloyd steps leave each centre near the mean of its points."""
    first = learnt.codebooks[0].astype(np.float64)
    nearest = ((points[:, None] - first) ** 2).sum(axis=-1).argmin(axis=1)
    means = np.stack([points[nearest == code].mean(axis=0) for code in range(SIZE)])
    assert np.linalg.norm(means - first) < 0.1 * np.linalg.norm(means)


def test_the_error_falls_with_every_level_and_with_beams(points, learnt):
    variance = ((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()
    errors = [quantize(points, learnt.codebooks[:m], beams=1)[1].mean() for m in range(1, LEVELS + 1)]
    assert variance > errors[0] > errors[1] > errors[2] > learnt.error


def test_a_sample_serves_points_that_it_does_not_hold(points, learnt):
    sampled = residual_quantization(points, levels=LEVELS, bits=3, beams=4, seed=1, max_points=150)
    assert sampled.codes.shape == learnt.codes.shape
    assert learnt.error < sampled.error < 1.5 * learnt.error


def test_cosine_ignores_lengths(points):
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    one = residual_quantization(points * np.linspace(1, 9, len(points))[:, None], levels=2, bits=3, metric="cosine")
    other = residual_quantization(unit, levels=2, bits=3)
    np.testing.assert_array_equal(one.codes, other.codes)


def test_faiss_reads_the_codes_as_we_do(points, learnt):
    faiss = pytest.importorskip("faiss")
    theirs = faiss.ResidualQuantizer(WIDTH, LEVELS, 3)
    faiss.copy_array_to_vector(learnt.codebooks.ravel(), theirs.codebooks)
    theirs.is_trained = True
    packed = np.packbits(
        (learnt.codes[..., None] >> np.arange(3) & 1).reshape(len(points), -1), axis=1, bitorder="little"
    ).astype(np.uint8)
    np.testing.assert_allclose(theirs.decode(packed), reconstruct(learnt.codes, learnt.codebooks), rtol=1e-5, atol=1e-5)


def test_the_error_is_not_above_faiss_s(points):
    faiss = pytest.importorskip("faiss")
    theirs = faiss.ResidualQuantizer(WIDTH, LEVELS, 3)
    theirs.train(points)
    error = ((points - theirs.decode(theirs.compute_codes(points))) ** 2).sum(axis=1).mean()
    ours = np.mean([residual_quantization(points, levels=LEVELS, bits=3, seed=seed).error for seed in range(3)])
    assert ours < 1.05 * error


def test_codebooks_that_are_fitted_together_are_nearer(points, learnt):
    errors = [
        residual_quantization(points, levels=LEVELS, bits=3, beams=4, seed=1, refits=refits).error
        for refits in (0, 1, 8)
    ]
    assert errors[0] == learnt.error
    assert errors[0] > 1.05 * errors[1] > 1.05 * errors[2]


def test_codewords_are_those_of_least_squares(points, learnt):
    """Against the solution of the stacked system, in which each codeword is one more point."""
    codes = learnt.codes.copy()
    codes[codes[:, 1] == 5, 1] = 2  # a codeword that no point has
    found = fit_to_codes(points, codes, learnt.codebooks)
    design = np.zeros((len(points), LEVELS, SIZE))
    for level in range(LEVELS):
        design[np.arange(len(points)), level, codes[:, level]] = 1
    design = np.concatenate([design.reshape(len(points), -1), np.eye(LEVELS * SIZE)])
    wanted = np.concatenate([points, learnt.codebooks.reshape(-1, WIDTH)])
    expected = np.linalg.lstsq(design, wanted, rcond=None)[0].reshape(learnt.codebooks.shape)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found[1, 5], learnt.codebooks[1, 5], atol=1e-6)


def test_fitted_together_the_error_is_not_above_faiss_s(points):
    faiss = pytest.importorskip("faiss")
    theirs = faiss.ResidualQuantizer(WIDTH, LEVELS, 3)
    theirs.train_type = faiss.ResidualQuantizer.Train_default | faiss.ResidualQuantizer.Train_refine_codebook
    theirs.niter_codebook_refine = 8
    theirs.train(points)
    error = ((points - theirs.decode(theirs.compute_codes(points))) ** 2).sum(axis=1).mean()
    ours = [residual_quantization(points, levels=LEVELS, bits=3, seed=seed, refits=8).error for seed in range(3)]
    assert np.mean(ours) < 1.05 * error


@pytest.mark.parametrize("repeated", [1, 3])
def test_points_that_are_all_alike(repeated):
    points = np.repeat(np.arange(repeated * 2, dtype=np.float32).reshape(repeated, 2), 60 // repeated, axis=0)
    made = residual_quantization(points, levels=2, bits=2)
    assert np.isfinite(made.codebooks).all() and made.error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 9}, "300 points cannot fill 512 codewords.*bits ≤ 8"),
        ({"bits": 8, "max_points": 100}, "max_points = 100 cannot fill 256"),
        ({"levels": 0}, "levels must be at least 1"),
        ({"bits": 0}, "bits must be at least 1"),
        ({"beams": 0}, "beams must be at least 1"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"seed": -1}, "seed"),
        ({"refits": -1}, "refits cannot be negative"),
        ({"metric": "angular"}, "metric"),
    ],
)
def test_bad_settings(points, changes, message):
    with pytest.raises(InputError, match=message):
        residual_quantization(points, **{"levels": 2, "bits": 3, **changes})


def test_bad_arrays(points, learnt):
    broken = points.copy()
    broken[7, 2] = np.inf
    with pytest.raises(InputError, match="row 7"):
        residual_quantization(broken, levels=2, bits=3)
    with pytest.raises(InputError, match="row 7"):
        quantize(broken, learnt.codebooks)
    with pytest.raises(InputError, match="11 dimensions and codewords of 12"):
        quantize(points[:, 1:], learnt.codebooks)
    with pytest.raises(InputError, match="three axes"):
        quantize(points, learnt.codebooks[0])
    with pytest.raises(InputError, match="beams"):
        quantize(points, learnt.codebooks, beams=0)
    with pytest.raises(InputError, match="none of these codebooks'"):
        reconstruct(learnt.codes + 1, learnt.codebooks)

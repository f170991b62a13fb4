"""Residual quantisation: a vector as a sum of codewords, one from each codebook (Chen et al. 2010, "Approximate nearest
neighbor search by residual vector quantization"). Codebooks that were learnt one after the other can be fitted together
afterwards, as additive quantisation fits them (Babenko & Lempitsky 2014, "Additive quantization for extreme vector
compression", section 3.2)."""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from gr_jax import progress as progress_bars
from gr_jax.clustering import lloyd
from gr_jax.clustering.kmeans import check_embeddings
from gr_jax.errors import InputError

# Points encoded by one call; with their beams they should fit a CPU's caches.
_CHUNK = 1024
# Dimensions grow geometrically to all of them in this many steps, see `_train_codebook`.
_GROWING_STEPS = 6
_REFIT_BEAMS = 5  # hypotheses of the encodings that codebooks are fitted to together


@dataclasses.dataclass(frozen=True)
class ResidualQuantization:
    """Codebooks and what they make of the points.

    Attributes:
      codebooks: float32[levels, size, d]; a point is near the sum of one codeword of each.
      codes: int32[n, levels]; which.
      error: mean over the points of the squared distance to that sum.
    """

    codebooks: np.ndarray
    codes: np.ndarray
    error: float


def residual_quantization(
    embeddings: Float[np.ndarray, "n d"],
    *,
    levels: int = 6,
    bits: int = 8,
    beams: int = 5,
    seed: int = 0,
    metric: str = "euclidean",
    iterations: int = 10,
    refits: int = 0,
    max_points: int = 1 << 17,
    progress: bool = False,
) -> ResidualQuantization:
    """Learns codebooks, each by k-means on what the ones before leave of the points, and encodes all points.

    Args:
      embeddings: [n, d].
      levels: codebooks.
      bits: each has 2^bits codewords.
      beams: hypotheses kept while a point is encoded; 1 is the greedy encoding, the nearest codeword level by level.
      seed: the same seed gives the same codebooks.
      metric: "euclidean", or "cosine": points are scaled to unit length first.
      iterations: Lloyd steps in all dimensions.
      refits: rounds, at most, in which the points are encoded and all codebooks fitted to the codes together; it ends
        where the error no longer falls.
      max_points: the codebooks are learnt from a random sample of this size where there are more points, so that time
        and memory stay flat.
      progress: show a bar.

    Raises:
      InputError: a matrix that cannot be clustered, fewer points than codewords, numbers that are too small.
    """
    if beams < 1:  # before anything is learnt
        raise InputError("beams must be at least 1", "Give beams ≥ 1.", value=beams)
    points = check_embeddings(embeddings, metric)
    codebooks = learn_codebooks(
        points, levels=levels, bits=bits, seed=seed, iterations=iterations, refits=refits, max_points=max_points,
        progress=progress,
    )  # fmt: skip
    codes, errors = quantize(points, codebooks, beams=beams, progress=progress)
    return ResidualQuantization(codebooks, codes, float(errors.mean(dtype=np.float64)))


def learn_codebooks(
    embeddings: Float[np.ndarray, "n d"],
    *,
    levels: int = 6,
    bits: int = 8,
    seed: int = 0,
    metric: str = "euclidean",
    iterations: int = 10,
    refits: int = 0,
    max_points: int = 1 << 17,
    progress: bool = False,
) -> Float[np.ndarray, "levels size d"]:
    """The codebooks alone; see `residual_quantization` for the arguments and what is refused."""
    for name, value in {"levels": levels, "bits": bits, "iterations": iterations}.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1", f"Give {name} ≥ 1.", value=value)
    for name, value in {"seed": seed, "refits": refits}.items():
        if value < 0:
            raise InputError(f"{name} cannot be negative", f"Give {name} ≥ 0.", value=value)
    points = check_embeddings(embeddings, metric)
    size = 1 << bits
    if min(len(points), max_points) < size:
        few = f"max_points = {max_points}" if max_points < len(points) else f"{len(points)} points"
        most = max(1, int(math.log2(max(2, min(len(points), max_points)))))
        raise InputError(f"{few} cannot fill {size} codewords a level", f"Give bits ≤ {most}.", value=f"bits={bits}")
    sample = points
    if len(points) > max_points:
        sample = points[np.sort(np.random.default_rng(seed).choice(len(points), max_points, replace=False))]
    residuals = jnp.asarray(sample)
    codebooks = []
    with progress_bars.bar("Learning codebooks", levels, enabled=progress) as bar:
        for level in range(levels):
            first = np.random.default_rng((seed, level)).choice(len(sample), size, replace=False)
            codebooks.append(_train_codebook(residuals, first, iterations))
            residuals = _subtract_nearest(residuals, codebooks[-1])
            bar.advance(1)
    return _refitted(np.asarray(sample), np.asarray(jnp.stack(codebooks)), refits, progress)


def quantize(
    points: Float[np.ndarray, "n d"],
    codebooks: Float[np.ndarray, "levels size d"],
    *,
    beams: int = 5,
    progress: bool = False,
) -> tuple[Int[np.ndarray, "n levels"], Float[np.ndarray, " n"]]:
    """Codes of points by beam search over sums of codewords, `_CHUNK` points at a time.

    After each level the `beams` nearest of all continuations are kept, so 1 is greedy, and size^(levels − 1) finds the
    nearest sum there is.

    Args:
      points: [n, d].
      codebooks: [levels, size, d].
      beams: hypotheses kept.
      progress: show a bar.

    Returns:
      codes, int32[n, levels], and the squared distance from each point to the sum of its codewords.

    Raises:
      InputError: points or codebooks that are no finite matrices of the same width; beams < 1.
    """
    codebooks = np.asarray(codebooks, np.float32)
    if codebooks.ndim != 3 or 0 in codebooks.shape:
        raise InputError("codebooks must have three axes", "Give float32[levels, size, d].", value=codebooks.shape)
    points = check_embeddings(points, "euclidean")
    if points.shape[1] != codebooks.shape[2]:
        raise InputError(
            f"points of {points.shape[1]} dimensions and codewords of {codebooks.shape[2]}",
            "Use the codebooks that were learnt from embeddings of this encoder.",
        )
    if beams < 1:
        raise InputError("beams must be at least 1", "Give beams ≥ 1.", value=beams)
    n = len(points)
    codes = np.empty((n, len(codebooks)), np.int32)
    errors = np.empty(n, np.float32)
    chunk = min(_CHUNK, 1 << (n - 1).bit_length())  # few shapes are compiled
    books = jnp.asarray(codebooks)
    with progress_bars.bar("Encoding points", n, enabled=progress) as bar:
        for start in range(0, n, chunk):
            part = points[start : start + chunk]
            padded = np.pad(part, ((0, chunk - len(part)), (0, 0)))
            found, error = _quantize_chunk(padded, books, beams=beams)
            codes[start : start + chunk] = np.asarray(found)[: len(part)]
            errors[start : start + chunk] = np.asarray(error)[: len(part)]
            bar.advance(len(part))
    return codes, errors


def reconstruct(
    codes: Int[np.ndarray, "n levels"], codebooks: Float[np.ndarray, "levels size d"]
) -> Float[np.ndarray, "n d"]:
    """The sum of codewords that codes stand for.

    Raises:
      InputError: codes that the codebooks do not have.
    """
    codes, codebooks = np.asarray(codes), np.asarray(codebooks)
    levels, size, _ = codebooks.shape
    if codes.ndim != 2 or codes.shape[1] != levels or (codes.size and not 0 <= codes.min() <= codes.max() < size):
        raise InputError(
            "a code is none of these codebooks'", f"Give integers [n, {levels}] below {size}.", value=codes.shape
        )
    total = np.zeros((len(codes), codebooks.shape[2]), np.float32)
    for level in range(levels):
        total += codebooks[level][codes[:, level]]
    return total


def _refitted(
    points: Float[np.ndarray, "n d"], codebooks: Float[np.ndarray, "levels size d"], refits: int, progress: bool
) -> Float[np.ndarray, "levels size d"]:
    """The best codebooks of so many rounds; those that are given, where it is 0."""
    best, least = codebooks, math.inf
    with progress_bars.bar("Fitting codebooks together", refits, enabled=progress and refits > 0) as bar:
        for number in range(refits + 1 if refits else 0):  # the codebooks of the last round are judged too
            codes, errors = quantize(points, codebooks, beams=_REFIT_BEAMS)
            error = float(errors.mean(dtype=np.float64))
            if error >= least:
                break
            best, least = codebooks, error
            if number < refits:
                codebooks = fit_to_codes(points, codes, codebooks)
                bar.advance(1)
    return best


def fit_to_codes(
    points: Float[np.ndarray, "n d"],
    codes: Int[np.ndarray, "n levels"],
    codebooks: Float[np.ndarray, "levels size d"],
) -> Float[np.ndarray, "levels size d"]:
    """All codewords together, by least squares: the sums of codewords are to be near their points. Each codeword counts
    as one more point, which lies where it was; so one that few points or none have stays near there.

    Args:
      points: [n, d].
      codes: which codewords stand for each point.
      codebooks: as they were.
    """
    from scipy import sparse

    levels, size, _ = codebooks.shape
    columns = codes + size * np.arange(levels)
    ones, rows = np.ones(columns.size), np.arange(len(codes) + 1) * levels
    chosen = sparse.csr_matrix((ones, columns.reshape(-1), rows), shape=(len(codes), levels * size))
    both = (chosen.T @ chosen).toarray()  # points that have both codewords: [levels · size, levels · size]
    left = points.astype(np.float64) - reconstruct(codes, codebooks)
    moved = np.linalg.solve(both + np.eye(len(both)), chosen.T @ left)
    return (codebooks + moved.reshape(codebooks.shape)).astype(np.float32)


def _train_codebook(
    residuals: Float[Array, "n d"], first: Int[np.ndarray, " size"], iterations: int
) -> Float[Array, "size d"]:
    """k-means that starts from the points `first`, in few principal dimensions, and goes on in more and more of them.

    What is left of vectors has no clusters to speak of, and in hundreds of dimensions Lloyd's algorithm hardly moves
    from where it starts; in a few dimensions it does, and each solution is a good start for more dimensions.
    """
    axes, turned = _principal_axes(residuals)
    width = turned.shape[1]
    widths = sorted({math.ceil(width ** (step / _GROWING_STEPS)) for step in range(1, _GROWING_STEPS + 1)})
    centers = turned[first, : widths[0]]  # --> [size, 1 or more]
    for dimensions in widths:
        centers = jnp.pad(centers, ((0, 0), (0, dimensions - centers.shape[1])))
        steps = iterations if dimensions == width else -(-iterations // 2)
        centers = lloyd.fit_from(turned[:, :dimensions], centers, iterations=steps)
    return jnp.matmul(centers, axes.T, precision=lloyd.EXACT)


@jax.jit
def _principal_axes(points: Float[Array, "n d"]) -> tuple[Float[Array, "d d"], Float[Array, "n d"]]:
    """Orthonormal axes by falling variance, and the points in them."""
    centered = points - jnp.mean(points, axis=0)
    _, axes = jnp.linalg.eigh(jnp.matmul(centered.T, centered, precision=lloyd.EXACT))
    axes = axes[:, ::-1]
    return axes, jnp.matmul(points, axes, precision=lloyd.EXACT)


@jax.jit
def _subtract_nearest(residuals: Float[Array, "n d"], codebook: Float[Array, "size d"]) -> Float[Array, "n d"]:
    nearest, _ = lloyd.first_minimum(lloyd.squared_distances(residuals, codebook))
    return residuals - codebook[nearest]


@functools.partial(jax.jit, static_argnames=("beams",))
def _quantize_chunk(
    points: Float[Array, "n d"], codebooks: Float[Array, "levels size d"], *, beams: int
) -> tuple[Int[Array, "n levels"], Float[Array, " n"]]:
    levels, size, d = codebooks.shape
    n = len(points)
    residuals = points[:, None]  # --> [n, 1, d]
    codes = jnp.zeros((n, 1, 0), jnp.int32)
    for level in range(levels):
        distances = lloyd.squared_distances(residuals.reshape(-1, d), codebooks[level])
        distances = distances.reshape(n, -1)  # --> [n, width * size]
        _, best = lax.top_k(-distances, min(beams, distances.shape[1]))  # --> [n, width]
        parent, code = best // size, best % size
        residuals = jnp.take_along_axis(residuals, parent[..., None], 1) - codebooks[level][code]  # --> [n, width, d]
        codes = jnp.concatenate([jnp.take_along_axis(codes, parent[..., None], 1), code[..., None]], axis=-1)
    return codes[:, 0], jnp.sum(residuals[:, 0] ** 2, axis=-1)

"""What vectors of r numbers can express (Corollary 3.3, appendix D)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from gr_jax.errors import InputError


def numeric_rank(scores: Float[np.ndarray, "m n"]) -> int:
    """The rank of a matrix of scores, as far as floats of their kind tell it from noise.

    Scores of bi-encoders, Q Dᵀ, have at most the rank of their vectors' width r; sums of c such matrices at most c · r.
    Late interaction takes a maximum over tokens, which is not bilinear: of its scores no such bound is known.
    """
    scores = np.asarray(scores)
    kind = scores.dtype if np.issubdtype(scores.dtype, np.floating) else np.dtype(np.float64)
    noise = max(scores.shape) * float(np.finfo(kind).eps)  # of the largest singular value
    return int(np.linalg.matrix_rank(scores.astype(np.float64), rtol=noise))


def low_rank_error(scores: Float[np.ndarray, "m n"], rank: int) -> float:
    """The least squared error with which a matrix of some rank can be these scores: Σ_{i > rank} σ_i² (Eckart & Young
    1936).

    Args:
      scores: wanted.
      rank: 0 or more.

    Raises:
      InputError: the rank is below 0.
    """
    if rank < 0:
        raise InputError("a rank is 0 or more", "Give the width of the vectors.", value=rank)
    return float((np.linalg.svd(np.asarray(scores, np.float64), compute_uv=False)[rank:] ** 2).sum())

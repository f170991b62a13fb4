"""Cross-entropy is entropy and divergence (Proposition 3.2, appendix A)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def entropy(target: Float[np.ndarray, "*batch n"]) -> Float[np.ndarray, "*batch"]:
    """H(P) = −Σ P log P, in nats.

    Args:
      target: distributions; 0 · log 0 is 0.
    """
    return cross_entropy(target, target)


def cross_entropy(
    target: Float[np.ndarray, "*batch n"], model: Float[np.ndarray, "*batch n"]
) -> Float[np.ndarray, "*batch"]:
    """CE(P, Q) = −Σ P log Q = H(P) + KL(P‖Q), in nats; infinite where Q lacks what P has.

    Args:
      target, model: distributions P and Q.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(target > 0, target * np.log(model), 0.0).sum(axis=-1)


def kl_divergence(
    target: Float[np.ndarray, "*batch n"], model: Float[np.ndarray, "*batch n"]
) -> Float[np.ndarray, "*batch"]:
    """KL(P‖Q) = Σ P log(P / Q), in nats; 0 where the two are one.

    Args:
      target, model: distributions P and Q.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(target > 0, target * np.log(target / model), 0.0).sum(axis=-1)

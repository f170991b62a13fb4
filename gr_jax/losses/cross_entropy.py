"""Token cross-entropy with label smoothing, z-loss and weights, over the vocabulary or over a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_NOT_ALLOWED = -1e10


class TokenLosses(NamedTuple):
    """One number per target token.

    Attributes:
      loss: smoothed cross-entropy plus z-loss; 0 where all of the target distribution is met.
      z_loss: the part of `loss` that is z-loss.
      log_prob: log-probability of the target, without smoothing.
      correct: whether the target has the largest logit.
    """

    loss: Float[Array, " ..."]
    z_loss: Float[Array, " ..."]
    log_prob: Float[Array, " ..."]
    correct: Bool[Array, " ..."]


def cross_entropy(
    logits: Float[Array, "... vocab"],
    targets: Int[Array, " ..."],
    *,
    allowed: Bool[Array, "... vocab"] | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> TokenLosses:
    """Cross-entropy of each target under the softmax of its logits.

    With smoothing ε over n tokens the target distribution is 1 − ε on the target and ε / (n − 1) on each other, and the
    distribution's own entropy is subtracted, so that a perfect prediction costs 0 (as in T5X).

    Args:
      logits: any float type; computed in float32.
      targets: token ids; where a target is not allowed, the loss is 0 (nothing could be learned from it).
      allowed: the support of the softmax and of the smoothing; None is the whole vocabulary.
      label_smoothing: ε.
      z_loss: weight of log²(Z), which keeps logits from drifting (Mesh TensorFlow; 1e-4 in T5 pretraining).
    """
    logits = logits.astype(jnp.float32)
    where = targets[..., None]
    if allowed is None:
        support: Array | float = float(logits.shape[-1])
        learnable = jnp.ones(targets.shape, bool)
    else:
        # Finite, so that rows in which nothing is allowed (padding) have gradients of 0 and not of NaN.
        logits = jnp.where(allowed, logits, _NOT_ALLOWED)
        support = jnp.sum(allowed, axis=-1, dtype=jnp.float32)
        learnable = jnp.take_along_axis(allowed, where, axis=-1, mode="clip")[..., 0]
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logit = jnp.take_along_axis(logits, where, axis=-1, mode="clip")[..., 0]
    log_prob = jnp.where(learnable, target_logit - log_z, 0.0)
    loss = -log_prob
    if label_smoothing > 0.0:
        others = jnp.maximum(support - 1.0, 1.0)
        low = jnp.where(support > 1.0, label_smoothing / others, 0.0)
        high = 1.0 - low * others
        finite = logits if allowed is None else jnp.where(allowed, logits, 0.0)
        all_log_probs = jnp.sum(finite, axis=-1) - support * log_z  # of the whole support
        entropy = -(high * jnp.log(high) + others * low * jnp.log(low + 1e-20))
        loss = -(high - low) * log_prob - low * all_log_probs - entropy
    z = z_loss * jnp.square(log_z)
    correct = learnable & (target_logit >= jnp.max(logits, axis=-1))
    return TokenLosses(jnp.where(learnable, loss + z, 0.0), jnp.where(learnable, z, 0.0), log_prob, correct)


def level_mask(
    levels: Sequence[tuple[int, int]], positions: Int[Array, " ..."], vocab_size: int, eos_id: int | None = None
) -> Bool[Array, "... vocab"]:
    """Which tokens compete at each position of a docid.

    Args:
      levels: (start, size) of the block of each position.
      positions: position in the docid; past the last level only EOS is left.
      vocab_size: of the mask.
      eos_id: competes everywhere, where docids end in it.
    """
    table = np.zeros((len(levels) + 1, vocab_size), bool)
    for level, (start, size) in enumerate(levels):
        table[level, start : start + size] = True
    if eos_id is not None:
        table[:, eos_id] = True
    return jnp.asarray(table)[jnp.clip(positions, 0, len(levels))]

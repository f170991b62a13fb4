"""Learning from a teacher's scores of a query's own documents: the positive and its negatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_MASKED = -1e10  # finite, so that rows in which nothing counts have gradients of 0 and not of NaN


def margin_mse(
    scores: Float[Array, "B k"], teacher_scores: Float[Array, "B k"], valid: Bool[Array, "B k"]
) -> Float[Array, " B"]:
    """Squared difference of the margins s⁺ − s⁻ of student and teacher (Hofstätter et al. 2020, eq. 5).

    Args:
      scores: the student's; column 0 is the positive.
      teacher_scores: the teacher's; may be anything where not valid.
      valid: which columns count. Without the positive or without any negative the loss of a row is 0.

    Returns:
      The mean over a row's negatives.
    """
    teacher_scores = _float(jnp.where(valid, teacher_scores, 0.0))
    scores = _float(scores)
    margins, targets = (x[:, :1] - x[:, 1:] for x in (scores, teacher_scores))  # [B, k − 1]
    counted = valid[:, 1:] & valid[:, :1]
    error = jnp.where(counted, jnp.square(margins - targets), 0.0)
    return jnp.sum(error, axis=1) / jnp.maximum(jnp.sum(counted, axis=1), 1)


def teacher_kl(
    scores: Float[Array, "B k"],
    teacher_scores: Float[Array, "B k"],
    valid: Bool[Array, "B k"],
    *,
    teacher_temperature: float = 1.0,
) -> Float[Array, " B"]:
    """KL(teacher ‖ student) of the softmax over a row's valid columns (RocketQAv2, Ren et al. 2021, eq. 4).

    Args:
      scores: the student's, divided by its temperature.
      teacher_scores: the teacher's; may be anything where not valid.
      valid: which columns count; with fewer than two the loss of a row is 0.
      teacher_temperature: divides the teacher's scores.
    """
    teacher_scores = _float(jnp.where(valid, teacher_scores / teacher_temperature, _MASKED))
    target = jax.nn.log_softmax(teacher_scores, axis=1)
    student = jax.nn.log_softmax(jnp.where(valid, _float(scores), _MASKED), axis=1)
    terms = jnp.where(valid, jnp.exp(target) * (target - student), 0.0)
    return jnp.sum(terms, axis=1)


def _float(x: Float[Array, "B k"]) -> Float[Array, "B k"]:
    """In 32 bits, or more where there are more."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))

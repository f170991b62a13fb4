"""R-Drop: two dropout passes over the same example should agree (Liang et al. 2021, eq. 2; NCI and GDR use it)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def symmetric_kl(
    logits: Float[Array, "... vocab"],
    other_logits: Float[Array, "... vocab"],
    *,
    allowed: Bool[Array, "... vocab"] | None = None,
) -> Float[Array, " ..."]:
    """½ (KL(p‖q) + KL(q‖p)) between two predictions of the same tokens.

    Args:
      logits, other_logits: of the two passes; computed in float32.
      allowed: the support of both softmaxes; None is the whole vocabulary.
    """
    first, second = (_log_softmax(x.astype(jnp.float32), allowed) for x in (logits, other_logits))
    terms = (jnp.exp(first) - jnp.exp(second)) * (first - second)
    if allowed is not None:
        terms = jnp.where(allowed, terms, 0.0)
    return 0.5 * jnp.sum(terms, axis=-1)


def _log_softmax(logits: Array, allowed: Array | None) -> Array:
    # Finite where masked, so that neither differences nor gradients become NaN.
    return jax.nn.log_softmax(logits if allowed is None else jnp.where(allowed, logits, -1e10), axis=-1)

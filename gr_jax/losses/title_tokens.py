"""Losses that bring a query near the tokens of its title, in whatever order these are written (Lee et al. 2022, arXiv
2210.02068, section 3.3 and C.2).

What a decoder gives before the first token is scored against the whole vocabulary. A query and a token of its title are
a pair, and every pair costs −log of the share that positives have of positives and negatives:

| loss | positives | negatives |
|---|---|---|
| "in_batch" (1) | the token | tokens of the batch's titles that are none of this query's |
| "one_positive" (2) | the token | all others of the vocabulary, its title's further tokens included |
| "all_positives" (3), the paper's | all tokens of the title | all others of the vocabulary |
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.errors import InputError

_MASKED = -1e10  # finite, so that a query without tokens has a gradient of 0 and not of NaN
TITLE_LOSSES = ("all_positives", "one_positive", "in_batch")


def title_token_losses(
    logits: Float[Array, "B vocab"], tokens: Int[Array, "B T"], name: str = "all_positives"
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """The sum over a query's pairs, and how many pairs it has.

    Args:
      logits: of every token of the vocabulary, before the first one is written.
      tokens: of the title; 0 is padding. A token that comes again is one more pair.
      name: of `TITLE_LOSSES`.

    Raises:
      InputError: a loss that is not there.
    """
    if name not in TITLE_LOSSES:
        raise InputError("unknown loss of title tokens", f"Choose one of {', '.join(TITLE_LOSSES)}.", value=name)
    logits = jnp.asarray(logits, jnp.float32)
    real = tokens != 0
    pairs = jnp.sum(real, axis=1).astype(jnp.float32)
    own = jnp.take_along_axis(logits, tokens, axis=1)  # --> [B, T]
    if name == "in_batch":
        others = jnp.where(_of_others(tokens, logits.shape[1]), logits, _MASKED)
        total = jnp.logaddexp(own, jax.nn.logsumexp(others, axis=1)[:, None])
    else:
        total = jax.nn.logsumexp(logits.at[:, 0].set(_MASKED), axis=1)[:, None]  # padding is no token
    if name == "all_positives":
        positive = _sum_of_different(own, tokens)[:, None]
        return jnp.where(pairs > 0, pairs * (total - positive)[:, 0], 0.0), pairs
    return jnp.sum(jnp.where(real, total - own, 0.0), axis=1), pairs


def _sum_of_different(own: Float[Array, "B T"], tokens: Int[Array, "B T"]) -> Float[Array, " B"]:
    """log Σ exp over a title's tokens, each once."""
    before = jnp.tril(tokens[:, :, None] == tokens[:, None, :], k=-1)
    counted = (tokens != 0) & ~jnp.any(before, axis=2)
    return jax.nn.logsumexp(jnp.where(counted, own, _MASKED), axis=1)


def _of_others(tokens: Int[Array, "B T"], vocab_size: int) -> Bool[Array, "B vocab"]:
    """Tokens that stand in the batch, and not in the query's own title."""
    rows = jnp.arange(len(tokens))[:, None]
    own = jnp.zeros((len(tokens), vocab_size), bool).at[rows, tokens].set(True)
    return (jnp.any(own, axis=0) & ~own).at[:, 0].set(False)

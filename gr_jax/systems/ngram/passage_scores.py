"""A student's score of a document, differentiable: that of the n-grams by which it was found (LTRGR, Li et al. 2023,
arXiv 2306.15222, section 3.3; DGR, Li et al. 2024, arXiv 2402.10769).

What n-grams count in a document, and for which share of their weight, was decided when it was retrieved (see
`retrievers.ngram_scorer`) and has no gradient; how likely they are is computed anew by teacher forcing. N-grams that
several documents of a list share stand in a batch once, what n-grams begin with is read once (`prefixes`), and so is
each question's view for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.retrievers.ngrams import NgramView

_SURE = 1e-10  # log-probabilities are so far below 0 at least: the logit of 1 is infinite


class NgramColumns(NamedTuple):
    """N-grams of a batch; rows are views of questions, those of one question side by side.

    Attributes:
      log_chance: float32[rows, n], log p(n), how likely each is anywhere; anything where there is none.
      single: bool[rows, n], tokens that count alone: without the power α.
      coefficients: float32[questions, documents, views · n], which share of its weight each n-gram of each view gives a
        document; 0 where it does not stand there.
    """

    log_chance: Float[Array, "rows n"]
    single: Bool[Array, "rows n"]
    coefficients: Float[Array, "questions documents every"]


def log_odds(log_prob: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logit of a probability, from its logarithm."""
    x = jnp.minimum(log_prob, -_SURE)
    return x - jnp.log(-jnp.expm1(x))


def ngram_log_probs(
    target_log_probs: Float[Array, "rows targets"],
    possible: Bool[Array, "rows targets"],
    ngrams: Int[Array, "rows n longest"],
) -> Float[Array, "rows n"]:
    """log p(n | q) of n-grams.

    Args:
      target_log_probs: of a token behind a prefix.
      possible: whether it can be written at all.
      ngrams: of which of these each n-gram is made; −1 is none.

    Returns:
      −inf of n-grams that cannot be written, 0 of none.
    """
    rows, there = jnp.arange(len(ngrams))[:, None, None], ngrams >= 0
    written = jnp.where(possible, target_log_probs, 0.0)[rows, ngrams]
    total = jnp.sum(jnp.where(there, written, 0.0), axis=-1)
    never = jnp.any(there & ~possible[rows, ngrams], axis=-1)
    return jnp.where(never, -jnp.inf, total)


def passage_scores(
    log_probs: Float[Array, "rows n"], columns: NgramColumns, views: Sequence[NgramView], alpha: float
) -> Float[Array, "questions documents"]:
    """s(q, d) = Σ_n w(n) · the share of it that d gets, w(n) = max(0, logit p(n|q) − logit p(n))^α; α = 1 of tokens
    that count alone.

    Args:
      log_probs: log p(n | q); −inf counts nothing.
      columns: the n-grams, and the documents' shares.
      views: of a question, in the order of its rows: what is added to log-probabilities, and where they end.
      alpha: of the scorer, as retrieval has it.
    """
    rows = len(log_probs)
    finite = jnp.isfinite(log_probs)
    log_probs = jnp.where(finite, log_probs, -1.0)
    of_rows = [views[row % len(views)] for row in range(rows)]
    shifts = jnp.array([view.shift or 0.0 for view in of_rows], jnp.float32)[:, None]
    mosts = jnp.array([jnp.inf if view.most is None else view.most for view in of_rows], jnp.float32)[:, None]
    log_probs = jnp.minimum(log_probs + shifts, mosts)
    above = jnp.where(finite, log_odds(log_probs) - log_odds(columns.log_chance), 0.0)
    counts = above > 0
    above = jnp.where(counts, above, 1.0)  # a power of 0 has no slope
    weights = jnp.where(counts, jnp.where(columns.single, above, above**alpha), 0.0)
    every = weights.reshape(rows // len(views), -1)  # --> [questions, views · n]
    return jnp.einsum("qdn,qn->qd", columns.coefficients, every, precision=jax.lax.Precision.HIGHEST)


def scores_of_batch(
    model,
    params,
    batch: Mapping[str, Array],
    views: Sequence[NgramView],
    alpha: float,
    dropout_rng: Array | None = None,
) -> Float[Array, "questions documents"]:
    """`passage_scores` of a batch, by one pass through the network.

    Args:
      model: a `CopyNetworkModel`.
      params: of the network.
      batch: encoder_input_tokens, optionally encoded; what `prefixes.empty` names; log_chance, single, coefficients:
        see `NgramColumns`.
      views, alpha: see `passage_scores`.
      dropout_rng: None switches dropout off.
    """
    targets, possible, _ = model.token_log_probs(params, batch, dropout_rng)
    log_probs = ngram_log_probs(targets, possible, batch["ngram_targets"])
    columns = NgramColumns(batch["log_chance"], batch["single"], batch["coefficients"])
    return passage_scores(log_probs, columns, views, alpha)

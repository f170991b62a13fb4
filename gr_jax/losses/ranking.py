"""Losses of ranked lists: a teacher's order, or its scores, of a query's documents, and a student's scores of them.

Every loss is a frozen dataclass and is called alike, `loss(scores, lists) -> [..., n]'s [...]`, so that they can be
exchanged. Places that hold no document are worth exactly nothing, wherever they stand.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from gr_jax.losses.batch_loss import check_above_zero, check_weights
from gr_jax.losses.distillation import teacher_kl

_MASKED = -1e10  # finite, so that lists of which nothing counts have gradients of 0 and not of NaN
Losses = Float[Array, "*lists"]
Scores = Float[Array, "*lists n"]


class RankedLists(NamedTuple):
    """Documents in the order that is to be learned, first to last.

    Attributes:
      valid: bool[..., n], which places hold a document; they need not be the first ones.
      teacher: float[..., n], the teacher's scores, for losses that read more of it than the order; anything where not
        valid. NaN stands for a document that the teacher has not scored: it counts by its place alone.
    """

    valid: Bool[Array, "*lists n"]
    teacher: Float[Array, "*lists n"]

    @property
    def rank(self) -> Int[Array, "*lists n"]:
        """Of each document among the valid ones of its list, from 0 on."""
        return jnp.cumsum(self.valid, axis=-1) - 1

    @property
    def pairs(self) -> Bool[Array, "*lists n n"]:
        """[..., i, j]: both are documents, and i stands before j."""
        before = jnp.triu(jnp.ones(2 * self.valid.shape[-1:], bool), k=1)
        return self.valid[..., :, None] & self.valid[..., None, :] & before

    @property
    def scored(self) -> Bool[Array, "*lists n"]:
        """Which documents the teacher has scored."""
        return self.valid & jnp.isfinite(self.teacher)


class RankingLoss(Protocol):
    """A loss of ranked lists. One that reads the teacher's scores, and not the order alone, divides them by a field
    `teacher_temperature`."""

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        """One number for each list; 0 where nothing is to be learned from it.

        Args:
          scores: the student's, higher for better documents; anything where not valid.
          lists: the documents' order.
        """
        ...


def _differences(scores: Scores, valid: Bool[Array, "*lists n"]) -> Float[Array, "*lists n n"]:
    """[..., i, j]: s_i − s_j; 0 where one is no document."""
    scores = jnp.where(valid, scores, 0.0)
    both = valid[..., :, None] & valid[..., None, :]
    return jnp.where(both, scores[..., :, None] - scores[..., None, :], 0.0)


def _mean(terms: Array, counted: Array, axis: int | tuple[int, ...]) -> Array:
    """The mean of what counts; 0 of nothing."""
    return jnp.sum(jnp.where(counted, terms, 0.0), axis=axis) / jnp.maximum(jnp.sum(counted, axis=axis), 1)


@dataclasses.dataclass(frozen=True)
class DistilledRankNet:
    """DGR's (Li et al. 2024, section 3.3; released code): i before j costs
    max(0, s_j − s_i + base + gap · (j − i − 1)), ranks counted from 0, weighted by `first` for the first document and
    by 1 / (i + 1) for the others; the mean over what is violated.

    Attributes:
      base: margin of neighbours.
      gap: that a margin grows by for each rank between the two.
      first: weight of the first document.
    """

    base: float = 300.0
    gap: float = 100.0
    first: float = 3.0

    def __post_init__(self):
        check_weights(self, "base", "gap", "first")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        rank = lists.rank
        apart = rank[..., None, :] - rank[..., :, None] - 1
        margins = self.base + self.gap * apart
        hinges = jax.nn.relu(margins - _differences(scores, lists.valid))
        weights = jnp.where(rank == 0, self.first, 1 / (jnp.maximum(rank, 0) + 1.0))[..., None]
        violated = lists.pairs & (weights * hinges > 0)
        return _mean(weights * hinges, violated, (-2, -1))


@dataclasses.dataclass(frozen=True)
class TwoMargins:
    """LTRGR's (Li et al. 2023, arXiv 2306.15222, section 3.3), of two lists a query: the first, behind the positive
    that the student scores highest, costs max(0, s(n) − s(p) + base) for the highest negative; the second, behind a
    positive at random, the same with base + gap for a negative at random, of which this takes the expectation.

    Attributes:
      base, gap: of the margins.
    """

    base: float = 300.0
    gap: float = 100.0

    def __post_init__(self):
        check_weights(self, "base", "gap")

    def __call__(self, scores: Float[Array, "*queries 2 n"], lists: RankedLists) -> Float[Array, "*queries 2"]:
        first = lists.rank == 0
        positive = jnp.sum(jnp.where(lists.valid & first, scores, 0.0), axis=-1, keepdims=True)
        negatives = lists.valid & ~first
        margins = jnp.array([self.base, self.base + self.gap])[:, None]
        hinges = jnp.where(negatives, jax.nn.relu(jnp.where(negatives, scores, 0.0) - positive + margins), 0.0)
        highest, expected = jnp.max(hinges, axis=-1), _mean(hinges, negatives, -1)
        return jnp.stack([highest[..., 0], expected[..., 1]], axis=-1)


@dataclasses.dataclass(frozen=True)
class ListwiseKL:
    """KL(teacher ‖ student) of the softmax over the documents that the teacher has scored.

    Attributes:
      temperature, teacher_temperature: divide the scores.
    """

    temperature: float = 1.0
    teacher_temperature: float = 1.0

    def __post_init__(self):
        check_above_zero(self, "temperature", "teacher_temperature")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        width = scores.shape[-1]
        rows = (x.reshape(-1, width) for x in (scores / self.temperature, lists.teacher, lists.scored))
        losses = teacher_kl(*rows, teacher_temperature=self.teacher_temperature)
        return losses.reshape(scores.shape[:-1])


@dataclasses.dataclass(frozen=True)
class ListNet:
    """ListNet's top-one cross-entropy (Cao et al. 2007, section 4), against the order alone: a document's relevance
    is 1 / (rank + 1).

    Attributes:
      temperature: divides the student's scores.
      sharpness: multiplies relevances, before their softmax.
    """

    temperature: float = 1.0
    sharpness: float = 1.0

    def __post_init__(self):
        check_above_zero(self, "temperature", "sharpness")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        relevance = self.sharpness / (jnp.maximum(lists.rank, 0) + 1.0)
        target = jax.nn.softmax(jnp.where(lists.valid, relevance, _MASKED), axis=-1)
        student = jax.nn.log_softmax(jnp.where(lists.valid, scores / self.temperature, _MASKED), axis=-1)
        several = jnp.sum(lists.valid, axis=-1) > 1
        return jnp.where(several, -jnp.sum(jnp.where(lists.valid, target * student, 0.0), axis=-1), 0.0)


@dataclasses.dataclass(frozen=True)
class ListMLE:
    """The negative log-likelihood of the order (Xia et al. 2008, eq. 9): Σ_i log Σ_{j ≥ i} exp s_j − s_i.

    Attributes:
      temperature: divides the student's scores.
    """

    temperature: float = 1.0

    def __post_init__(self):
        check_above_zero(self, "temperature")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        scores = jnp.where(lists.valid, scores / self.temperature, _MASKED)
        rest = jax.lax.cumlogsumexp(scores, axis=scores.ndim - 1, reverse=True)
        return jnp.sum(jnp.where(lists.valid, rest - scores, 0.0), axis=-1)


@dataclasses.dataclass(frozen=True)
class RankNet:
    """The mean over pairs of log(1 + exp(s_j − s_i)), i before j (Burges et al. 2005, section 3).

    Attributes:
      temperature: divides the student's scores.
    """

    temperature: float = 1.0

    def __post_init__(self):
        check_above_zero(self, "temperature")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        above = _differences(scores, lists.valid) / self.temperature
        return _mean(jax.nn.softplus(-above), lists.pairs, (-2, -1))


@dataclasses.dataclass(frozen=True)
class LambdaLoss:
    """NDCG-Loss2++ (Wang et al. 2018, eq. 18): the pairs of RankNet, in bits, weighted by what they cost in nDCG,
    (ρ_ij + μ · δ_ij) · |G_i − G_j|, as the student ranks now. A document's gain is the number of documents that stand
    behind it in the list; weights have no gradient.

    Attributes:
      temperature: divides the student's scores.
      mu: weight of δ beside ρ.
    """

    temperature: float = 1.0
    mu: float = 10.0

    def __post_init__(self):
        check_above_zero(self, "temperature")
        check_weights(self, "mu")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        above = _differences(scores, lists.valid) / self.temperature
        weights = jax.lax.stop_gradient(self._weights(scores, lists))
        bits = jax.nn.softplus(-above) / jnp.log(2.0)
        return jnp.sum(jnp.where(lists.pairs, weights * bits, 0.0), axis=(-2, -1))

    def _weights(self, scores: Scores, lists: RankedLists) -> Float[Array, "*lists n n"]:
        count = jnp.sum(lists.valid, axis=-1, keepdims=True)
        gains = jnp.where(lists.valid, count - 1.0 - lists.rank, 0.0)
        ideal = jnp.sum(gains * _discount(lists.rank), axis=-1, keepdims=True)
        gains = gains / jnp.maximum(ideal, 1e-12)
        falling = jnp.argsort(jnp.where(lists.valid, -scores, jnp.inf), axis=-1, stable=True)
        place = jnp.argsort(falling, axis=-1, stable=True)  # of each document in the student's ranking, from 0 on
        discounts = _discount(place)
        rho = jnp.abs(discounts[..., :, None] - discounts[..., None, :])
        apart = jnp.abs(place[..., :, None] - place[..., None, :])
        delta = jnp.abs(_discount(jnp.maximum(apart, 1) - 1) - _discount(apart))
        return (rho + self.mu * delta) * jnp.abs(gains[..., :, None] - gains[..., None, :])


def _discount(rank: Int[Array, ...]) -> Float[Array, ...]:
    """Of nDCG: 1 / log2(rank + 2), ranks counted from 0."""
    return 1 / jnp.log2(jnp.maximum(rank, 0) + 2.0)


@dataclasses.dataclass(frozen=True)
class MarginMSE:
    """Squared differences of the margins of student and teacher, between the first document and each other that the
    teacher has scored (Hofstätter et al. 2020, eq. 5).

    Attributes:
      temperature, teacher_temperature: divide the scores.
    """

    temperature: float = 1.0
    teacher_temperature: float = 1.0

    def __post_init__(self):
        check_above_zero(self, "temperature", "teacher_temperature")

    def __call__(self, scores: Scores, lists: RankedLists) -> Losses:
        counted = lists.scored
        first = counted & (lists.rank == 0)
        student = jnp.where(counted, scores / self.temperature, 0.0)
        teacher = jnp.where(counted, lists.teacher / self.teacher_temperature, 0.0)
        margins, targets = (jnp.sum(jnp.where(first, x, 0.0), axis=-1, keepdims=True) - x for x in (student, teacher))
        others = counted & ~first & jnp.any(first, axis=-1, keepdims=True)
        return _mean(jnp.square(margins - targets), others, -1)


RANKING_LOSSES = {
    "distilled_ranknet": DistilledRankNet,
    "two_margins": TwoMargins,
    "listwise_kl": ListwiseKL,
    "listnet": ListNet,
    "listmle": ListMLE,
    "ranknet": RankNet,
    "lambda_loss": LambdaLoss,
    "margin_mse": MarginMSE,
}


def reads_teacher(kind: Any) -> bool:
    """Whether losses of a class read the teacher's scores, and not the order alone."""
    return any(field.name == "teacher_temperature" for field in dataclasses.fields(kind))

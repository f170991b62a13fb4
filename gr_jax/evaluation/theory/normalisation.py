"""What a softmax over drawn documents lacks of one over all (Theorem 3.1, appendices B and E), corrected.

For one query let X = e^{s/τ} of a document drawn from the proposal π, Z = Σ_d e^{s_d/τ} over all N documents, and
Z_K = e^{s⁺/τ} + Σ_{i ≤ K} X_i over the positive and K negatives, drawn independently. With μ for the uniform
distribution let δ = log E_π[X] − log E_μ[X].

*Upper bound.* The logarithm is concave, so that E[log Z_K] ≤ log E[Z_K] = log(e^{s⁺/τ} + K E_π[X]); and log Z = log N +
log E_μ[X]. The difference is

    E[log Z_K − log Z] ≤ log(K/N) + δ + log(1 + e^{s⁺/τ} / (K E_π[X])).

*Lower tail.* X is not negative, so that E[X] − X is at most E[X], and Bernstein's inequality says with t = 1 − e^{−ε}

    P[log mean(X_1 … X_K) ≤ log E_π[X] − ε] ≤ exp(−K t² / (2 (Var_π[X] / E_π[X]² + t/3))).

As Z_K is more than the sum of its negatives, log Z_K − log Z ≥ log(K/N) + δ − ε but for that probability.

*Errata.* The paper's Eq. 5 says that E[log Z_K − log Z] is at least log(N/K) − δ. Where the positive and its negatives
are different documents, Z_K is a part of Z, and the difference is below 0: that cannot be. Eq. 11 takes the logarithm
for convex. Eq. 12 and 16 have −δ where δ is meant. Appendix E leaves the positive out of Z_K, and with it the last term
of the bound. Eq. 15 has ε for t, which is larger.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jaxtyping import Float, Int

from gr_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class LocalNormalisation:
    """One query, and how its negatives are drawn.

    Attributes:
      scores: float [documents], of all documents.
      positive: number of the document that answers.
      negatives: K, drawn independently; a document may be drawn twice, and the positive too.
      temperature: τ.
      proposal: float [documents], the probability of each document to be drawn; None: all alike.

    Raises:
      InputError: one of them is out of its range.
    """

    scores: Float[np.ndarray, " documents"]
    positive: int
    negatives: int
    temperature: float = 1.0
    proposal: Float[np.ndarray, " documents"] | None = None

    def __post_init__(self):
        if np.ndim(self.scores) != 1 or not np.isfinite(self.scores).all():
            raise InputError("scores are one finite number for each document", "Leave others out.", value=self.scores)
        if not 0 < self.temperature < float("inf"):
            raise InputError("a temperature is a number above 0", "Use 1.", value=self.temperature)
        if self.negatives < 1:
            raise InputError("negatives are 1 or more", "Give how many are drawn.", value=self.negatives)
        if not 0 <= self.positive < len(self.scores):
            raise InputError("no document has the positive's number", "Give its place.", value=self.positive)
        if self.proposal is not None:
            shape, total = np.shape(self.proposal), float(np.sum(self.proposal))
            if shape != self.scores.shape or np.min(self.proposal) < 0 or abs(total - 1) > 1e-6:
                raise InputError("a proposal has a probability for each document", "Let their sum be 1.", value=total)

    @functools.cached_property
    def _scaled(self) -> Float[np.ndarray, " documents"]:
        return np.asarray(self.scores, np.float64) / self.temperature

    @functools.cached_property
    def _weights(self) -> Float[np.ndarray, " documents"]:
        """e^{s/τ}, of scores less the best: a common factor leaves every difference of logarithms as it is."""
        return np.exp(self._scaled - self._scaled.max())

    @functools.cached_property
    def _drawn(self) -> tuple[float, float]:
        """Mean and variance of the weight of a drawn document."""
        chances = np.full(len(self._weights), 1.0 / len(self._weights)) if self.proposal is None else self.proposal
        mean = float(chances @ self._weights)
        return mean, float(chances @ (self._weights - mean) ** 2)

    @property
    def bias(self) -> float:
        """δ: how much more a drawn document weighs than one of all, as a logarithm (Eq. 4)."""
        return float(np.log(self._drawn[0]) - np.log(self._weights.mean()))

    @property
    def share(self) -> float:
        """log(K / N)."""
        return float(np.log(self.negatives / len(self.scores)))

    @property
    def upper_bound(self) -> float:
        """Of E[log Z_K − log Z]."""
        return self.without_positive + float(np.log1p(self._weights[self.positive] / (self.negatives * self._drawn[0])))

    @property
    def without_positive(self) -> float:
        """The bound as appendix E would have it, whose Z_K lacks the positive: log(K/N) + δ. It does not hold."""
        return self.share + self.bias

    @property
    def as_printed(self) -> float:
        """The lower bound of Eq. 5: log(N/K) − δ. It does not hold."""
        return -self.share - self.bias

    def differences(self, samples: int, seed: int = 0) -> Float[np.ndarray, " samples"]:
        """log Z_K − log Z of some draws of the negatives."""
        drawn = self._draws(samples, seed)
        return np.log(self._weights[self.positive] + self._weights[drawn].sum(axis=1)) - np.log(self._weights.sum())

    def tail(self, epsilon: float) -> float:
        """At most so probable is it that the mean of the drawn weights is below its expectation by e^{−ε} or more.

        Args:
          epsilon: ε, above 0.
        """
        return self._bernstein(1.0 - float(np.exp(-epsilon)), epsilon)

    def tail_as_printed(self, epsilon: float) -> float:
        """The same as Eq. 15 has it. It does not hold."""
        return self._bernstein(epsilon, epsilon)

    def tail_seen(self, epsilon: float, samples: int, seed: int = 0) -> float:
        """The share of some draws whose mean weight is so far below."""
        means = self._weights[self._draws(samples, seed)].mean(axis=1)
        return float(np.mean(means <= self._drawn[0] * np.exp(-epsilon)))

    def _bernstein(self, deviation: float, epsilon: float) -> float:
        if not epsilon > 0:
            raise InputError("ε is above 0", "Use 0.5.", value=epsilon)
        mean, variance = self._drawn
        return float(np.exp(-self.negatives * deviation**2 / (2 * (variance / mean**2 + deviation / 3))))

    def _draws(self, samples: int, seed: int) -> Int[np.ndarray, "samples negatives"]:
        random = np.random.default_rng(seed)
        size = (samples, self.negatives)
        if self.proposal is None:
            return random.integers(0, len(self.scores), size)
        return random.choice(len(self.scores), size, p=self.proposal)

"""What beam search needs of a network."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from jaxtyping import Array, Int

from gr_jax.constraints.base import Scores

NORMALIZERS = ("vocabulary", "level", "constraint", "none")
LOGITS = ("constraint", "none")  # with these, scores that are asked for are logits

Features: TypeAlias = Any
Cache: TypeAlias = Any


class Decoder(Protocol):
    """One step of any network, for all hypotheses at once.

    Keys and values of a step are written once, at the slot of the hypothesis that computed them, and never reordered:
    when hypotheses are chosen, only their small rows of ancestors are. A network's self-attention of hypothesis k at
    step i so reads slot ancestors[b, k, j] of step j, for j ≤ i.

    Attributes:
      start_token: what every sequence is preceded by: the token that step 0 consumes. It may be any that the network
        reads, so that token 0 can be one like others.
    """

    @property
    def start_token(self) -> int: ...

    def step(
        self,
        tokens: Int[Array, "batch beam"],
        step: int | Array,
        ancestors: Int[Array, "batch beam max_len"],
        cache: Cache,
    ) -> tuple[Features, Cache]:
        """Consumes one token of each hypothesis.

        Args:
          tokens: the last token written, `start_token` at step 0. There may be fewer beams than the cache has slots.
          step: how many tokens were written before; a Python int where decoding is unrolled, else a scalar array.
          ancestors: the slot that wrote step j's keys and values on the path of each hypothesis, for j ≤ step; its own
            slot k at j = step. Arbitrary beyond.
          cache: what was written so far, and all that is known of the query.

        Returns:
          features [batch, beam, d] from which `scores` are made, and the cache.
        """
        ...

    def scores(self, features: Features, level: int | Array, normalize: str) -> Scores:
        """Scores of the token at position `level` of the docid.

        Args:
          features: of the same step.
          level: equals `step`.
          normalize: "vocabulary", "level", "constraint" or "none"; see `Scores`.
        """
        ...

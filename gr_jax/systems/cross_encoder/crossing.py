"""From settings to a cross-encoder with its first parameters, and to the scorer of texts around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gin
import jax
import numpy as np

from gr_jax.errors import InputError
from gr_jax.stages import contrastive, encoders
from gr_jax.stages.encoders import Encoders
from gr_jax.stages.settings import Settings, fields_of, setting
from gr_jax.systems.cross_encoder.network import POOLINGS, CrossEncoder, CrossEncoderConfig
from gr_jax.systems.cross_encoder.scorer import CrossEncoderScorer
from gr_jax.text import Vocabulary


@dataclasses.dataclass(frozen=True)
class PairNetwork(Settings):
    """What the network reads of `Crossing`."""

    pooling: str = setting("cls", choices=POOLINGS)
    # It starts as good as the sentence encoder is, and learns what reading both texts together adds.
    similarity: bool = True
    similarity_scale: float = 10.0
    max_sim_scale: float = 40.0


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Crossing(PairNetwork):
    """A cross-encoder around the encoder that `Encoders` names, and what it reranks.

    Attributes:
      pooling: of the pair's states: "cls", "mean" or "pooler".
      similarity: read both texts alone too, and start from their similarity, as good as the sentence encoder is.
      similarity_scale, max_sim_scale: what the cosine and the mean MaxSim count at first.
      softmax, pointwise: weights of the two losses.
      depth: documents of BM25's that are scored for a query.
    """

    softmax: float = setting(1.0, at_least=0)
    pointwise: float = setting(0.0, at_least=0)
    depth: int = setting(20, at_least=1)

    def check(self) -> None:
        if self.softmax + self.pointwise == 0:
            raise InputError(
                "Crossing has no loss", "Give softmax or pointwise a weight.", value=(self.softmax, self.pointwise)
            )

    @property
    def network(self) -> PairNetwork:
        """What the network reads; the rest is of its training and of the index."""
        return PairNetwork(**{field.name: getattr(self, field.name) for field in fields_of(PairNetwork)})


def make_network(settings: Encoders, network: PairNetwork, vocabulary: Vocabulary) -> tuple[CrossEncoder, dict | None]:
    """The network, and the encoder's pretrained parameters (None where it starts from scratch)."""
    config, pretrained = encoders.make_encoders(settings, vocabulary.size)
    return CrossEncoder(
        CrossEncoderConfig(
            config.encoder,
            pooling=network.pooling,
            similarity=network.similarity,
            similarity_scale=network.similarity_scale,
            max_sim_scale=network.max_sim_scale,
            query_length=settings.query_length,
            prefix_length=len(vocabulary.prefix),
            dropout_rate=settings.dropout,
        )
    ), pretrained


def make_scorer(module: CrossEncoder, params: Any, vocabulary: Vocabulary, settings: Encoders) -> CrossEncoderScorer:
    """The scorer of texts around a network, with the lengths of the index."""
    return CrossEncoderScorer(
        module,
        params,
        vocabulary,
        query_length=settings.query_length,
        max_length=settings.query_length + settings.document_length - len(vocabulary.prefix),
    )


def initial_scorer(
    settings: Encoders, network: PairNetwork, vocabulary: Vocabulary, seed: int
) -> tuple[CrossEncoderScorer, Mapping[str, Any] | None]:
    """A scorer with first parameters from `seed`, and the pretrained ones among them (None where the encoder starts
    from scratch)."""
    module, pretrained = make_network(settings, network, vocabulary)
    row = np.ones((1, 8), np.int32)
    params = contrastive.with_pretrained(jax.jit(module.init)(jax.random.key(seed), row, row)["params"], pretrained)
    return make_scorer(module, params, vocabulary, settings), pretrained

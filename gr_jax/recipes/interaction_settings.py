"""What recipes of late interaction and of cross-encoders can be told beside `dense_settings`."""

from __future__ import annotations

import dataclasses

import gin

from gr_jax.errors import InputError
from gr_jax.recipes.settings import Settings, at_least, one_of


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Interaction(Settings):
    """A late-interaction network around the encoder that `Encoders` names (whose pooling, projection and similarity do
    not count here), and its index.

    Attributes:
      dimension: of a token's vector.
      projection: what takes states to it starts "random", or as the "principal" axes of the documents' states, with
        which a pretrained encoder keeps what it knows.
      augmentation: tokens that queries are filled up to with [MASK], 32 in the paper; 0 fills nothing. What [MASK] is
        good for takes long training to learn: untrained it does harm.
      markers: put a token before queries and another before documents, as the paper; what a sentence encoder finds
        gets worse by them at first.
      skip_punctuation: no vectors for a document's punctuation.
      whole_text: a vector of the whole text beside those of the tokens.
      whole_text_weight: what it counts at first, where a token counts 1.
      token_weights: "uniform", or "learned" for queries.
      temperature: scores are divided by it in the loss.
      precision: of the index: "float32", "float16" or "int8".
      first: "" ranks all documents, "bm25" those that BM25 finds.
      depth: how many it finds.
    """

    dimension: int = 128
    projection: str = "principal"
    augmentation: int = 0
    markers: bool = False
    skip_punctuation: bool = True
    whole_text: bool = False
    whole_text_weight: float = 1.0
    token_weights: str = "uniform"
    temperature: float = 1.0
    precision: str = "float16"
    first: str = ""
    depth: int = 100

    def __post_init__(self):
        one_of("Interaction.projection", self.projection, "random", "principal")
        one_of("Interaction.token_weights", self.token_weights, "uniform", "learned")
        one_of("Interaction.precision", self.precision, "float32", "float16", "int8")
        one_of("Interaction.first", self.first, "", "bm25")
        at_least(0, augmentation=self.augmentation)
        at_least(1, dimension=self.dimension, depth=self.depth)
        if not self.temperature > 0:
            raise InputError("Interaction.temperature is not positive", "Set it to 1.", value=self.temperature)


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Crossing(Settings):
    """A cross-encoder around the encoder that `Encoders` names, and what it reranks.

    Attributes:
      pooling: of the pair's states: "cls", "mean" or "pooler".
      similarity: read both texts alone too, and start from their similarity, as good as the sentence encoder is.
      similarity_scale, max_sim_scale: what the cosine and the mean MaxSim count at first.
      softmax, pointwise: weights of the two losses.
      depth: documents of BM25's that are scored for a query.
    """

    pooling: str = "cls"
    similarity: bool = True
    similarity_scale: float = 10.0
    max_sim_scale: float = 40.0
    softmax: float = 1.0
    pointwise: float = 0.0
    depth: int = 20

    def __post_init__(self):
        one_of("Crossing.pooling", self.pooling, "cls", "mean", "pooler")
        at_least(1, depth=self.depth)
        if min(self.softmax, self.pointwise) < 0 or self.softmax + self.pointwise == 0:
            raise InputError(
                "Crossing has no loss", "Give softmax or pointwise a weight.", value=(self.softmax, self.pointwise)
            )

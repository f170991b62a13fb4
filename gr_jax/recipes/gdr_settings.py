"""What recipes that write clusters can be told beside `dense_settings` and `clusters`."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import gin

from gr_jax.dense.clustered import BACKENDS, check_codes
from gr_jax.errors import InputError
from gr_jax.recipes.settings import Settings, at_least, one_of
from gr_jax.retrievers import gdr_choice


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class Matching(Settings):
    """GDR's loss, L_cid + λ · L_intra, and what is compared.

    Attributes:
      start: what the encoder of queries starts from: the "document_encoder" (its side of queries), or the "pretrained"
        encoder.
      similarity: of query and document: "tanh" of the product (the paper's), "cosine" or "dot".
      temperature: τ; similarities are divided by it.
      alpha: α, what the answer and a negative of its own cluster weigh where another document of the batch weighs 1.
      intra_weight: λ.
      rdrop: weight of the symmetric KL between two passes with dropout (.15 in the paper); 0 makes one pass, in half
        the time.
    """

    start: str = "document_encoder"
    similarity: str = "cosine"
    temperature: float = 0.02
    alpha: float = 1.0
    intra_weight: float = 1.0
    rdrop: float = 0.0

    def __post_init__(self):
        one_of("Matching.start", self.start, "document_encoder", "pretrained")
        one_of("Matching.similarity", self.similarity, "tanh", "cosine", "dot")
        for name in ("temperature", "alpha"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"Matching.{name} is not above 0", "Set it to 1.", value=getattr(self, name))
        for name in ("intra_weight", "rdrop"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"Matching.{name} is below 0", "Set it to 0.", value=getattr(self, name))


@gin.configurable(module="gr_jax.recipes")
@dataclasses.dataclass(frozen=True)
class ClusterSearch(Settings):
    """How clusters are written and searched.

    Attributes:
      beams: hypotheses kept; at least the widest level of the identifiers makes the choice of clusters exhaustive.
      normalize: clusters' scores are log-probabilities over the "vocabulary" or the "level", in training too.
      length_penalty: of the beam search.
      betas: weights of the clusters' scores, of which dev chooses. The first is what training looks at dev with, and
        what is taken without a dev split.
      chosen: numbers of clusters looked into, of which dev chooses.
      measure: what is to be highest on dev.
      most_share: largest share of the documents that may be scored for a query, in the mean. During training, and
        without a dev split, as many of the clusters are looked into.
      codes: "row" or "dimension" searches int8 codes with such scales, and scores what they find exactly; "" searches
        the vectors.
      backend: of the search inside clusters on a host: "numba", "xla", "scann" (without codes), or "auto", by what is
        installed.
      max_query_length: tokens read of a query.
    """

    beams: int = 128
    normalize: str = "level"
    length_penalty: float = 0.0
    betas: Sequence[float] = gdr_choice.BETAS
    chosen: Sequence[int] = gdr_choice.CHOSEN
    measure: str = "RR@10"
    most_share: float = 0.14
    codes: str = ""
    backend: str = "auto"
    max_query_length: int = 64

    def __post_init__(self):
        one_of("ClusterSearch.normalize", self.normalize, "vocabulary", "level")
        one_of("ClusterSearch.codes", self.codes, "", "row", "dimension")
        one_of("ClusterSearch.backend", self.backend, "auto", *BACKENDS)
        check_codes(self.backend, self.codes or None)
        at_least(1, beams=self.beams, max_query_length=self.max_query_length)
        if not _is_list(self.betas, lambda value: isinstance(value, numbers.Real) and 0 <= float(value) < math.inf):
            raise InputError(
                "ClusterSearch.betas is no list of numbers of 0 or more", "Set it to [0.0, 0.1].", value=self.betas
            )
        if not _is_list(self.chosen, lambda value: isinstance(value, numbers.Integral) and int(value) >= 1):
            raise InputError(
                "ClusterSearch.chosen is no list of whole numbers of 1 or more",
                "Set it to [10, 20].",
                value=self.chosen,
            )
        if not math.isfinite(self.length_penalty):
            raise InputError("ClusterSearch.length_penalty is no number", "Set it to 0.", value=self.length_penalty)
        if not 0 < self.most_share <= 1:
            raise InputError("ClusterSearch.most_share is no share", "Set it to 0.15.", value=self.most_share)


def _is_list(values: Any, accepted: Callable[[Any], bool]) -> bool:
    """Something to choose from: not empty, all accepted."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        return False
    return len(values) > 0 and all(not isinstance(value, bool) and accepted(value) for value in values)

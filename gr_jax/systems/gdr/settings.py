"""GDR's own settings, beside those that its stages share with other systems."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import gin

from gr_jax import evaluation
from gr_jax.dense.clustered import BACKENDS, check_codes
from gr_jax.errors import InputError
from gr_jax.stages.settings import Settings, setting
from gr_jax.systems.gdr import choice


@gin.register(module="gr_jax")
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
      rdrop: weight of the symmetric KL between two passes with dropout (.15 in the paper); None makes one pass, in
        half the time.
    """

    start: str = setting("document_encoder", choices=("document_encoder", "pretrained"))
    similarity: str = setting("cosine", choices=("tanh", "cosine", "dot"))
    temperature: float = setting(0.02, above=0)
    alpha: float = setting(1.0, above=0)
    intra_weight: float = setting(1.0, at_least=0)
    rdrop: float | None = setting(None, above=0)


_MEASURE = "RR@10"


@gin.register(module="gr_jax")
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
      codes: "row" or "dimension" searches int8 codes with such scales, and scores what they find exactly; None
        searches the vectors.
      backend: of the search inside clusters on a host: "numba", "xla", "scann" (without codes), or "auto", by what is
        installed.
      max_query_length: tokens read of a query that is answered. It changes no training: that reads
        `Encoders.query_length` of a query, and looks at dev with 64.
    """

    beams: int = setting(128, at_least=1)
    normalize: str = setting("level", choices=("vocabulary", "level"))
    length_penalty: float = 0.0
    betas: Sequence[float] = setting(choice.BETAS, at_least=0)
    chosen: Sequence[int] = setting(choice.CHOSEN, at_least=1)
    measure: str = _MEASURE
    most_share: float = setting(0.14, above=0, at_most=1)
    codes: str | None = setting(None, choices=(None, "row", "dimension"))
    backend: str = setting("auto", choices=("auto", *BACKENDS))
    max_query_length: int = setting(64, at_least=3)

    def check(self) -> None:
        check_codes(self.backend, self.codes)
        for name in ("betas", "chosen"):
            if not getattr(self, name):
                raise InputError(f"ClusterSearch.{name} is empty", "Give at least one to choose.", value=())
        # The default is one measure: where the package of measures is not installed, there are systems all the same.
        if self.measure != _MEASURE and len(evaluation.parse_measures(self.measure)) != 1:
            raise InputError(
                "several measures to choose by", 'Set ClusterSearch.measure = "RR@10".', value=self.measure
            )

    @property
    def look(self) -> Look:
        """The search by which training looks at dev."""
        return Look(
            beams=self.beams,
            normalize=self.normalize,
            length_penalty=self.length_penalty,
            beta=self.betas[0],
            most_share=self.most_share,
            codes=self.codes,
            backend=self.backend,
        )


@dataclasses.dataclass(frozen=True)
class Look(Settings):
    """What of `ClusterSearch` a look at dev reads: one weight, and as many clusters as are a share of the documents."""

    beams: int
    normalize: str
    length_penalty: float
    beta: float
    most_share: float
    codes: str | None
    # ScaNN's scores are rounded; the others find the same.
    backend: str = setting("auto", identity=lambda backend: "scann" if backend == "scann" else "exact")

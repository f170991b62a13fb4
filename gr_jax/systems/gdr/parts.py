"""Whether what a `GDRRetriever` is made of fits together."""

from __future__ import annotations

from gr_jax import models, text
from gr_jax.dense import ClusteredSearch
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.models.bi_encoder import SIMILARITIES
from gr_jax.models.text_encoder import POOLINGS
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.network_checks import check_network


def check_parts(
    module: models.EncoderDecoder,
    vocabulary: text.Vocabulary,
    cids: Docids,
    searcher: ClusteredSearch,
    document_encoder: DenseEncoder | None,
    similarity: str,
    normalize: str,
) -> None:
    """Raises InputError for parts that were not made for each other."""
    check_network(module, vocabulary, cids, normalize, cids.levels)
    if searcher.num_clusters != len(cids):
        raise InputError(
            f"{len(cids)} identifiers for {searcher.num_clusters} clusters",
            "Make it with the clusters of these: ClusteredSearch(vectors, docids.memberships(cids), num_clusters=…).",
        )
    widths = {"the queries": module.encoder_config.emb_dim}
    if document_encoder is not None:
        widths["the document encoder"] = document_encoder.dimension
    for whose, width in widths.items():
        if width != searcher.width:
            raise InputError(
                f"vectors of {searcher.width} numbers, and those of {whose} have {width}",
                "Use encoders of the same width, and the vectors that they gave.",
            )
    if similarity == "cosine" and document_encoder is not None and document_encoder.config.similarity != "cosine":
        raise InputError(
            "cosine similarity needs vectors of unit length, and this document encoder gives others",
            'Set similarity = "dot" or "tanh", or use an encoder whose similarity is "cosine".',
            value=document_encoder.config.similarity,
        )


def check_settings(beams: int, chosen: int | None, beta: float, similarity: str, pooling: str) -> None:
    """Raises InputError for settings that are unknown, or by which nothing could be found."""
    if similarity not in SIMILARITIES or pooling not in POOLINGS:
        raise InputError(
            "unknown similarity or pooling",
            f"Choose among {', '.join(SIMILARITIES)}; {', '.join(POOLINGS)}.",
            value=(similarity, pooling),
        )
    if beams < 1 or (chosen is not None and chosen < 1):
        raise InputError(
            "at least one cluster must be looked into", "Give beams ≥ 1 and chosen ≥ 1.", value=(beams, chosen)
        )
    if not 0 <= beta < float("inf"):
        raise InputError("beta weighs the clusters' scores", "Give a number of 0 or more.", value=beta)

"""The kinds of retrievers and networks of the layers, each registered by an explicit call.

Loaders import what they need when they are called, so that a search for words brings no networks with it. What a system
has of its own it registers in its room.
"""

from __future__ import annotations

import os
from typing import Any

from gr_jax.registry import DOCUMENTS_OF, NETWORKS
from gr_jax.retrievers import index


def _generative(folder: str | os.PathLike, *, verify: bool = True) -> Any:
    from gr_jax.retrievers.generative import GenerativeRetriever

    return GenerativeRetriever.load(folder, verify=verify)


def _bm25(folder: str | os.PathLike, corpus: Any, *, verify: bool = True) -> Any:
    from gr_jax.retrievers.lexical import BM25

    return BM25.load(folder, corpus, verify=verify)


def _dense(folder: str | os.PathLike, *, verify: bool = True) -> Any:
    from gr_jax.retrievers.dense import DenseRetriever

    return DenseRetriever.load(folder, verify=verify)


def _hybrid(folder: str | os.PathLike, corpus: Any, *, verify: bool = True) -> Any:
    from gr_jax.retrievers.hybrid import HybridRetriever

    return HybridRetriever.load(folder, corpus, verify=verify)


def _rerank(folder: str | os.PathLike, corpus: Any, *, verify: bool = True) -> Any:
    from gr_jax.retrievers.rerank import RerankRetriever

    return RerankRetriever.load(folder, corpus, verify=verify)


def _encoder_decoder(folder: str | os.PathLike) -> Any:
    from gr_jax.models import GenerativeDecoder

    return GenerativeDecoder.load(folder)


def _decoder_only(folder: str | os.PathLike) -> Any:
    from gr_jax.models import PromptedDecoder

    return PromptedDecoder.load(folder)


def _copying(folder: str | os.PathLike) -> Any:
    from gr_jax.models.copying import CopyDecoder

    return CopyDecoder.load(folder)


def _copying_ids(folder: str | os.PathLike) -> Any:
    from gr_jax.models.copying_ids import CopyingDecoder

    return CopyingDecoder.load(folder)


def _best_docid(folder: str | os.PathLike, settings: dict[str, Any]) -> Any:
    from gr_jax.retrievers.documents_of import BestDocid

    return BestDocid.load(folder, settings)


def _ngrams(folder: str | os.PathLike, settings: dict[str, Any]) -> Any:
    from gr_jax.retrievers.ngrams import NgramAggregation

    return NgramAggregation.load(folder, settings)


index.register("generative", _generative)
index.register("bm25", _bm25, reads_corpus=True)
index.register("dense", _dense)
index.register("hybrid", _hybrid, reads_corpus=True)
index.register("rerank", _rerank, reads_corpus=True)

NETWORKS.register("encoder_decoder", _encoder_decoder)
NETWORKS.register("decoder_only", _decoder_only)
NETWORKS.register("copying", _copying)
NETWORKS.register("copying_ids", _copying_ids)

DOCUMENTS_OF.register("best_docid", _best_docid)
DOCUMENTS_OF.register("ngrams", _ngrams)

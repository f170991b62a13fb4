"""Text in, ranking out: every way to find documents, behind one interface."""

import importlib
from typing import TYPE_CHECKING

from gr_jax.retrievers.base import Evidence as Evidence
from gr_jax.retrievers.base import Ranking as Ranking
from gr_jax.retrievers.base import Retriever as Retriever
from gr_jax.retrievers.base import ranking_to_run as ranking_to_run
from gr_jax.retrievers.base import retrieve_all as retrieve_all
from gr_jax.retrievers.base import retrieve_run as retrieve_run
from gr_jax.retrievers.base import stack_rankings as stack_rankings
from gr_jax.retrievers.lexical import BM25 as BM25
from gr_jax.retrievers.searcher import Hit as Hit
from gr_jax.retrievers.searcher import Searcher as Searcher

if TYPE_CHECKING:
    from gr_jax.retrievers.dense import DenseRetriever as DenseRetriever
    from gr_jax.retrievers.dense_encoder import DenseEncoder as DenseEncoder
    from gr_jax.retrievers.generative import GenerativeRetriever as GenerativeRetriever
    from gr_jax.retrievers.hybrid import HybridRetriever as HybridRetriever
    from gr_jax.retrievers.rerank import RerankRetriever as RerankRetriever

# Name → the module that defines it. They bring networks with them, which searching for words does without.
_LAZY = {
    "DenseEncoder": "dense_encoder",
    "DenseRetriever": "dense",
    "GenerativeRetriever": "generative",
    "HybridRetriever": "hybrid",
    "RerankRetriever": "rerank",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(importlib.import_module(f"gr_jax.retrievers.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

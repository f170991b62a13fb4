"""Text in, ranking out: every way to find documents, behind one interface."""

from typing import TYPE_CHECKING

from gr_jax import lazy

if TYPE_CHECKING:
    from gr_jax.retrievers.base import Evidence as Evidence
    from gr_jax.retrievers.base import Ranking as Ranking
    from gr_jax.retrievers.base import Retriever as Retriever
    from gr_jax.retrievers.base import ranking_to_run as ranking_to_run
    from gr_jax.retrievers.base import retrieve_all as retrieve_all
    from gr_jax.retrievers.base import retrieve_run as retrieve_run
    from gr_jax.retrievers.base import stack_rankings as stack_rankings
    from gr_jax.retrievers.dense import DenseRetriever as DenseRetriever
    from gr_jax.retrievers.dense_encoder import DenseEncoder as DenseEncoder
    from gr_jax.retrievers.generative import GenerativeRetriever as GenerativeRetriever
    from gr_jax.retrievers.hybrid import HybridRetriever as HybridRetriever
    from gr_jax.retrievers.lexical import BM25 as BM25
    from gr_jax.retrievers.rerank import RerankRetriever as RerankRetriever
    from gr_jax.retrievers.searcher import Hit as Hit
    from gr_jax.retrievers.searcher import Searcher as Searcher

__getattr__, __dir__, __all__ = lazy.names(__name__)  # pyright: ignore[reportUnsupportedDunderAll]

"""Text in, ranking out: every way to find documents, behind one interface."""

from typing import TYPE_CHECKING

from gr_jax.retrievers.base import Evidence as Evidence
from gr_jax.retrievers.base import Ranking as Ranking
from gr_jax.retrievers.base import Retriever as Retriever
from gr_jax.retrievers.base import ranking_to_run as ranking_to_run
from gr_jax.retrievers.base import retrieve_run as retrieve_run
from gr_jax.retrievers.base import stack_rankings as stack_rankings
from gr_jax.retrievers.index import load as load
from gr_jax.retrievers.lexical import BM25 as BM25
from gr_jax.retrievers.searcher import Hit as Hit
from gr_jax.retrievers.searcher import Searcher as Searcher

if TYPE_CHECKING:
    from gr_jax.retrievers.generative import GenerativeRetriever as GenerativeRetriever


def __getattr__(name: str) -> object:
    # It brings networks with it, which searching for words does without.
    if name == "GenerativeRetriever":
        from gr_jax.retrievers.generative import GenerativeRetriever

        return GenerativeRetriever
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

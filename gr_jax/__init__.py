"""Generative retrieval in JAX: give documents identifiers, train a model to write them, search by constrained decoding.

    dataset = gr_jax.Dataset.from_texts(["Cats sleep all day.", "Owls see at night."])
    searcher = gr_jax.systems.BM25().run(dataset, "runs/mine")
    searcher.search("who sees at night?", k=1)
    gr_jax.load("runs/mine/index").search(["who sleeps?", "who sees?"], k=1)

Importing this package imports nothing heavy: names and submodules are imported when they are first used.
"""

from typing import TYPE_CHECKING

from gr_jax import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gr_jax import clustering as clustering
    from gr_jax import constraints as constraints
    from gr_jax import corpus as corpus
    from gr_jax import datasets as datasets
    from gr_jax import decoding as decoding
    from gr_jax import dense as dense
    from gr_jax import docids as docids
    from gr_jax import evaluation as evaluation
    from gr_jax import interop as interop
    from gr_jax import losses as losses
    from gr_jax import models as models
    from gr_jax import retrievers as retrievers
    from gr_jax import stages as stages
    from gr_jax import storage as storage
    from gr_jax import systems as systems
    from gr_jax import text as text
    from gr_jax import training as training
    from gr_jax.constraints import FMIndex as FMIndex
    from gr_jax.constraints import Trie as Trie
    from gr_jax.corpus import Corpus as Corpus
    from gr_jax.corpus import Dataset as Dataset
    from gr_jax.decoding.beam_search import beam_search as beam_search
    from gr_jax.docids import Docids as Docids
    from gr_jax.errors import InputError as InputError
    from gr_jax.evaluation import evaluate as evaluate
    from gr_jax.opening import load as load
    from gr_jax.retrievers import Hit as Hit
    from gr_jax.retrievers import Searcher as Searcher
    from gr_jax.systems import System as System

__getattr__, __dir__, __all__ = lazy.names(__name__)  # pyright: ignore[reportUnsupportedDunderAll]

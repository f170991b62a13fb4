"""The stage of BM25, which stands beside every system: negatives are mined with it, and results are read against it."""

from __future__ import annotations

import dataclasses
import pathlib

import gin

from gr_jax import retrievers
from gr_jax.corpus import Dataset
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.settings import Settings, setting


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Lexical(Settings):
    """BM25, which stands beside every system.

    Attributes:
      k1, b: of BM25.
      analyzer: "english", or "character_bigrams" for languages written without spaces.
    """

    k1: float = setting(0.9, at_least=0)
    b: float = setting(0.4, at_least=0, at_most=1)
    analyzer: str = setting("english", choices=("english", "character_bigrams"))


@stage(shared=True)
def bm25(place: Place, corpus: pathlib.Path, *, settings: Lexical) -> None:
    """BM25 of the documents."""
    dataset = load_dataset(corpus)
    made = retrievers.BM25(
        dataset.corpus,
        k1=settings.k1,
        b=settings.b,
        analyzer=settings.analyzer,
        transform=dataset.transform,
        progress=True,
    )
    made.save(place.folder / "bm25")
    place.notes["documents"] = made.num_documents


def load_bm25(folder: pathlib.Path, dataset: Dataset) -> retrievers.BM25:
    """The BM25 of a finished stage."""
    return retrievers.BM25.load(folder / "bm25", dataset.corpus)

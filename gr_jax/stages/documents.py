"""The first stage of every system: the documents, their queries and judgements, read once."""

from __future__ import annotations

import pathlib
import shutil

from gr_jax import corpus as corpus_lib
from gr_jax.stages.graph import Place, stage
from gr_jax.stages.sources import Source


@stage(shared=True)
def corpus(place: Place, source: Source) -> None:
    """Reads the dataset into columns that are memory-mapped from then on."""
    dataset = source.load(place.folder / "columns")
    dataset.save(place.folder / "dataset")
    shutil.rmtree(place.folder / "columns", ignore_errors=True)  # the dataset has them too
    place.notes.update(dataset.fingerprint)


def load_dataset(folder: pathlib.Path) -> corpus_lib.Dataset:
    """The dataset of a finished corpus stage."""
    return corpus_lib.Dataset.load(folder / "dataset")

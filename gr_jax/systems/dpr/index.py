"""The stage of an index of vectors."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import gin

from gr_jax import dense
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.stages.documents import load_dataset
from gr_jax.stages.graph import Place, Stage, stage
from gr_jax.stages.negatives import load_encoder
from gr_jax.stages.settings import Settings, setting
from gr_jax.stages.training import folder_bytes
from gr_jax.stages.vectors import UNREAD, searched


@gin.register(module="gr_jax")
@dataclasses.dataclass(frozen=True)
class Search(Settings):
    """How the index searches its vectors.

    Attributes:
      searcher: "exact", "scann", "clustered", or "auto": by what is installed and how many documents there are.
      settings: of the searcher.
      most_sentences: of a document that get a vector of their own beside the document's; it is found by the best of
        them. None: one vector a document, or of long documents as `unread` says.
      unread: where more than this share of the documents' tokens stands behind the first 256 of a document, or behind
        `Encoders.document_length` where that is more, and `most_sentences` is None, long documents get a vector for
        each piece of `Encoders.document_length`. None: never.
      hybrid: put a combination with BM25, weighted on dev, into the results, and save it as `hybrid/index`.
    """

    searcher: str = setting("exact", choices=("auto", "exact", "scann", "clustered"))
    settings: Mapping[str, Any] = setting({})
    most_sentences: int | None = setting(None, at_least=1)
    unread: float | None = setting(UNREAD, at_least=0, at_most=1, neutral=UNREAD)
    hybrid: bool = True


def index_of(corpus: Stage, encoder: Stage, vectors: Stage, search: Search, in_pieces: Stage | None = None) -> Stage:
    """The stage of the index that settings name.

    Args:
      in_pieces: a stage of vectors of the documents' pieces, which are searched instead where it made some.
    """
    return index(
        corpus, encoder, vectors, in_pieces,
        searcher=search.searcher, settings=search.settings, most_sentences=search.most_sentences or 0,
        # What "auto" is depends on what is installed, and then the index does, too.
        installed=dense.installed() if search.searcher == "auto" else None,
    )  # fmt: skip


@stage()
def index(
    place: Place,
    corpus: pathlib.Path,
    encoder: pathlib.Path,
    vectors: pathlib.Path,
    in_pieces: pathlib.Path | None,
    *,
    searcher: str,
    settings: Mapping[str, Any],
    most_sentences: int,
    installed: Any,
) -> None:
    """All that answering needs, in one folder.

    Args:
      encoder: a stage of it, in the folder `encoder`.
      vectors: by it, of documents or of their sentences too.
      in_pieces: of the documents' pieces, which are searched instead where the stage made some.
      searcher, settings, most_sentences: see `Search`.
      installed: what "auto" chooses from.
    """
    del installed
    dataset = load_dataset(corpus)
    array, owner, pieces = searched(vectors, in_pieces, most_sentences)
    made = dense.make_searcher(searcher, array, say=print, **settings)
    retriever = DenseRetriever(load_encoder(encoder), made, owner, most_sentences=most_sentences, pieces=pieces)
    indexes.fill(place.folder, retriever, dataset.corpus)
    size = folder_bytes(place.folder)
    place.notes.update({"documents": len(dataset.corpus), "searcher": type(made).__name__, "bytes": size})

"""An index: all a retriever needs to answer, and the documents it answers with, as one folder."""

from __future__ import annotations

import importlib
import os
import pathlib
from typing import Any

from gr_jax import storage
from gr_jax.corpus import Corpus
from gr_jax.errors import InputError
from gr_jax.retrievers.searcher import Searcher

KIND = "index"
# What a retriever's folder says it is → where its class lives. A new system adds a line.
_RETRIEVERS = {
    "generative": "gr_jax.retrievers.generative:GenerativeRetriever",
    "bm25": "gr_jax.retrievers.lexical:BM25",
    "dense": "gr_jax.retrievers.dense:DenseRetriever",
    "gdr": "gr_jax.systems.gdr.retriever:GDRRetriever",
    "hybrid": "gr_jax.retrievers.hybrid:HybridRetriever",
    "late_interaction": "gr_jax.systems.colbert.retriever:LateInteractionRetriever",
    "rerank": "gr_jax.retrievers.rerank:RerankRetriever",
}
# Those that read the documents themselves when they answer or explain.
_READ_CORPUS = ("bm25", "hybrid", "late_interaction", "rerank")


def save(
    folder: str | os.PathLike, retriever: Any, corpus: Corpus, *, meta: dict[str, Any] | None = None, gin: str = ""
) -> None:
    """Writes an index, whole or not at all."""
    with storage.write_folder(folder, KIND, corpus=corpus.fingerprint, meta=meta, gin=gin) as new:
        fill(new, retriever, corpus)


def fill(folder: pathlib.Path, retriever: Any, corpus: Corpus) -> None:
    """Puts a retriever and its documents into a folder that somebody else finishes.

    Raises:
      InputError: the retriever was made for another number of documents.
    """
    _check_size(retriever, corpus, folder)
    retriever.save(folder / "retriever", corpus=corpus.fingerprint)
    corpus.save(folder / "corpus")


def load(folder: str | os.PathLike) -> Searcher:
    """Opens an index.

    Args:
      folder: what a system's index stage, or `save`, wrote (`MODEL_DIR/index`).

    Returns:
      A searcher: `load(folder).search("a question", k=5)`.

    Raises:
      InputError: the folder is no index, or was truncated or altered since it was written.
    """
    folder = pathlib.Path(folder)
    storage.read_folder(folder, KIND)  # checks every file, so the parts below need not
    corpus = Corpus.load(folder / "corpus", verify=False)
    retriever = load_retriever(folder / "retriever", corpus, verify=False)
    _check_size(retriever, corpus, folder)
    return Searcher(retriever, corpus)


def load_retriever(folder: str | os.PathLike, corpus: Corpus | None = None, *, verify: bool = True) -> Any:
    """Opens a retriever of any kind, without its documents.

    Args:
      folder: what its `save` wrote.
      corpus: the documents that it answers from, for the kinds that read them.
      verify: check the checksums.

    Raises:
      InputError: the folder holds no retriever of this version, or was altered.
    """
    folder = pathlib.Path(folder)
    kind = storage.read_folder(folder, verify=verify).kind
    if kind not in _RETRIEVERS:
        raise InputError(
            "this version of gr_jax has no such retriever",
            f"Use the version that wrote the index; this one has {', '.join(_RETRIEVERS)}.",
            file=folder,
            value=kind,
        )
    module, name = _RETRIEVERS[kind].split(":")
    load = getattr(importlib.import_module(module), name).load
    return load(folder, corpus, verify=False) if kind in _READ_CORPUS else load(folder, verify=False)


def _check_size(retriever: Any, corpus: Corpus, folder: pathlib.Path) -> None:
    if retriever.num_documents != len(corpus):
        raise InputError(
            f"a retriever of {retriever.num_documents} documents for a corpus of {len(corpus)}",
            "Use the corpus that the retriever was made from.",
            file=folder,
        )

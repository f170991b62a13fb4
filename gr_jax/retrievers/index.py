"""An index: all a retriever needs to answer, and the documents it answers with, as one folder.

A retriever's folder says of which kind it is. What stands above registers the kinds (`registry.RETRIEVERS`): nothing
is imported because a manifest names it.
"""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

from gr_jax import storage
from gr_jax.corpus import Corpus
from gr_jax.errors import InputError
from gr_jax.evaluation.temperature import Calibration
from gr_jax.registry import RETRIEVERS
from gr_jax.retrievers.searcher import Searcher
from gr_jax.storage.checksums import sha256

KIND = "index"
CALIBRATION = "calibration.json"  # beside what the manifest lists: it is measured later, and again


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
    with storage.explain_content(folder):
        corpus = Corpus.load(folder / "corpus", verify=False)
        retriever = load_retriever(folder / "retriever", corpus, verify=False)
        _check_size(retriever, corpus, folder)
    return Searcher(retriever, corpus, _load_calibration(folder))


def save_calibration(folder: str | os.PathLike, calibration: Calibration) -> None:
    """Keeps a calibration in the folder of its index, where `load` finds it.

    Raises:
      InputError: the folder is no index.
    """
    storage.read_folder(folder, KIND, verify=False)
    value = {"index": _identity(folder), **calibration.as_json()}
    storage.write_json(pathlib.Path(folder) / CALIBRATION, value)


def _load_calibration(folder: pathlib.Path) -> Calibration | None:
    """What `save_calibration` kept; None where there is nothing.

    Raises:
      InputError: it is damaged, or of another index.
    """
    file = folder / CALIBRATION
    storage.refuse_no_file(file)
    if not file.exists():
        return None
    again = "Measure it again: gr-jax calibrate; or remove the file."
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        index = value.pop("index", None) if isinstance(value, dict) else None
        calibration = Calibration.from_json(value)
    except (OSError, ValueError, RecursionError, InputError) as error:
        raise InputError(f"this calibration cannot be read: {error}", again, file=file) from error
    if index != _identity(folder):
        raise InputError("this calibration is of another index", again, file=file)
    return calibration


def _identity(folder: str | os.PathLike) -> str:
    """The checksum of its manifest, which holds those of its files: other parameters or documents give another."""
    return sha256(pathlib.Path(folder) / storage.MANIFEST)


def load_retriever(folder: str | os.PathLike, corpus: Corpus | None = None, *, verify: bool = True) -> Any:
    """Opens a retriever of any kind, without its documents.

    Args:
      folder: what its `save` wrote.
      corpus: the documents that it answers from, for the kinds that read them.
      verify: check the checksums.

    Raises:
      InputError: the folder holds no retriever of a registered kind, or was altered.
    """
    folder = pathlib.Path(folder)
    kind = storage.read_folder(folder, verify=verify).kind
    cls = RETRIEVERS.find(kind, file=folder)
    documents = (corpus,) if getattr(cls, "reads_corpus", False) else ()
    with storage.explain_content(folder):
        return cls.load(folder, *documents, verify=False)


def _check_size(retriever: Any, corpus: Corpus, folder: pathlib.Path) -> None:
    if retriever.num_documents != len(corpus):
        raise InputError(
            f"a retriever of {retriever.num_documents} documents for a corpus of {len(corpus)}",
            "Use the corpus that the retriever was made from.",
            file=folder,
        )

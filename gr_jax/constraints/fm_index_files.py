"""FM-indexes on disk."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import numpy as np

from gr_jax import storage
from gr_jax.constraints.fm_index_arrays import NARROW
from gr_jax.constraints.wavelet_matrix import BITS, WORDS
from gr_jax.errors import InputError
from gr_jax.text.vocabulary import Vocabulary

KIND = "fm_index"
ARRAYS = (
    "bwt",
    "first",
    "view_rows",
    "anchored_rows",
    "symbols",
    "tokens",
    "marks",
    "samples",
    "segment_starts",
    "segment_documents",
    "segment_numbers",
)
SETTINGS = ("view_names", "eos_id", "vocab_size", "num_documents", "sample_rate", "corpus", "vocabulary")
_BLOCKS, _ZEROS, _DOCUMENTS = "wavelet_blocks", "wavelet_zeros", "row_documents"
_AGAIN = "Copy the artefact again whole, or make it again."


def save(folder: str | os.PathLike, index: Any) -> None:
    """Writes an artefact of kind "fm_index": a file for each array."""
    meta = {name: getattr(index, name) for name in SETTINGS}
    arrays = {name: getattr(index, name) for name in ARRAYS}
    arrays |= {_BLOCKS: index.wavelet.blocks, _ZEROS: index.wavelet.zeros}
    if index.row_documents is not None:
        arrays[_DOCUMENTS] = index.row_documents
    with storage.write_folder(folder, KIND, corpus=index.corpus, meta=meta) as new:
        for name, array in arrays.items():
            np.save(new / f"{name}.npy", np.asarray(array))


def load(folder: str | os.PathLike, vocabulary: Vocabulary | None, verify: bool) -> tuple[dict, dict]:
    """Memory-maps the arrays that `save` wrote and reads the settings; see `FMIndex.load`."""
    manifest = storage.read_folder(folder, KIND, verify=verify)
    folder = pathlib.Path(folder)
    missing = [name for name in SETTINGS if name not in manifest.meta]
    if missing:
        raise InputError(f"the manifest does not say its {missing[0]}", "Make the index again.", file=folder)
    settings = {name: manifest.meta[name] for name in SETTINGS}
    settings["view_names"] = tuple(settings["view_names"])
    if vocabulary is not None:
        if settings["vocab_size"] != vocabulary.size:
            raise InputError(
                f"an index for a vocabulary of {settings['vocab_size']} tokens where the given one has"
                f" {vocabulary.size}",
                "Give the vocabulary that its text was tokenised with.",
                file=folder,
            )
        if settings["vocabulary"] not in ("", vocabulary.fingerprint):
            raise InputError(
                "an index of text that was tokenised with another vocabulary of the same size",
                "Give the vocabulary that its text was tokenised with.",
                file=folder,
            )
    names = [*ARRAYS, _BLOCKS, _ZEROS, *[_DOCUMENTS] * (f"{_DOCUMENTS}.npy" in manifest.files)]
    arrays = {name: storage.load_array(folder / f"{name}.npy", mmap=True) for name in names}
    problem = _problem(arrays, settings)
    if problem:
        raise InputError(f"the arrays of this index do not fit one another: {problem}", _AGAIN, file=folder)
    return arrays, settings


def _problem(arrays: dict[str, np.ndarray], settings: dict) -> str:
    """What does not fit; "" where everything does."""
    sizes = {name: array.shape for name, array in arrays.items()}
    rows = sizes["bwt"][0] - NARROW if len(sizes["bwt"]) == 1 else 0
    views, symbols = len(settings["view_names"]), int(np.prod(sizes["tokens"]))
    levels, segments = int(np.prod(sizes[_ZEROS])), int(np.prod(sizes["segment_starts"]))
    blocks = rows // BITS + 1
    expected = {
        "first": (views, symbols),
        "view_rows": (views + 1,),
        "anchored_rows": (views,),
        "symbols": (settings["vocab_size"],),
        "tokens": (symbols,),
        "marks": (blocks, WORDS + 1),
        "segment_starts": (segments,),
        "segment_documents": (segments,),
        "segment_numbers": (segments,),
        _BLOCKS: (levels * blocks, WORDS + 1),
        _ZEROS: (levels,),
    }
    if _DOCUMENTS in arrays:
        expected[_DOCUMENTS] = (rows,)
    if rows < 1 or symbols < 2 or symbols > 1 << levels:
        return f"{rows} rows of {symbols} symbols in {levels} levels"
    for name, shape in expected.items():
        if sizes[name] != shape:
            return f"{name} of shape {sizes[name]} where {shape} is right"
    for name, array in arrays.items():
        kinds = "u" if name in ("bwt", "marks", _BLOCKS) else "i"
        if array.dtype.kind not in kinds or (name not in ("bwt",) and array.dtype.itemsize != 4):
            return f"{name} of type {array.dtype}"
    tokens, table = arrays["tokens"], arrays["symbols"]
    if tokens[0] != -1 or (np.diff(tokens) <= 0).any() or tokens[-1] >= settings["vocab_size"]:
        return "tokens that do not ascend within the vocabulary"
    if (table[tokens[1:]] != np.arange(1, symbols)).any() or np.count_nonzero(table) != symbols - 1:
        return "symbols that are not those of the tokens"
    ranges = (
        ("bwt", 0, symbols),
        ("samples", 0, rows),
        ("segment_documents", 0, settings["num_documents"]),
        ("segment_starts", 0, rows),
        ("view_rows", 0, rows + 1),
        (_ZEROS, 0, rows + 1),
        (_DOCUMENTS, 0, settings["num_documents"]),
    )
    for name, low, high in ranges:
        if name in arrays and sizes[name][0] and not low <= int(arrays[name].min()) <= int(arrays[name].max()) < high:
            return f"{name} out of range"
    if (np.diff(arrays["view_rows"]) < 0).any() or arrays["view_rows"][-1] != rows:
        return "views that are not all rows"
    if (np.diff(arrays["segment_starts"]) <= 0).any():
        return "segments that do not ascend"
    last = arrays["marks"][-1]
    if int(last[0]) + int(np.bitwise_count(last[1:]).sum()) != len(arrays["samples"]):
        return "samples that are not as many as the marks"
    return ""

"""Tries on disk: a folder of plain arrays, with checksums."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from gr_jax import storage
from gr_jax.constraints.bits import BitSet
from gr_jax.constraints.trie_arrays import ChildMasks, Level
from gr_jax.docids.rows import token_type
from gr_jax.errors import InputError

if TYPE_CHECKING:
    from gr_jax.constraints.trie_fields import TrieFields

KIND = "trie"
AGAIN = "Make the trie again."
# name → axes; "offsets" is there only where docids stand for several documents.
ARRAYS = {"edge_tokens": 1, "edge_offsets": 1, "leaf_rows": 1, "rests": 2, "documents_of_rows": 1}


def save(trie: TrieFields, folder: str | os.PathLike, *, corpus: str, made_from: str) -> None:
    arrays = {name: getattr(trie, name) for name in ARRAYS}
    arrays |= {"parents": trie.parents.words}
    if trie.offsets is not None:
        arrays["offsets"] = trie.offsets
    for depth, masks in enumerate(trie.masks):
        if masks is not None:
            arrays |= {f"masks_{depth}": masks.words, f"masks_before_{depth}": masks.before}
    meta = {
        "vocab_size": trie.vocab_size,
        "eos_id": trie.eos_id,
        "num_documents": trie.num_documents,
        "levels": [dataclasses.asdict(level) for level in trie.levels],
    }
    with storage.write_folder(folder, KIND, corpus=corpus, made_from=made_from, meta=meta) as path:
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", np.asarray(array))


def load(folder: str | os.PathLike, *, mmap: bool, vocab_size: int | None) -> dict[str, Any]:
    """The fields of a `Trie`."""
    folder = pathlib.Path(folder)
    manifest = storage.read_folder(folder, KIND)
    meta = manifest.meta

    def read(name: str, axes: int) -> np.ndarray:
        array = storage.load_array(folder / f"{name}.npy", mmap=mmap)
        if array.ndim != axes or array.dtype.kind not in "iu":
            raise InputError("not an integer array of the right shape", AGAIN, file=folder / f"{name}.npy")
        return array

    try:
        levels = tuple(_level(fields) for fields in meta["levels"])
        static: dict[str, Any] = {
            "levels": levels,
            "eos_id": None if meta["eos_id"] is None else int(meta["eos_id"]),
            "vocab_size": int(meta["vocab_size"]),
            "num_documents": int(meta["num_documents"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the manifest does not describe a trie: {error!r}", AGAIN, file=folder) from error
    if vocab_size is not None and vocab_size != static["vocab_size"]:
        raise InputError(
            f"a trie over a vocabulary of {static['vocab_size']} tokens where {vocab_size} are expected",
            "Load the trie of the docids that the model was trained on.",
            file=folder,
        )
    arrays: dict[str, Any] = {name: read(name, axes) for name, axes in ARRAYS.items()}
    arrays["offsets"] = read("offsets", 1) if "offsets.npy" in manifest.files else None
    words = read("parents", 1)
    masks: list[ChildMasks | None] = [
        ChildMasks(read(f"masks_{depth}", 2), read(f"masks_before_{depth}", 2)) if level.window else None
        for depth, level in enumerate(levels)
    ]
    problem = _problem(arrays, words, masks, **static)
    if problem:
        raise InputError(f"these arrays are no trie: {problem}", AGAIN, file=folder)
    # What is mapped stays mapped: on CPU a device array may be the file's own pages.
    placed = jax.tree.map(jax.device_put if mmap else jnp.asarray, arrays | {"masks": tuple(masks)})
    return placed | static | {"parents": BitSet.of_words(words), "filter": None}


def _level(fields: dict) -> Level:
    sums, window = tuple(map(int, fields["sums"])), fields["window"]
    window = None if window is None else (int(window[0]), int(window[1]))
    return Level(**{**fields, "sums": sums, "window": window})


def _problem(
    arrays: dict[str, np.ndarray],
    words: np.ndarray,
    masks: list[ChildMasks | None],
    *,
    levels: tuple[Level, ...],
    eos_id: int | None,
    vocab_size: int,
    num_documents: int,
) -> str:
    """What is wrong with the contents; "" if nothing is. A wrong number would be a wrong answer later."""
    tokens, edges, leaves = arrays["edge_tokens"], arrays["edge_offsets"], arrays["leaf_rows"]
    rests, documents, offsets = arrays["rests"], arrays["documents_of_rows"], arrays["offsets"]
    nodes, parents = len(tokens) + 1, len(edges) - 1
    ranges = [
        # What, its numbers, the smallest, and one more than the largest that there may be.
        ("tokens of edges", tokens, 0, vocab_size),
        ("tokens of docids", rests, 0, vocab_size),
        ("rows of leaves", leaves, 0, len(rests)),
        ("documents", documents, 0, num_documents),
    ]
    for name, values, low, high in ranges:
        if values.size and not low <= values.min() <= values.max() < high:
            return f"{name} are outside of {low} … {high - 1}"
    if eos_id is not None and not 0 < eos_id < vocab_size:
        return f"EOS {eos_id} is outside of the vocabulary of {vocab_size}"
    if {tokens.dtype, rests.dtype} != {np.dtype(token_type(vocab_size))}:
        return "tokens are not as wide as the vocabulary"
    if words.dtype != np.uint32 or any(x.dtype != np.int32 for x in (edges, leaves, documents)):
        return "numbers are not as wide as they should be"
    if parents < 1 or edges[0] != 0 or edges[-1] != len(tokens) or not (edges[1:] > edges[:-1]).all():
        return "the edges of nodes are no ranges of all edges"
    if len(words) != nodes // 32 + 1 or int(np.bitwise_count(words).sum()) != parents:
        return "there are not as many nodes with children as ranges of edges"
    if nodes - parents != len(leaves) or len(leaves) != len(rests):
        return "there is not one leaf for each docid"
    if not np.bincount(leaves, minlength=len(leaves)).all():
        return "two leaves stand for one docid"
    if sum(level.nodes for level in levels) != nodes or sum(level.parents for level in levels) != parents:
        return "levels do not add up to the nodes"
    if rests.shape[1] > len(levels) - 1:
        return "docids are longer than the levels"
    if offsets is None:
        if len(documents) != len(rests):
            return "there is not one document for each docid"
    elif (
        offsets.dtype != np.int32
        or len(offsets) != len(rests) + 1
        or offsets[0] != 0
        or offsets[-1] != len(documents)
        or not (offsets[1:] > offsets[:-1]).all()
    ):
        return "the documents of docids are no ranges of all documents"
    for level, mask in zip(levels, masks, strict=True):
        if mask is not None and level.window is not None:
            shape = (level.parents, level.window[1] // 32)
            if mask.words.shape != shape or mask.before.shape != shape or mask.words.dtype != np.uint32:
                return "masks do not fit their level"
    return ""

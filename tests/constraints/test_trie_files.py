"""Tries on disk: read back as they were, and refused where they are not."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from gr_jax import storage
from gr_jax.constraints import Trie
from gr_jax.docids import Docids
from gr_jax.errors import InputError


def same(one, other):
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    assert structure == other_structure
    for a, b in zip(leaves, others, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def wide(seed=0, shared=False):
    """A trie with masks, tails and ends."""
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(2, 99, rng.integers(1, 5)).tolist() for _ in range(500)]
    sequences = sequences + sequences[:9] if shared else [list(s) for s in sorted(set(map(tuple, sequences)))]
    return Trie.from_docids(Docids.build(sequences, vocab_size=99, eos_id=1, duplicates="share"))


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_is_read_as_it_was_written(tmp_path, mmap, shared):
    trie = wide(shared=shared)
    assert (trie.offsets is None) != shared and trie.masks[0] is not None
    trie.save(tmp_path / "trie", corpus="abc")
    same(Trie.load(tmp_path / "trie", mmap=mmap, vocab_size=99), trie)
    assert storage.read_folder(tmp_path / "trie").corpus == "abc"


def test_mapped_arrays_are_not_copied(tmp_path, mapped):
    wide().save(tmp_path / "trie")
    trie = Trie.load(tmp_path / "trie", mmap=True)
    places = {array.ctypes.data for array in mapped}
    for leaf in (trie.edge_tokens, trie.rests, trie.leaf_rows, trie.documents_of_rows, trie.masks[0].words):
        assert leaf.unsafe_buffer_pointer() in places


def test_a_filter_is_not_written(tmp_path):
    trie = wide()
    trie.restrict(np.ones((1, trie.num_documents), bool)).save(tmp_path / "trie")
    same(Trie.load(tmp_path / "trie"), trie)


def test_refuses_another_vocabulary(tmp_path):
    wide().save(tmp_path / "trie")
    with pytest.raises(InputError, match="vocabulary of 99 tokens where 100"):
        Trie.load(tmp_path / "trie", vocab_size=100)


@pytest.mark.parametrize("name", ["edge_tokens", "parents", "rests", "masks_0", "manifest"])
@pytest.mark.parametrize("cut", [True, False])
def test_refuses_altered_files(tmp_path, name, cut):
    wide().save(tmp_path / "trie")
    file = tmp_path / "trie" / ("manifest.json" if name == "manifest" else f"{name}.npy")
    data = bytearray(file.read_bytes())
    if cut:
        del data[-3:]
    else:
        data[-5] ^= 4
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match="altered|truncated|read"):
        Trie.load(tmp_path / "trie", mmap=True)


@pytest.mark.parametrize(
    "name, change, words",
    [
        ("edge_tokens", lambda x: np.where(np.arange(len(x)) == 7, 99, x).astype(x.dtype), "tokens of edges"),
        ("edge_tokens", lambda x: x.astype(np.uint32), "as wide as the vocabulary"),
        ("edge_tokens", lambda x: x[:-1], "ranges of all edges"),
        ("edge_offsets", lambda x: x[::-1].copy(), "ranges of all edges"),
        ("rests", lambda x: x + x.dtype.type(90), "tokens of docids"),
        ("rests", lambda x: x[:-1], "rows of leaves"),
        ("leaf_rows", lambda x: np.zeros_like(x), "two leaves"),
        ("leaf_rows", lambda x: x.astype(np.int64), "not as wide"),
        ("documents_of_rows", lambda x: x + 1, "documents are outside"),
        ("documents_of_rows", lambda x: x[:-1], "one document for each"),
        ("documents_of_rows", lambda x: x[None], "right shape"),
        ("edge_tokens", lambda x: x.astype(np.float32), "right shape"),
    ],
)
def test_refuses_contents_that_are_no_trie(tmp_path, name, change, words):
    trie = wide()
    wrong = dataclasses.replace(trie, **{name: change(np.asarray(getattr(trie, name)))})
    wrong.save(tmp_path / "trie")
    with pytest.raises(InputError, match=words):
        Trie.load(tmp_path / "trie")


@pytest.mark.parametrize("lacking", ["vocab_size", "levels", "window"])
def test_refuses_a_manifest_that_describes_no_trie(tmp_path, lacking):
    trie = wide()
    trie.save(tmp_path / "trie")
    meta = json.loads((tmp_path / "trie" / "manifest.json").read_text())["meta"]
    for part in (meta, *meta.get("levels", [])):
        part.pop(lacking, None)
    with storage.write_folder(tmp_path / "other", "trie", meta=meta) as path:
        for file in (tmp_path / "trie").glob("*.npy"):
            (path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(InputError, match="does not describe a trie"):
        Trie.load(tmp_path / "other")

"""Constraints of every kind in folders: what comes back allows the same, and what is none is refused."""

import jax
import numpy as np
import pytest

from gr_jax import storage
from gr_jax.constraints import Everything, FMIndex, Mixed, TokenTextTrie, Trie, load_constraint, save_constraint
from gr_jax.docids import Docids, TokenText
from gr_jax.errors import InputError

DOCIDS = Docids.build([[2, 3], [2, 4], [5]], vocab_size=6, eos_id=1)


def constraints():
    trie = Trie.from_docids(DOCIDS)
    texts = TokenTextTrie.from_docids(DOCIDS, np.array([2, 1, 3, 4, 5, 2]))
    found = {"trie": trie, "texts": texts, "everything": Everything(6, 0)}
    return {**found, "mixed": Mixed((trie, Mixed((texts, found["everything"]))))}


@pytest.mark.parametrize("name", ["trie", "texts", "everything", "mixed"])
def test_a_constraint_comes_back(tmp_path, name):
    made = constraints()[name]
    save_constraint(tmp_path / "constraint", made)
    found = load_constraint(tmp_path / "constraint")
    assert jax.tree.structure(found) == jax.tree.structure(made)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(made), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_index_of_ngrams_comes_back(tmp_path):
    pytest.importorskip("pydivsufsort")
    made = FMIndex.from_text(TokenText.of([[0, 1, 2], [2, 0]], 3), filters=True)
    save_constraint(tmp_path / "index", made)
    found = load_constraint(tmp_path / "index")
    assert isinstance(found, FMIndex) and found.count(found.find([[2]]))[0, 0] == 2


def test_what_is_no_constraint(tmp_path):
    with storage.write_folder(tmp_path / "other", "docids"):
        pass
    with pytest.raises(InputError, match="'docids'"):
        load_constraint(tmp_path / "other")
    with pytest.raises(InputError, match="'object'"):
        save_constraint(tmp_path / "none", object())
    save_constraint(tmp_path / "mixed", constraints()["mixed"])
    file = tmp_path / "mixed" / "part_0" / "rests.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="rests.npy"):
        load_constraint(tmp_path / "mixed")


def test_documents_of_mixed_constraints():
    trie = Trie.from_docids(DOCIDS)
    assert Mixed((Everything(6), trie)).num_documents == 3
    assert not hasattr(Mixed((Everything(6),)), "num_documents")
    with pytest.raises(InputError, match="number their documents differently"):
        Mixed((trie, Trie.from_docids(Docids.build([[2]], vocab_size=6)))).num_documents  # noqa: B018

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax.docids import Docids
from gr_jax.errors import InputError

sequences = st.lists(st.lists(st.integers(2, 9), min_size=1, max_size=4).map(tuple), min_size=1, max_size=20)


@given(sequences)
def test_rows_are_sorted_and_lead_back_to_their_documents(given_sequences):
    docids = Docids.build(given_sequences, vocab_size=10, eos_id=1, duplicates="share")
    docids.check()
    rows = [tuple(docids.sequence(row)) for row in range(len(docids))]
    assert rows == sorted(set(given_sequences))
    for row, sequence in enumerate(rows):
        wanted = [i for i, other in enumerate(given_sequences) if other == sequence]
        assert docids.documents_of(row).tolist() == wanted
        assert docids.target(row) == [*sequence, 1]
        assert docids.row_of(sequence) == row
    for document, sequence in enumerate(given_sequences):
        assert [rows[row] for row in docids.rows_of(document)] == [sequence]
    assert docids.num_documents == len(given_sequences)
    assert docids.max_steps == max(map(len, rows)) + 1


@settings(max_examples=10)
@given(sequences, st.sampled_from([None, [(2, 8)] * 4]))
def test_save_and_load(tmp_path_factory, given_sequences, levels):
    docids = Docids.build(given_sequences, vocab_size=10, eos_id=1, levels=levels, duplicates="share", meta={"a": 1})
    folder = tmp_path_factory.mktemp("docids") / "docids"
    docids.save(folder, corpus="abc")
    for mmap in (False, True):
        loaded = Docids.load(folder, mmap=mmap)
        for name in ("tokens", "lengths", "offsets", "documents"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(docids, name))
            assert getattr(loaded, name).dtype == getattr(docids, name).dtype
        for name in ("vocab_size", "eos_id", "levels", "num_documents", "scheme", "meta"):
            assert getattr(loaded, name) == getattr(docids, name)


def test_a_matrix_and_lists_are_the_same():
    matrix = np.asarray([[3, 2, 0], [3, 0, 0], [2, 9, 4]])
    lists = [[3, 2], [3], [2, 9, 4]]
    one, other = (Docids.build(given, vocab_size=10, eos_id=1) for given in (matrix, lists))
    np.testing.assert_array_equal(one.tokens, other.tokens)
    assert one.tokens.tolist() == [[2, 9, 4], [3, 0, 0], [3, 2, 0]]
    assert one.documents.tolist() == [2, 1, 0]


def test_a_document_may_have_several_docids_and_some_none():
    docids = Docids.build([[5], [3], [4]], vocab_size=10, documents=[1, 3, 1], num_documents=5)
    assert [docids.rows_of(document).tolist() for document in range(5)] == [[], [1, 2], [], [0], []]


def test_the_same_docid_twice_for_one_document_counts_once():
    docids = Docids.build([[5], [5], [4]], vocab_size=10, documents=[1, 1, 0])
    assert docids.tokens.tolist() == [[4], [5]] and docids.documents.tolist() == [0, 1]


def test_equal_docids_of_two_documents_are_refused_and_both_named():
    with pytest.raises(InputError, match="document 'b' and document 'c' have the same docid"):
        Docids.build([[2], [3, 4], [3, 4]], vocab_size=10, names=["a", "b", "c"])
    with pytest.raises(InputError, match="document 1 and document 2 have the same docid.*got .3, 4"):
        Docids.build([[2], [3, 4], [3, 4]], vocab_size=10)


def test_sorting_packs_wide_columns_too():
    rng = np.random.default_rng(0)
    matrix = np.unique(rng.integers(1, 2**30, (500, 5)), axis=0)
    shuffled = rng.permutation(matrix)
    docids = Docids.build(shuffled, vocab_size=2**30)
    np.testing.assert_array_equal(docids.tokens, matrix)
    np.testing.assert_array_equal(shuffled[docids.documents], matrix)


@pytest.mark.parametrize(
    "given_sequences, settings, words",
    [
        ([], {}, "no docids"),
        ([[2], []], {}, "document 1 is empty"),
        (np.asarray([[2, 0], [0, 0]]), {}, "document 1 is empty"),
        ([[2], [0, 3]], {}, "0 is padding"),
        (np.asarray([[2, 3], [0, 3]]), {}, "document 1 contains padding"),
        ([[2], [10]], {}, "token 0 of the docid of document 1 is outside.*got 10"),
        ([[2], [3, -4]], {}, "token 1 of the docid of document 1 is outside.*got -4"),
        (np.asarray([[2.0]]), {}, "integers"),
        (np.asarray([[2**40]]), {}, "32 bits"),
        ([[2], [3, 1]], {"eos_id": 1}, "document 1 contains EOS"),
        ([[2]], {"eos_id": 10}, "eos_id is outside"),
        ([[2, 3], [2]], {}, r"docid \[2\] is a prefix of \[2, 3\].*eos_id"),
        ([[2, 3]], {"levels": [(2, 4)]}, "1 levels"),
        ([[2, 3]], {"levels": [(2, 4), (6, 4)]}, r"token 1 .*outside of its block .got 3.*6 … 9"),
        ([[2]], {"documents": [0, 1]}, "1 docids for 2 documents"),
        ([[2]], {"documents": [3], "num_documents": 2}, "not there"),
        ([[2]], {"duplicates": "drop"}, "unknown policy"),
    ],
)
def test_refuses(given_sequences, settings, words):
    with pytest.raises(InputError, match=words):
        Docids.build(given_sequences, **{"vocab_size": 10, **settings})


def corrupt(folder, change):
    """Rewrites an array and keeps the manifest in step, so that only the contents are wrong."""
    import gr_jax.storage as storage

    manifest = storage.read_folder(folder)
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("tokens", "lengths", "offsets", "documents")}
    change(arrays, manifest.meta)
    with storage.write_folder(folder, "docids", meta=manifest.meta) as path:
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda arrays, meta: arrays.update(tokens=arrays["tokens"][::-1]), "lengths do not fit"),
        (
            lambda arrays, meta: arrays.update(
                tokens=arrays["tokens"][[0, 2, 1]], lengths=arrays["lengths"][[0, 2, 1]]
            ),
            "sorted",
        ),
        (
            lambda arrays, meta: arrays.update(
                tokens=arrays["tokens"][[0, 1, 1]], lengths=arrays["lengths"][[0, 1, 1]]
            ),
            "the same",
        ),
        (lambda arrays, meta: arrays.update(tokens=arrays["tokens"].astype(float)), "integer array"),
        (lambda arrays, meta: arrays.update(documents=arrays["documents"] + 1), "not there"),
        (lambda arrays, meta: arrays.update(offsets=arrays["offsets"][:-1]), "offsets do not fit"),
        (lambda arrays, meta: arrays.update(offsets=arrays["offsets"] * 0), "offsets do not fit"),
        (lambda arrays, meta: meta.update(vocab_size=3), "outside of its block"),
        (lambda arrays, meta: meta.update(eos_id=None), "prefix"),
        (lambda arrays, meta: meta.pop("eos_id"), "does not describe docids"),
    ],
)
def test_refuses_a_folder_whose_contents_are_no_docids(tmp_path, change, words):
    Docids.build([[2], [3], [3, 4]], vocab_size=10, eos_id=1).save(tmp_path / "docids")
    corrupt(tmp_path / "docids", change)
    with pytest.raises(InputError, match=words):
        Docids.load(tmp_path / "docids")


def test_refuses_a_truncated_folder(tmp_path):
    Docids.build([[2], [3]], vocab_size=10).save(tmp_path / "docids")
    file = tmp_path / "docids" / "tokens.npy"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(InputError, match=f"^{re.escape(str(file))}.*truncated"):
        Docids.load(tmp_path / "docids")


@given(sequences, st.lists(st.integers(0, 10), max_size=5))
def test_the_row_of_a_docid_that_may_not_be_there(given_sequences, asked):
    docids = Docids.build(given_sequences, vocab_size=10, eos_id=1, duplicates="share")
    rows = [tuple(docids.sequence(row)) for row in range(len(docids))]
    assert docids.row_of(asked) == (rows.index(tuple(asked)) if tuple(asked) in rows else None)


def test_texts_follow_their_docids():
    docids = Docids.build([[5], [3], [5]], vocab_size=10, duplicates="share", texts=["five", "three", "cinq"])
    assert [docids.name(row) for row in range(2)] == ["three", "five"]
    with pytest.raises(InputError, match="2 texts for 3 docids"):
        Docids.build([[5], [3], [4]], vocab_size=10, texts=["five", "three"])

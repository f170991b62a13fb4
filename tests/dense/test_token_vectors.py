"""Token vectors in memory and on disk against lists of arrays."""

import os
import resource

import numpy as np
import pytest

from gr_jax.dense import base
from gr_jax.dense.token_vectors import StoredRows, TokenRows, TokenVectors, write_rows
from gr_jax.errors import InputError

D = 6
ERRORS = {"float32": 0.0, "float16": 2e-3, "int8": 2e-2}


def draw(seed, count):
    """Vectors of length 1 and tokens of so many documents."""
    rng = np.random.default_rng(seed)
    documents = [rng.normal(size=(int(rng.integers(1, 9)), D)).astype(np.float32) for _ in range(count)]
    documents = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in documents]
    return documents, [rng.integers(0, 100, len(rows)) for rows in documents]


def assert_holds(vectors, documents, tokens):
    assert vectors.num_documents == len(documents)
    assert vectors.num_vectors == sum(map(len, documents))
    np.testing.assert_array_equal(vectors.lengths, [len(rows) for rows in documents])
    error = ERRORS[vectors.precision]
    for number, (rows, ids) in enumerate(zip(documents, tokens, strict=True)):
        np.testing.assert_allclose(vectors.document(number), rows, atol=error)
        np.testing.assert_array_equal(vectors.tokens(number), ids)
    chosen = np.random.default_rng(0).permutation(len(documents))
    padded, scales = vectors.padded(chosen, 8)
    if scales is not None:
        padded = padded * scales[..., None]
    expected = [documents[number][np.minimum(np.arange(8), len(documents[number]) - 1)] for number in chosen]
    np.testing.assert_allclose(padded.astype(np.float32), expected, atol=error)


@pytest.mark.parametrize("precision", ERRORS)
def test_documents_are_added_in_memory_and_written_with_the_others(precision, tmp_path):
    documents, tokens = draw(1, 20)
    TokenVectors.of(documents[:9], tokens=tokens[:9], precision=precision).save(tmp_path / "a", corpus="abc")
    vectors = TokenVectors.load(tmp_path / "a")
    before = (tmp_path / "a" / "vectors.npy").read_bytes()
    count = 9
    for more in (1, 6, 4):
        chosen = slice(count, count + more)
        vectors.add(TokenVectors.of(documents[chosen], tokens=tokens[chosen], precision=precision))
        count += more
        assert_holds(vectors, documents[:count], tokens[:count])
    vectors.remove([2, 15, 2])
    vectors.save(tmp_path / "b")
    assert (tmp_path / "a" / "vectors.npy").read_bytes() == before
    for loaded in (TokenVectors.load(tmp_path / "b"), TokenVectors.load(tmp_path / "b", mmap=False)):
        assert_holds(loaded, documents, tokens)
        np.testing.assert_array_equal(np.flatnonzero(~loaded.live), [2, 15])
    # Onto itself: what is mapped from a folder takes its place.
    loaded.add(TokenVectors.of(documents[:1], tokens=tokens[:1], precision=precision))
    loaded.save(tmp_path / "b")
    assert_holds(TokenVectors.load(tmp_path / "b"), [*documents, documents[0]], [*tokens, tokens[0]])


def test_what_is_mapped_is_neither_read_nor_copied(tmp_path):
    documents, tokens = draw(2, 5)
    TokenVectors.of(documents, tokens=tokens).save(tmp_path / "vectors")
    rows = TokenRows.read(tmp_path / "vectors")
    assert isinstance(rows.vectors, np.memmap) and isinstance(rows.tokens, np.memmap)
    vectors = TokenVectors(rows)
    vectors.add(TokenVectors.of(documents[:2], tokens=tokens[:2]))
    vectors.remove([0])
    assert vectors._parts()[0].vectors is rows.vectors
    assert np.shares_memory(vectors.tokens(1), rows.tokens)


@pytest.mark.parametrize("precision", ERRORS)
def test_parts_are_written_one_after_the_other(precision, tmp_path):
    documents, tokens = draw(3, 12)
    whole = TokenRows.of(documents, tokens=tokens, precision=precision)
    cuts = (slice(0, 5), slice(5, 6), slice(6, 12))
    parts = [TokenRows.of(documents[cut], tokens=tokens[cut], precision=precision) for cut in cuts]
    write_rows(tmp_path, parts)
    for joined in (TokenRows.read(tmp_path), TokenRows.joined(parts)):
        assert joined.arrays.keys() == whole.arrays.keys()
        for name, array in whole.arrays.items():
            np.testing.assert_array_equal(joined.arrays[name], array)
            assert joined.arrays[name].dtype == array.dtype
    first = whole.first(parts[0].num_documents)
    for name, array in parts[0].arrays.items():
        np.testing.assert_array_equal(first.arrays[name], array)
    assert whole.vectors.nbytes == {"float32": 4, "float16": 2, "int8": 1}[precision] * D * whole.offsets[-1]


def test_folders_are_opened_one_at_a_time(tmp_path):
    """A large corpus has more of them than files that a process may have open."""
    documents, tokens = draw(3, 60)
    folders = [tmp_path / str(number) for number in range(60)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_rows(folder, [TokenRows.of([documents[number]], tokens=[tokens[number]], precision="int8")])
    (tmp_path / "whole").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 40, hard))
    try:
        write_rows(tmp_path / "whole", StoredRows(folders))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_holds(TokenVectors(TokenRows.read(tmp_path / "whole")), documents, tokens)
    assert StoredRows(folders)[2:4][1].num_documents == 1 and len(StoredRows(folders)[2:4]) == 2


def test_an_altered_file_is_refused(tmp_path):
    documents, tokens = draw(4, 3)
    TokenVectors.of(documents, tokens=tokens).save(tmp_path / "vectors")
    file = tmp_path / "vectors" / "tokens.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="altered"):
        TokenVectors.load(tmp_path / "vectors")


def test_copies_of_what_is_mapped_are_in_memory(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, D), np.float32))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for array in (mapped, mapped[1:], np.asarray(mapped)[:, 2], mapped.reshape(-1)):
        assert base.held(array) == 0
    for array in (mapped.copy(), mapped.astype(np.float32), mapped[[1]], np.concatenate([mapped, mapped])):
        assert base.held(array) == array.nbytes


@pytest.mark.parametrize("precision", ERRORS)
def test_vectors_that_are_not_finite_are_refused(precision):
    documents, _ = draw(5, 4)
    for value in (np.nan, np.inf, -np.inf):
        documents[2][-1, 3] = value
        with pytest.raises(InputError, match="document 2"):
            TokenVectors.of(documents, precision=precision)
    documents[2][-1, 3] = 1e6  # no number of float16
    if precision == "float16":
        with pytest.raises(InputError, match="document 2.* as float16|as float16.*document 2"):
            TokenVectors.of(documents, precision=precision)
    else:
        assert TokenVectors.of(documents, precision=precision).num_documents == 4


def test_arrays_that_are_not_finite_are_refused():
    documents, _ = draw(5, 4)
    for precision in ERRORS:
        rows = TokenRows.of(documents, precision=precision)
        array = (rows.vectors if rows.scales is None else rows.scales).copy()
        array[rows.offsets[1]] = np.nan
        vectors, scales = (array, None) if rows.scales is None else (rows.vectors, array)
        with pytest.raises(InputError, match="document 1"):
            TokenRows(vectors, rows.offsets, rows.tokens, scales)


def test_what_does_not_fit_is_refused():
    documents, tokens = draw(5, 3)
    rows = TokenRows.of(documents, tokens=tokens)
    vectors = TokenVectors(rows)
    with pytest.raises(InputError, match="precision"):
        TokenVectors.of(documents, precision="int4")
    with pytest.raises(InputError, match="without a single vector"):
        TokenVectors.of([np.zeros((0, D), np.float32), np.ones((1, D), np.float32)])
    with pytest.raises(InputError, match="offsets"):
        TokenRows(rows.vectors, rows.offsets[:-1], rows.tokens)
    with pytest.raises(InputError, match="scale"):
        TokenRows(rows.vectors.astype(np.int8), rows.offsets, rows.tokens)
    with pytest.raises(InputError, match="removed"):
        TokenVectors(rows, np.ones(4, bool))
    with pytest.raises(InputError, match="no such document"):
        vectors.remove([3])
    for other in (TokenVectors.of(documents, precision="int8"), TokenVectors.of([np.ones((1, D + 1), np.float32)])):
        with pytest.raises(InputError, match="cannot stand behind"):
            vectors.add(other)
    assert vectors.num_documents == 3 and vectors.live.all()

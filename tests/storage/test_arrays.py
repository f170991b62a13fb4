"""Whatever bytes an array file has, reading it gives that array or an InputError; nothing is ever unpickled."""

import errno
import io
import os
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gr_jax.dense.stored import StoredVectors
from gr_jax.dense.token_vectors import TokenVectors
from gr_jax.errors import InputError
from gr_jax.models import encode_corpus
from gr_jax.storage import load_array, new_array, write_folder
from tests.models.encoding_run import Digests

_arrays = hnp.arrays(
    st.sampled_from(["i4", "i8", "u1", "f4", "f2", "?"]), hnp.array_shapes(max_dims=3, max_side=4, min_side=0)
)


def _bytes(array: np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@given(array=_arrays)
def test_round_trip(array):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "a.npy"
        file.write_bytes(_bytes(array))
        np.testing.assert_array_equal(load_array(file), array)
        if array.size:
            np.testing.assert_array_equal(load_array(file, mmap=True), array)


@given(
    array=_arrays,
    flips=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 255)), max_size=4),
    keep=st.integers(0, 300),
    mmap=st.booleans(),
)
def test_altered_files_give_an_array_or_an_input_error(array, flips, keep, mmap):
    data = bytearray(_bytes(array)[:keep])
    for place, mask in flips:
        if place < len(data):
            data[place] ^= mask
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "a.npy"
        file.write_bytes(data)
        try:
            assert load_array(file, mmap=mmap).dtype != object
        except InputError as error:
            assert str(file) in str(error)


@pytest.mark.parametrize("mmap", [False, True])
def test_pickles_zips_and_nothing_are_refused(tmp_path, mmap):
    (tmp_path / "pickle.npy").write_bytes(_bytes(np.array([{"a": 1}, None]), allow_pickle=True))
    np.savez(tmp_path / "zip.npz", a=np.arange(3))
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    (tmp_path / "empty.npy").write_bytes(b"")
    huge = _bytes(np.zeros((1, 1), np.int8)).replace(b"(1, 1)", b"(9**9,9**9)"[:6]).replace(b"(9**9,", b"(9999,")
    (tmp_path / "huge.npy").write_bytes(huge)
    (tmp_path / "longer.npy").write_bytes(_bytes(np.arange(3)) + b"more")
    for name in ["pickle", "zip", "empty", "huge", "absent"] + ([] if mmap else ["longer"]):
        with pytest.raises(InputError, match=rf"{name}\.npy: not a readable"):
            load_array(tmp_path / f"{name}.npy", mmap=mmap)


@given(array=_arrays)
def test_a_new_array_is_filled_through_its_map(array):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "a.npy"
        new = new_array(file, array.dtype, array.shape)
        assert isinstance(new, np.memmap) and not new.any()
        new[...] = array
        new.flush()
        assert file.read_bytes() == _bytes(array)


@pytest.mark.parametrize("refused", [None, errno.EOPNOTSUPP, "missing"])
def test_a_new_array_has_its_space(tmp_path, monkeypatch, refused):
    """No hole is left that would be filled when the disk may be full."""
    if refused == "missing":
        monkeypatch.delattr(os, "posix_fallocate")
    elif refused:
        monkeypatch.setattr(os, "posix_fallocate", _raising(refused))
    new = new_array(tmp_path / "a.npy", np.float32, (1000, 1500))
    assert new.shape == (1000, 1500) and not new.any()
    taken = (tmp_path / "a.npy").stat()
    assert taken.st_size == 128 + new.nbytes and taken.st_blocks * 512 >= new.nbytes


def _raising(code):
    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("has", ["posix_fallocate", "write"])
@pytest.mark.parametrize("what", ["embeddings", "token_vectors", "vectors"])
def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path, monkeypatch, what, has):
    if has == "write":
        monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(os, has, _raising(errno.ENOSPC))
    folder = tmp_path / what
    with pytest.raises(InputError, match=f"{what}: the disk is full"):
        if what == "embeddings":
            encode_corpus(Digests(), ["a", "b"], folder)
        elif what == "token_vectors":
            TokenVectors.of([np.ones((2, 3), np.float32)]).save(folder)
        else:
            with write_folder(folder, "search") as new:
                StoredVectors(np.ones((2, 3), np.float32)).write(new)
    assert not folder.exists()


def test_a_really_full_disk(small_disk):
    TokenVectors.of([np.ones((2, 3), np.float32)]).save(small_disk / "a")
    with pytest.raises(InputError, match="the disk is full"):
        TokenVectors.of([np.ones((300_000, 3), np.float32)]).save(small_disk / "a")
    assert TokenVectors.load(small_disk / "a").num_documents == 1

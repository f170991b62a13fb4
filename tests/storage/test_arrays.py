"""Whatever bytes an array file has, reading it gives that array or an InputError; nothing is ever unpickled."""

import io
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gr_jax.errors import InputError
from gr_jax.storage import load_array

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

"""What is read from disk is what was saved, whatever the scheme."""

import numpy as np
import pytest

from gr_jax import docids as docids_lib
from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.text import ByteVocabulary


def points() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)


SCHEMES = {
    "atomic": lambda: docids_lib.atomic(60),
    "naive_numeric": lambda: docids_lib.naive_numeric(60),
    "titles": lambda: docids_lib.titles([f"{'ab'[i % 2]}{i % 7} ☃" for i in range(60)], ByteVocabulary()),
    "shared titles": lambda: docids_lib.titles(["a", "b", "a"], ByteVocabulary(), duplicates="share"),
    "hierarchical_kmeans": lambda: docids_lib.hierarchical_kmeans(points(), branching=[4, 3], leaf_capacity=6),
    "coarse clusters": lambda: docids_lib.hierarchical_kmeans(
        points(), branching=4, leaf_capacity=1, leaf="share", clusters=9, most_docids=2
    ),
    "residual_quantization": lambda: docids_lib.residual_quantization(points(), levels=2, bits=2),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_comes_back_whole(scheme, tmp_path):
    docids = SCHEMES[scheme]()
    docids.save(tmp_path / "docids", corpus="abc")
    for mmap in (False, True):
        loaded = Docids.load(tmp_path / "docids", mmap=mmap)
        for name in ("tokens", "lengths", "offsets", "documents"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(docids, name))
            assert getattr(loaded, name).dtype == getattr(docids, name).dtype
        for name in ("vocab_size", "eos_id", "levels", "num_documents", "scheme", "meta"):
            assert getattr(loaded, name) == getattr(docids, name)
        assert [loaded.name(row) for row in range(len(loaded))] == [docids.name(row) for row in range(len(docids))]
        assert docids_lib.statistics(loaded) == docids_lib.statistics(docids)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_file_is_guarded(scheme, tmp_path):
    SCHEMES[scheme]().save(tmp_path / "docids")
    files = sorted(path for path in (tmp_path / "docids").iterdir() if path.name != "manifest.json")
    assert {"tokens.npy", "lengths.npy", "offsets.npy", "documents.npy"} <= {path.name for path in files}
    for path in files:
        data = path.read_bytes()
        for broken in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), None):
            path.unlink() if broken is None else path.write_bytes(broken)
            with pytest.raises(InputError, match=path.name):
                Docids.load(tmp_path / "docids")
            path.write_bytes(data)

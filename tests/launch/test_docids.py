"""`gr-jax docids`: what it finds, prints and draws."""

import pathlib

import numpy as np
import pytest

from gr_jax import docids as docids_lib
from gr_jax.errors import InputError
from launch.docids import draw, find_docids
from tests.bad_input.conftest import launch as forked
from tests.systems.gdr import small_gdr


@pytest.fixture(scope="module")
def docids() -> docids_lib.Docids:
    points = np.random.default_rng(0).normal(size=(60, 4))
    return docids_lib.hierarchical_kmeans(points, branching=3, leaf_capacity=5)


def test_describes_and_draws(docids, tmp_path):
    docids.save(tmp_path / "run" / "index" / "retriever" / "docids")
    said = forked("docids", f"--index={tmp_path / 'run'}", f"--picture={tmp_path / 'tree.svg'}").stdout
    assert said == f"{docids_lib.describe(docids_lib.statistics(docids))}\nPicture: {tmp_path / 'tree.svg'}\n"
    assert (tmp_path / "tree.svg").read_bytes() == draw(docids, pathlib.Path("other.svg"), 6)
    assert draw(docids, pathlib.Path("tree.png"), 2)[:4] == b"\x89PNG"


@pytest.mark.parametrize("place", ["", "docids", "retriever/docids", "index/retriever/docids"])
def test_finds_docids(docids, tmp_path, place):
    docids.save(tmp_path / "it" / place)
    np.testing.assert_array_equal(find_docids(tmp_path / "it").tokens, docids.tokens)


def test_what_it_cannot_do(docids, tmp_path):
    with pytest.raises(InputError, match="no docids"):
        find_docids(tmp_path)
    with pytest.raises(InputError, match="unknown format.*tree.gif.*png or .svg"):
        draw(docids, tmp_path / "tree.gif", 6)


def test_what_was_altered_is_not_described(docids, tmp_path):
    docids.save(tmp_path / "docids")
    file = tmp_path / "docids" / "tokens.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="tokens.npy: altered"):
        find_docids(tmp_path)
    made = small_gdr.plain()
    made.save(tmp_path / "retriever", corpus="")
    assert len(find_docids(tmp_path)) == 11
    file = tmp_path / "retriever" / "parameters.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match="parameters.safetensors: altered"):
        find_docids(tmp_path)

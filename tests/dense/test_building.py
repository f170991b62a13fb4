"""Clustered searches that are written block by block, against those that are made in memory."""

import numpy as np
import pytest

from gr_jax import storage
from gr_jax.dense import ClusteredSearch, build_clustered
from gr_jax.errors import InputError

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal(size=(300, 12)).astype(np.float32)
ONE = RANDOM.integers(0, 9, 300)
SEVERAL = np.where(RANDOM.random((300, 3)) < 0.6, np.stack([RANDOM.permutation(9)[:3] for _ in range(300)]), -1)


class Made:
    """Rows that are made when they are asked for, few at a time."""

    shape = VECTORS.shape

    def __getitem__(self, rows):
        assert len(rows) <= 64
        return VECTORS[rows]


@pytest.mark.parametrize("codes", [None, "row", "dimension"])
@pytest.mark.parametrize("clusters", [ONE, SEVERAL], ids=["one", "several"])
def test_files_are_those_of_a_search_in_memory(codes, clusters, tmp_path):
    ClusteredSearch(VECTORS, clusters, num_clusters=10, codes=codes, chosen=4).save(tmp_path / "memory")
    build_clustered(tmp_path / "blocks", Made(), clusters, num_clusters=10, codes=codes, chosen=4, block=64)
    one, other = (storage.read_folder(tmp_path / name, "clustered_search") for name in ("memory", "blocks"))
    assert one.meta == other.meta and set(one.files) == set(other.files)
    for name in one.files:
        np.testing.assert_array_equal(np.load(tmp_path / "memory" / name), np.load(tmp_path / "blocks" / name))


def test_what_was_built_answers(tmp_path):
    build_clustered(tmp_path / "search", VECTORS, ONE, block=50)
    search = ClusteredSearch.load(tmp_path / "search")
    chosen = np.array([[0, 3, 8]])
    found, scores = search.search_clusters(VECTORS[:1], chosen, 5)
    inside = np.flatnonzero(np.isin(ONE, chosen))
    expected = inside[np.argsort(-(VECTORS[inside] @ VECTORS[0]))[:5]]
    np.testing.assert_array_equal(found[0], expected)
    np.testing.assert_allclose(scores[0], VECTORS[expected] @ VECTORS[0], rtol=1e-5)


def test_nothing_is_replaced_by_what_cannot_be_built(tmp_path):
    build_clustered(tmp_path / "search", VECTORS, ONE)
    before = storage.read_folder(tmp_path / "search").files
    broken = VECTORS.copy()
    broken[17, 3] = np.nan
    with pytest.raises(InputError, match="finite"):
        build_clustered(tmp_path / "search", broken, ONE)
    for settings in ({"codes": "int4"}, {"block": 0}, {"num_clusters": 5}):
        with pytest.raises(InputError):
            build_clustered(tmp_path / "search", VECTORS, ONE, **settings)
    assert storage.read_folder(tmp_path / "search").files == before

import numpy as np
import pytest

from gr_jax.clustering import cluster_hierarchically
from gr_jax.errors import InputError


def leaves(tree):
    """Documents of each leaf."""
    groups = {}
    for document, (path, length) in enumerate(zip(tree.paths.tolist(), tree.lengths.tolist(), strict=True)):
        assert all(code >= 0 for code in path[:length]) and all(code == -1 for code in path[length:])
        groups.setdefault(tuple(path[:length]), []).append(document)
    return groups


def assert_is_a_tree(tree, branching, leaf_capacity):
    groups = leaves(tree)
    assert max(map(len, groups.values())) <= leaf_capacity
    children = {}
    for path in groups:
        for depth in range(len(path)):
            children.setdefault(path[:depth], set()).add(path[depth])
        assert not any(path[:depth] in groups for depth in range(len(path)))  # no leaf above a leaf
    for codes in children.values():
        assert codes == set(range(len(codes))) and 2 <= len(codes) <= branching


@pytest.mark.parametrize(
    "count, branching, leaf_capacity", [(250, 4, 5), (60, 30, 30), (20, 30, 30), (60, 4, 2), (3, 4, 1)]
)
def test_every_leaf_fits_and_children_are_numbered_without_gaps(count, branching, leaf_capacity):
    points = np.random.default_rng(0).normal(size=(count, 8))
    tree = cluster_hierarchically(points, branching=branching, leaf_capacity=leaf_capacity)
    assert_is_a_tree(tree, branching, leaf_capacity)


def test_finds_clusters_of_clusters():
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(4, 8)) * 20
    fine = coarse[:, None] + rng.normal(size=(4, 4, 8)) * 2
    points = (fine[:, :, None] + rng.normal(size=(4, 4, 10, 8)) * 0.05).reshape(160, 8)
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=10, seed=1)
    assert sorted(leaves(tree).values()) == np.arange(160).reshape(16, 10).tolist()
    assert [len({*tree.paths[i * 40 : (i + 1) * 40, 0].tolist()}) for i in range(4)] == [1] * 4


def test_identical_embeddings_are_cut_into_equal_parts():
    tree = cluster_hierarchically(np.ones((100, 8)), branching=4, leaf_capacity=7)
    assert_is_a_tree(tree, 4, 7)
    assert tree.paths.shape[1] == 2
    assert {len(group) for group in leaves(tree).values()} == {6, 7}


def test_a_few_documents_beside_very_many_equal_ones():
    points = np.concatenate([np.random.default_rng(0).normal(size=(50, 8)), np.zeros((500, 8))])
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=5)
    assert_is_a_tree(tree, 4, 5)


def test_depth_is_bounded_for_embeddings_that_split_badly():
    # Each split takes a few far points off and leaves the rest together.
    points = 2.0 ** np.minimum(np.arange(300), 50)[:, None] * np.ones((1, 8))
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=5, max_levels=3)
    assert_is_a_tree(tree, 4, 5)
    assert tree.paths.shape[1] <= 3 + 3


def test_same_seed_same_tree():
    points = np.random.default_rng(0).normal(size=(250, 8))
    first, again, other = (cluster_hierarchically(points, branching=4, leaf_capacity=5, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.paths, again.paths)
    assert first.paths.shape != other.paths.shape or (first.paths != other.paths).any()


def test_large_nodes_are_clustered_too():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(9000, 8)) + 30 * rng.integers(0, 4, (9000, 1))
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=1000)
    assert_is_a_tree(tree, 4, 1000)


@pytest.mark.parametrize(
    "settings, words", [({"branching": 1}, "two branches"), ({"leaf_capacity": 0}, "leaf"), ({"seed": -1}, "negative")]
)
def test_refuses(settings, words):
    with pytest.raises(InputError, match=words):
        cluster_hierarchically(np.zeros((5, 2)), **settings)

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


def test_every_document_is_under_the_nearest_mean_at_each_level():
    """Among the clusters of its parent; Lloyd's algorithm has come to rest on so few points."""
    points = np.random.default_rng(4).normal(size=(250, 8)).astype(np.float32)
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=10, iterations=200)
    for level in range(tree.paths.shape[1]):
        for parent in {tuple(path) for path in tree.paths[tree.lengths > level, :level].tolist()}:
            under = np.flatnonzero((tree.paths[:, :level] == parent).all(axis=1) & (tree.lengths > level))
            child = tree.paths[under, level]
            means = np.stack([points[under[child == c]].mean(axis=0) for c in range(child.max() + 1)])
            distances = ((points[under, None] - means) ** 2).sum(axis=-1)
            nearest = distances.min(axis=1)
            own = distances[np.arange(len(under)), child]
            assert (own <= nearest * 1.0001).all(), (level, parent)


def test_each_level_may_branch_otherwise():
    points = np.random.default_rng(0).normal(size=(250, 8))
    tree = cluster_hierarchically(points, branching=[8, 2, 3], leaf_capacity=3)
    groups = leaves(tree)
    widest = {}
    for path in groups:
        for depth, code in enumerate(path):
            widest[depth] = max(widest.get(depth, 0), code + 1)
    assert (widest[0], widest[1]) == (8, 2) and {widest[depth] for depth in range(2, len(widest))} <= {2, 3}
    assert widest[2] == 3 and max(map(len, groups.values())) <= 3


@pytest.mark.parametrize("budget", [1, 2, 5, 17, 40, 100])
def test_a_budget_of_leaves_goes_to_the_largest_nodes(budget):
    points = np.random.default_rng(0).normal(size=(250, 8))
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=2, max_leaves=budget)
    groups = leaves(tree)
    assert len(groups) == budget  # of a tree that would have more
    for depth in range(1, tree.paths.shape[1]):
        nodes = {}
        for path, group in groups.items():
            if len(path) >= depth:
                nodes[path[:depth]] = nodes.get(path[:depth], 0) + len(group)
        split = [size for node, size in nodes.items() if node not in groups]
        whole = [size for node, size in nodes.items() if node in groups]
        assert not split or not whole or min(split) >= max(whole)


def test_a_budget_is_spent_where_nodes_have_fewer_documents_than_branches():
    random = np.random.default_rng(0)
    sizes = [200, 30, 30, 30, 10]  # around far centers: what is above is split into these
    points = np.repeat(100 * np.eye(5, 8), sizes, axis=0) + random.normal(size=(300, 8))
    for budget in (100, 160, 220, 299):
        tree = cluster_hierarchically(points, branching=[5, 60], leaf_capacity=1, max_leaves=budget)
        assert len(leaves(tree)) == budget and tree.lengths.max() == 2  # in no more levels than there are widths


def test_a_budget_beyond_the_widths_is_spent_level_by_level():
    points = np.random.default_rng(0).normal(size=(400, 8))
    tree = cluster_hierarchically(points, branching=[4, 3], leaf_capacity=1, max_leaves=60)
    assert len(leaves(tree)) == 60 and tree.paths.shape[1] > 2
    assert [tree.paths[:, level].max() + 1 for level in range(3)] == [4, 3, 3]


def test_leaves_are_numbered_in_the_order_of_their_paths():
    points = np.random.default_rng(0).normal(size=(60, 8))
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=2)
    leaf, first = tree.leaves()
    paths = sorted(map(tuple, np.unique(tree.paths, axis=0).tolist()))
    assert [paths[number] for number in leaf] == [tuple(path) for path in tree.paths.tolist()]
    assert [tuple(tree.paths[document].tolist()) for document in first] == paths


@pytest.mark.parametrize("branching", [[], [4, 1]])
def test_bad_branchings(branching):
    with pytest.raises(InputError, match="two branches"):
        cluster_hierarchically(np.ones((9, 2)), branching=branching)


def test_a_budget_of_no_leaves():
    with pytest.raises(InputError, match="max_leaves"):
        cluster_hierarchically(np.ones((9, 2)), max_leaves=0)

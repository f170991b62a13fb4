"""The stage of clusters: every algorithm gives identifiers of so many clusters, with every document in its own."""

import math

import numpy as np
import pytest

from gr_jax import clustering, docids, storage
from gr_jax.errors import InputError
from gr_jax.stages.clusters import (
    ALGORITHMS,
    Clusters,
    clusters_of,
    level_widths,
    load_clusters,
    make_clusters,
    number_of_clusters,
    sizes,
)
from gr_jax.stages.docids import load_docids
from gr_jax.stages.graph import stage
from gr_jax.stages.runner import Runner
from gr_jax.systems.dsi_clusters import numbered

VECTORS = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)


def partition(cids) -> set[frozenset[int]]:
    return {frozenset(cids.documents_of(row).tolist()) for row in range(len(cids))}


@pytest.mark.parametrize("tokens", ["node", "position"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_document_is_in_one_of_the_clusters(algorithm, tokens):
    settings = Clusters(algorithm=algorithm, budget=12, tokens=tokens, sample=90)
    cids = make_clusters(VECTORS, settings)
    assert len(cids) == 12 and sorted(cids.documents.tolist()) == list(range(90))
    assert cids.levels is not None and cids.eos_id is None
    cids.check()


def test_clusters_are_those_of_the_algorithm():
    expected = {
        "kmeans": clustering.kmeans(VECTORS, 12),
        "spherical": clustering.kmeans(VECTORS, 12, metric="cosine"),
        "balanced": clustering.balanced_kmeans(VECTORS, 12),
        "agglomerative": clustering.agglomerative(VECTORS, 12),
    }
    for algorithm, found in expected.items():
        cids = make_clusters(VECTORS, Clusters(algorithm=algorithm, budget=12))
        groups = {frozenset(np.flatnonzero(found.assignments == c).tolist()) for c in range(12)}
        assert partition(cids) == groups, algorithm
    tree = docids.hierarchical_kmeans(VECTORS, branching=12, leaf_capacity=1, leaf="share", clusters=12)
    assert partition(make_clusters(VECTORS, Clusters(budget=12))) == partition(tree)


@pytest.mark.parametrize("algorithm", ["hierarchical", "kmeans"])
def test_documents_at_a_border_are_in_several(algorithm):
    once, more = (
        make_clusters(VECTORS, Clusters(algorithm=algorithm, budget=12, most_docids=most, margin=0.3))
        for most in (1, 3)
    )
    assert len(more) == len(once) and len(more.documents) > 100
    counts = np.bincount(more.documents, minlength=90)
    assert counts.min() == 1 and counts.max() <= 3
    rows_of = {tuple(once.sequence(row)): set(once.documents_of(row).tolist()) for row in range(12)}
    for row in range(12):
        assert rows_of[tuple(more.sequence(row))] <= set(more.documents_of(row).tolist())


def test_names_are_paths_of_neighbours():
    """Flat clusters whose means lie together begin alike."""
    corners = np.repeat(np.eye(3, dtype=np.float32) * 50, 4, axis=0)  # 3 corners of 4 clusters each
    where = np.arange(120) % 12
    vectors = corners[where] + np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)[where]
    cids = docids.name_clusters(vectors, where, branching=[3, 4], tokens="node")
    first = {document: cids.tokens[row, 0] for row in range(12) for document in cids.documents_of(row).tolist()}
    assert cids.tokens.shape[1] == 2
    assert len({(first[d], d % 12 // 4) for d in range(120)}) == 3


@pytest.mark.parametrize("branching", [3, [2, 5], [2, 3, 9]])
@pytest.mark.parametrize("tokens", ["node", "position"])
def test_names_are_all_as_long(branching, tokens):
    """Tokens that end a name and tokens that do not never compete at one place."""
    where = np.arange(90) % 13
    cids = docids.name_clusters(VECTORS, where, branching=branching, tokens=tokens)
    widths = {"3": (3, 3, 3), "[2, 5]": (2, 5, 5), "[2, 3, 9]": (2, 3, 9)}[str(branching)]
    assert len(cids) == 13 and set(cids.lengths.tolist()) == {len(widths)}
    children: dict[tuple, set] = {}
    for row in range(13):
        path = cids.sequence(row)
        for depth, token in enumerate(path):
            children.setdefault(tuple(path[:depth]), set()).add(token)
    assert all(len(found) <= widths[len(path)] for path, found in children.items())


def test_the_budget_is_of_leaves_however_large_the_corpus():
    for count in (40, 90):
        cids = make_clusters(VECTORS[:count], Clusters(budget=30, branching=4))
        assert len(cids) == 30
    assert len(make_clusters(VECTORS[:20], Clusters(budget=30))) == 20
    for leaves in (2, 3, 5, 800, 1024, 1025, 5000, 10_000, 1024**2, 1024**2 + 1):
        widths = level_widths(leaves)
        assert leaves <= np.prod(widths) < leaves + np.prod(widths[:-1]) and len(widths) == math.ceil(
            math.log(leaves) / math.log(1024) - 1e-9
        )
        assert len(widths) == 1 or 2 <= widths[0] < widths[-1]
    assert Clusters().widths == [800] and level_widths(10_000) == [70, 143]


def with_copies(distance: float) -> np.ndarray:
    """The vectors, and behind them one of the first and two of the second, so far away (of its length)."""
    away = np.random.default_rng(1).normal(size=(3, 6))
    away *= distance * np.linalg.norm(VECTORS, axis=1).mean() / np.linalg.norm(away, axis=1, keepdims=True)
    return np.concatenate([VECTORS, (VECTORS[[0, 1, 1]] + away).astype(np.float32)])


@pytest.mark.parametrize("distance", [0.0, 1e-6, 1e-4], ids=["exact", "near", "nearly"])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "balanced"])  # it goes by size first
def test_copies_share_a_cluster_and_make_no_name_longer(algorithm, distance):
    cids = make_clusters(with_copies(distance), Clusters(algorithm=algorithm))
    assert {group for group in partition(cids) if len(group) > 1} == {frozenset([0, 90]), frozenset([1, 91, 92])}
    assert len(cids) == 90 and cids.levels == ((2, 90),)


@stage()
def given(place, *, vectors, owner):
    """Vectors as a stage gives them."""
    np.save(place.folder / "owner.npy", np.array(owner, np.int32))
    np.save(place.folder / "vectors.npy", np.array(vectors, np.float32))


def runner_in(folder) -> Runner:
    return Runner(folder / "run", say=lambda line: None)


@pytest.mark.parametrize("distance", [0.0, 1e-6])
def test_copies_have_docids_of_their_own_in_the_cluster_that_they_share(tmp_path, distance):
    made = given(vectors=with_copies(distance).tolist(), owner=range(93))
    settings, runner = Clusters(), runner_in(tmp_path)
    stage_of_docids = numbered(
        made, branching=settings.widths, budget=settings.budget, seed=settings.seed, tokens=settings.tokens
    )
    runner.run([made, stage_of_docids])
    ids = load_docids(runner.folder(stage_of_docids))
    path = {document: ids.sequence(row) for row in range(93) for document in ids.documents_of(row).tolist()}
    assert len(path) == 93 and {len(docid) for docid in path.values()} == {2}
    assert len({docid[0] for docid in path.values()}) == 90
    assert path[0][0] == path[90][0] and path[1][0] == path[91][0] == path[92][0]


def test_how_many_clusters():
    assert [number_of_clusters(VECTORS, budget) for budget in (2, 89, 90, 800)] == [2, 89, 90, 90]
    assert number_of_clusters(np.repeat(VECTORS, 3, axis=0), 800) == 90
    lengths = np.where(np.arange(90) % 30, 1.0, 1000.0)[:, None]
    assert number_of_clusters(np.repeat(VECTORS * lengths, 2, axis=0), 800) == 90
    assert number_of_clusters(VECTORS * 1000, 800) == number_of_clusters(VECTORS / 1000, 800) == 90
    for same in (np.ones((5, 6)), np.zeros((5, 6))):  # one cluster would have no name
        assert number_of_clusters(same, 800) == len(make_clusters(same, Clusters())) == 2
    with pytest.raises(InputError, match="not finite"):
        number_of_clusters(np.full((5, 6), np.nan), 800)


def test_the_key_holds_what_the_algorithm_reads():
    vectors = given(vectors=(), owner=())

    def key(**settings):
        return clusters_of(vectors, Clusters(**settings)).key

    assert key() == key(sample=5000) == key(margin=0.5) == key(branching=Clusters().widths)
    assert (
        len({key(), key(budget=900), key(algorithm="kmeans"), key(most_docids=2), key(most_docids=2, margin=0.2)}) == 5
    )
    assert key(algorithm="agglomerative") != key(algorithm="agglomerative", sample=5000)
    assert len({key(), key(branching=30), key(branching=[2, 400]), key(tokens="position"), key(seed=1)}) == 5
    other = given(vectors=[[1.0]], owner=[0])
    assert clusters_of(other, Clusters()).key != key()


@pytest.mark.parametrize(
    "settings", [{"branching": 1}, {"branching": [4, 1]}, {"branching": []}, {"margin": -1.0}, {"seed": -1}]
)
def test_settings_that_make_no_clusters(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Clusters(**settings)


def test_the_stage(tmp_path):
    made = given(vectors=VECTORS.tolist(), owner=range(90))
    clustered = clusters_of(made, Clusters(budget=12))
    runner = runner_in(tmp_path)
    runner.run([made, clustered])
    cids = load_clusters(runner.folder(clustered))
    assert partition(cids) == partition(make_clusters(VECTORS, Clusters(budget=12)))
    meta = storage.read_folder(runner.folder(clustered), "clusters").meta
    assert meta["clusters"] == 12 and meta["documents"] == 90 and meta["clusters_per_document"] == 1
    counts = np.diff(cids.offsets)
    assert meta["sizes"]["0"] == counts.min() and meta["sizes"]["0.5"] == np.median(counts)
    assert meta["sizes"]["1"] == counts.max() and sizes(cids)["sizes"] == meta["sizes"]


def test_passages_are_refused(tmp_path):
    made = given(vectors=(), owner=[0, 0, 1])
    with pytest.raises(InputError, match="several vectors"):
        runner_in(tmp_path).run([made, clusters_of(made, Clusters())])


@pytest.mark.parametrize(
    "settings", [{"algorithm": "dbscan"}, {"budget": 1}, {"most_docids": 0}, {"tokens": "word"},
                 {"algorithm": "agglomerative", "sample": 10}],
)  # fmt: skip
def test_refused(settings):
    with pytest.raises(InputError):
        Clusters(**settings)

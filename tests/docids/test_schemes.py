import numpy as np
import pytest

from gr_jax import clustering
from gr_jax import docids as docids_lib
from gr_jax.clustering import cluster_hierarchically, nearby_clusters
from gr_jax.docids import (
    atomic,
    codeword_vectors,
    hierarchical_kmeans,
    naive_numeric,
    residual_quantization,
    token_vectors,
)
from gr_jax.errors import InputError


def sequence_of(docids, document):
    (row,) = docids.rows_of(document)
    return docids.sequence(row)


def embeddings(count=120, d=8, seed=0):
    return np.random.default_rng(seed).normal(size=(count, d)).astype(np.float32)


SETTINGS = {"branching": 4, "leaf_capacity": 6}


def test_hierarchical_tokens_by_position_are_the_path_and_the_place_in_the_leaf():
    points = embeddings()
    docids = hierarchical_kmeans(points, **SETTINGS, first_token=5)
    tree = cluster_hierarchically(points, **SETTINGS)
    size = 6
    assert docids.levels == tuple((5 + level * size, size) for level in range(docids.tokens.shape[1]))
    assert docids.eos_id is None and docids.vocab_size == 5 + size * len(docids.levels)
    places = {}
    for document in range(len(points)):
        codes = [token - 5 - level * size for level, token in enumerate(sequence_of(docids, document))]
        path = tuple(tree.paths[document, : tree.lengths[document]].tolist())
        place = places[path] = places.get(path, -1) + 1
        assert codes == [*path, place]
        assert docids.name(docids.rows_of(document)[0]) == "-".join(map(str, codes))


def test_hierarchical_tokens_by_node_name_every_node_of_the_same_tree():
    points = embeddings()
    by_position = hierarchical_kmeans(points, **SETTINGS)
    by_node = hierarchical_kmeans(points, **SETTINGS, tokens="node")
    names = {}
    for document in range(len(points)):
        path, nodes = sequence_of(by_position, document), sequence_of(by_node, document)
        assert len(path) == len(nodes)
        for depth, node in enumerate(nodes):
            assert names.setdefault(node, tuple(path[: depth + 1])) == tuple(path[: depth + 1])
    assert len(set(names.values())) == len(names) == by_node.vocab_size - 2
    for level, (start, size) in enumerate(by_node.levels):
        assert {node for node, path in names.items() if len(path) == level + 1} == set(range(start, start + size))


def test_coarse_clusters_share_their_docid():
    points = embeddings()
    docids = hierarchical_kmeans(points, branching=4, leaf_capacity=1, leaf="share", clusters=9)
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=1, max_leaves=9)
    assert len(docids) == 9 and docids.num_documents == 120
    docids.check()
    for document in range(len(points)):
        path = tree.paths[document, : tree.lengths[document]].tolist()
        assert docids.name(docids.rows_of(document)[0]) == "-".join(map(str, path))
    by_node = hierarchical_kmeans(points, branching=4, leaf_capacity=1, leaf="share", clusters=9, tokens="node")
    assert [docids.documents_of(row).tolist() for row in range(9)] == [
        by_node.documents_of(row).tolist() for row in range(9)
    ]


def test_positions_of_a_last_level_that_a_budget_widened():
    points = np.repeat(100 * np.eye(4, 8), [200, 30, 30, 20], axis=0)
    points += np.random.default_rng(0).normal(size=points.shape)
    docids = hierarchical_kmeans(points, branching=[4, 60], leaf_capacity=1, leaf="share", clusters=230)
    assert len(docids) == 230 and len(docids.levels) == 2 and docids.levels[0][1] > 60
    for (start, size), tokens in zip(docids.levels, docids.tokens.T, strict=True):
        tokens = tokens[tokens != 0]
        assert start <= tokens.min() and tokens.max() < start + size


def test_a_budget_makes_leaves_that_need_more_numbers_than_planned():
    docids = hierarchical_kmeans(embeddings(), branching=4, leaf_capacity=2, clusters=5)
    assert len(docids) == 120 and docids.levels[0][1] > 4
    docids.check()


@pytest.mark.parametrize("tokens", ["position", "node"])
@pytest.mark.parametrize("leaf", ["number", "share"])
def test_documents_near_a_border_have_several_docids(leaf, tokens):
    points = embeddings()
    settings = {"branching": 4, "leaf_capacity": 20, "tokens": tokens, "leaf": leaf}
    alone = hierarchical_kmeans(points, **settings)
    several = hierarchical_kmeans(points, **settings, most_docids=3, margin=0.15)
    several.check()
    tree = cluster_hierarchically(points, branching=4, leaf_capacity=20)
    cluster, first = tree.leaves()
    documents, nearby = nearby_clusters(points, cluster, most=2, margin=0.15)
    assert 0 < len(documents) < 240
    wanted = {document: {int(cluster[document])} for document in range(120)}
    for document, other in zip(documents.tolist(), nearby.tolist(), strict=True):
        wanted[document].add(other)

    def path_of(name: str) -> tuple[int, ...]:
        codes = tuple(map(int, name.split("-")))
        return codes[:-1] if leaf == "number" else codes

    for document in range(120):
        rows = several.rows_of(document)
        assert len(rows) == len(wanted[document]) <= 3
        if tokens == "position":
            leaves = {tuple(tree.paths[first[number], : tree.lengths[first[number]]]) for number in wanted[document]}
            assert {path_of(several.name(row)) for row in rows} == leaves
            (own,) = alone.rows_of(document)
            assert alone.name(own) in {several.name(row) for row in rows}  # extra documents come after a leaf's own
    if leaf == "number":
        assert np.diff(several.offsets).max() == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"leaf": "share", "leaf_capacity": 500}, "nothing to call it by"),
        ({"leaf": "stop"}, "number, share"),
        ({"most_docids": 0}, "most_docids"),
        ({"most_docids": 2, "margin": -1.0}, "margin"),
        ({"clusters": 0}, "at least one leaf"),
    ],
)
def test_hierarchies_that_cannot_be(changes, words):
    with pytest.raises(InputError, match=words):
        hierarchical_kmeans(embeddings(), **{**SETTINGS, **changes})


def test_duplicate_embeddings_beyond_a_leaf_get_docids_of_their_own():
    docids = hierarchical_kmeans(np.zeros((200, 4)), branching=3, leaf_capacity=4)
    assert len(docids) == 200
    docids.check()


def test_one_document():
    assert hierarchical_kmeans(np.ones((1, 4))).tokens.tolist() == [[2]]


def test_naive_numbers():
    docids = naive_numeric(1100)
    for document in (0, 7, 10, 99, 100, 1099):
        assert sequence_of(docids, document) == [2 + int(digit) for digit in str(document)]
    assert docids.eos_id == 1 and len(docids) == 1100
    fixed = naive_numeric(1100, fixed_width=True, first_token=3)
    for document in (0, 7, 10, 99, 100, 1099):
        assert sequence_of(fixed, document) == [3 + int(digit) for digit in f"{document:04d}"]
    assert fixed.eos_id is None


def test_atomic():
    docids = atomic(50, first_token=4)
    assert [sequence_of(docids, document) for document in range(50)] == [[4 + document] for document in range(50)]
    assert docids.vocab_size == 54


@pytest.mark.parametrize("tokens", ["position", "node"])
def test_token_vectors_are_the_means_of_the_documents_under_a_token(tokens):
    points = embeddings()
    docids = hierarchical_kmeans(points, **SETTINGS, tokens=tokens)
    vectors = token_vectors(docids, points)
    under = [set() for _ in range(docids.vocab_size)]
    for document in range(len(points)):
        for token in sequence_of(docids, document):
            under[token].add(document)
    for token, documents in enumerate(under):
        wanted = points[sorted(documents)].mean(0) if documents else np.zeros(8)
        np.testing.assert_allclose(vectors[token], wanted, atol=1e-5)
    if tokens == "node":
        last = np.stack([vectors[sequence_of(docids, document)[-1]] for document in range(len(points))])
        np.testing.assert_allclose(last, points, atol=1e-6)


def test_additive_token_vectors_of_quantised_documents_sum_to_their_embeddings():
    points = embeddings()
    docids = residual_quantization(points, levels=3, bits=2)
    vectors = token_vectors(docids, points, additive=True)
    left = points.astype(np.float64)
    for level in range(docids.tokens.shape[1]):
        under: dict[int, list[int]] = {}
        for document in range(len(points)):
            sequence = sequence_of(docids, document)
            if level < len(sequence):
                under.setdefault(sequence[level], []).append(document)
        for token, documents in under.items():
            np.testing.assert_allclose(vectors[token], left[documents].mean(0), atol=1e-5)
            left[documents] -= left[documents].mean(0)
    sums = np.stack([vectors[sequence_of(docids, document)].sum(0) for document in range(len(points))])
    np.testing.assert_allclose(points - sums, left, atol=1e-5)
    assert (left**2).sum(1).mean() <= docids.meta["reconstruction_error"] * (1 + 1e-6)


@pytest.mark.parametrize("collisions, refits", [("reserved", 0), ("reserved", 3), ("number", 3)])
def test_codewords_sum_to_what_codes_stand_for(collisions, refits):
    points = embeddings()
    books = clustering.learn_codebooks(points, levels=3, bits=2, refits=refits)
    docids = residual_quantization(points, codebooks=books, collisions=collisions, refits=refits)
    vectors = codeword_vectors(docids, points, books)
    wanted = clustering.reconstruct(docids_lib.codes_of(docids), books)
    for document in range(len(points)):
        tokens = sequence_of(docids, document)
        np.testing.assert_allclose(vectors[tokens[:3]].sum(axis=0), wanted[document], atol=1e-5)
        for token in tokens[3:]:
            np.testing.assert_allclose(vectors[token], (points - wanted).mean(axis=0), atol=1e-5)
    with pytest.raises(InputError, match="are not those of these docids"):
        codeword_vectors(docids, points, books[:, :2])
    with pytest.raises(InputError, match="are not those of these docids"):
        codeword_vectors(docids, points, books[:2])
    with pytest.raises(InputError, match="are not those of these docids"):
        codeword_vectors(atomic(len(points)), points, books)


def test_token_vectors_refuse_embeddings_of_another_corpus():
    with pytest.raises(InputError, match="for 50 documents"):
        token_vectors(atomic(50), embeddings(49))


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: atomic(0), "no documents"),
        (lambda: naive_numeric(0), "no documents"),
        (lambda: atomic(3, first_token=0), "padding"),
        (lambda: naive_numeric(3, first_token=1), "EOS"),
        (lambda: hierarchical_kmeans(np.zeros((3, 2)), tokens="leaf"), "unknown kind"),
        (lambda: hierarchical_kmeans(np.zeros((3, 2)), first_token=0), "padding"),
        (lambda: hierarchical_kmeans(np.zeros((0, 2))), "matrix"),
    ],
)
def test_refuses(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_names_for_the_eye():
    assert [naive_numeric(120).name(row) for row in (0, 2, 3)] == ["0", "1-0", "1-0-0"]
    assert [atomic(12).name(row) for row in (0, 11)] == ["0", "11"]

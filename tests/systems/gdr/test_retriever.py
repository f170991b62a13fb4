"""GDR against scoring every cluster by teacher forcing and every document by its inner product, in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from gr_jax.corpus import Queries
from gr_jax.dense import ClusteredSearch, clustered
from gr_jax.docids import Docids, memberships
from gr_jax.errors import InputError, InputWarning
from gr_jax.retrievers import index
from gr_jax.systems.gdr import choice as gdr_choice
from gr_jax.systems.gdr.retriever import GDRRetriever
from gr_jax.systems.gdr.vectors_alone import VectorsAlone
from tests.systems.gdr.small_gdr import (
    DOCUMENTS,
    QUERIES,
    VOCABULARY,
    check,
    cluster_weights,
    corpus,
    like,
    network,
    plain,
    query_vectors,
    retriever,
    table,
    tree,
    vectors,
)


@pytest.mark.parametrize(
    ("similarity", "pooling", "normalize"),
    [("tanh", "mean", "level"), ("cosine", "mean", "vocabulary"), ("dot", "cls", "constraint")],
)
def test_with_all_clusters_it_is_the_formula(similarity, pooling, normalize):
    made = like(plain(), similarity=similarity, pooling=pooling, normalize=normalize)
    for k in (5, DOCUMENTS + 3):
        check(made.retrieve(QUERIES, k), table(made, tree(), vectors()), k)


@pytest.mark.parametrize("codes", [None, "row"])
def test_one_program_finds_what_the_host_finds(codes):
    """Two of the clusters, documents in several of them, int8 codes, added and removed documents, filters."""
    cids = tree(3)
    made = retriever(cids, codes=codes, chosen=2)
    if codes is None:
        check(like(made, fused=True).retrieve(QUERIES, 9), table(made, cids, vectors(), chosen=2), 9)
    made.searcher.add(vectors(5, 7), np.arange(7) % 2 + 3)
    made.searcher.remove([2, 61])
    allowed = np.random.default_rng(0).random((len(QUERIES), DOCUMENTS + 7)) < 0.4
    allowed[1] = False
    host, fused = (like(made, fused=fused).retrieve(QUERIES, 9, allowed=allowed) for fused in (False, True))
    np.testing.assert_allclose(host.score, fused.score, atol=1e-5)
    assert (host.doc_index == fused.doc_index).mean() > 0.9  # scores may tie but for rounding
    assert (fused.doc_index[1] == -1).all() and (fused.doc_index[0, :3] >= 0).all()
    for row, found in enumerate(fused.doc_index):
        assert allowed[row, found[found >= 0]].all() and not {2, 61} & set(found.tolist())


def test_filters_are_exact_and_change_no_score():
    """Of three clusters that hold allowed documents, however bad the clusters are: others take no place in the beam."""
    random = np.random.default_rng(0)
    made = like(plain(), chosen=3)
    for allowed in (
        random.random(DOCUMENTS) < 0.1,
        random.random((len(QUERIES), DOCUMENTS)) < 0.2,
        np.zeros(DOCUMENTS, bool),
    ):
        check(made.retrieve(QUERIES, 8, allowed=allowed), table(made, tree(), vectors(), chosen=3, allowed=allowed), 8)


def test_the_softmax_is_over_the_beam_with_and_without_a_filter():
    """Four beams, more than the first level is wide, so that they are the best four clusters."""
    made = like(plain(), beams=4, beta=1.0)
    weights = cluster_weights(made, 4)
    decoded = made.decode(QUERIES)
    np.testing.assert_allclose(decoded.weights.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(decoded.clusters, np.argsort(-weights, axis=1)[:, :4])
    np.testing.assert_allclose(decoded.weights, np.take_along_axis(weights, decoded.clusters, 1), atol=1e-5)
    outside = np.argsort(-weights, axis=1)[:, 6]
    allowed = np.zeros((len(QUERIES), DOCUMENTS), bool)
    for row, cluster in enumerate(outside):
        allowed[row, tree().documents_of(cluster)] = True
    found = made.retrieve(QUERIES, 1, allowed=allowed, explain=True)
    shares = [reasons[0][0].score for reasons in found.evidence]
    np.testing.assert_allclose(shares, weights[np.arange(len(QUERIES)), outside], atol=1e-5)


@pytest.mark.parametrize("most_docids", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_evidence_is_the_cluster_and_the_similarity(most_docids):
    cids = tree(most_docids)
    made = plain() if most_docids == 1 else retriever(cids)
    weights, similarity = cluster_weights(made), np.tanh(query_vectors(made) @ vectors().T)
    found, named = (made.retrieve(QUERIES, 6, explain=explain) for explain in (True, False))
    for row, documents in enumerate(found.doc_index.tolist()):
        names = [named.docid_of(row, rank) for rank in range(len(documents))]
        assert names == [reasons[0].text for reasons in found.evidence[row]]
        for document, score, (cid, alike) in zip(documents, found.score[row], found.evidence[row], strict=True):
            rows = cids.rows_of(document)
            best = rows[np.argmax(weights[row, rows])]
            assert (cid.kind, cid.text, list(cid.tokens)) == ("docid", cids.name(best), cids.sequence(best))
            np.testing.assert_allclose(cid.score, made.beta * weights[row, best], atol=1e-5)
            np.testing.assert_allclose(alike.score, similarity[row, document], atol=1e-5)
            np.testing.assert_allclose(cid.score + alike.score, score, atol=1e-5)


def test_the_share_that_is_scored():
    sizes, made = np.diff(tree().offsets), plain()
    decoded = made.decode(QUERIES)
    for chosen in (1, 4):
        best = np.argsort(-cluster_weights(made), axis=1)[:, :chosen]
        np.testing.assert_allclose(made.share_scored(decoded, chosen), sizes[best].sum(axis=1) / DOCUMENTS)
    np.testing.assert_allclose(made.share_scored(decoded), 1)


def test_answers_do_not_depend_on_the_other_queries():
    together = plain().retrieve(QUERIES, 4)
    alone = [plain().retrieve([query], 4) for query in QUERIES[:2]]
    for row, found in enumerate(alone):
        np.testing.assert_allclose(found.score[0], together.score[row], atol=1e-5)
        assert (found.doc_index[0] == together.doc_index[row]).all()
    assert plain().retrieve([], 3).doc_index.shape == (0, 3)


def test_other_parameters():
    changed = plain().with_parameters({**network(tree(), seed=2)[1], "document": {"encoder": np.ones(3)}})
    assert set(changed.params) == set(plain().params)
    check(changed.retrieve(QUERIES, 5), table(changed, tree(), vectors()), 5)
    assert np.abs(changed.retrieve(QUERIES, 5).score - plain().retrieve(QUERIES, 5).score).max() > 1e-3


def test_all_clusters_and_vectors_alone():
    made = like(plain(), chosen=2, beams=4)
    decoded = made.decode(QUERIES)
    everywhere = decoded.with_all_clusters(made.searcher.num_clusters)
    assert [sorted(row[row >= 0]) for row in everywhere.clusters] == [list(range(11))] * len(QUERIES)
    similarity = np.tanh(query_vectors(made) @ vectors().T)
    weight = np.zeros((len(QUERIES), DOCUMENTS))
    for query, clusters in enumerate(decoded.clusters):
        for cluster, share in zip(clusters, decoded.weights[query], strict=True):
            weight[query, tree().documents_of(cluster)] = share
    documents, scores = made.search(everywhere, DOCUMENTS, chosen=everywhere.clusters.shape[1])
    expected = similarity + made.beta * weight
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1), atol=1e-5)
    alone = VectorsAlone(made).retrieve(QUERIES, 7)
    np.testing.assert_allclose(alone.score, -np.sort(-similarity, axis=1)[:, :7], atol=1e-5)
    allowed = np.arange(DOCUMENTS) % 3 == 0
    found = VectorsAlone(made).retrieve(QUERIES, 3, allowed=allowed).doc_index
    assert (found % 3 == 0).all() and documents.shape == (len(QUERIES), DOCUMENTS)


def test_what_was_saved_answers_alike(tmp_path, monkeypatch):
    made = retriever(tree(3), beams=7, chosen=5, similarity="cosine", pooling="cls", length_penalty=0.8, beta=0.5)
    made.save(tmp_path / "gdr", corpus="")
    again = index.load_retriever(tmp_path / "gdr")
    names = ("transform", "beams", "chosen", "beta", "similarity", "pooling", "normalize", "length_penalty")
    for name in (*names, "max_query_length"):
        assert getattr(again, name) == getattr(made, name)
    assert again.searcher.asked == "auto"
    numba = GDRRetriever.load(tmp_path / "gdr", backend="numba")
    numba.save(tmp_path / "numba", corpus="")
    assert index.load_retriever(tmp_path / "numba").searcher.asked == "numba"
    with monkeypatch.context() as patched:
        patched.setattr(clustered, "usable", lambda name: False)
        slower = pytest.warns(InputWarning, match="several times slower")
        with slower, pytest.warns(InputWarning, match="numba cannot be imported"):
            assert index.load_retriever(tmp_path / "numba").searcher.backend == "xla"
    one, other = (r.retrieve(QUERIES, 9) for r in (made, again))
    np.testing.assert_array_equal(one.doc_index, other.doc_index)
    np.testing.assert_allclose(one.score, other.score, atol=1e-6)


def test_what_is_chosen_on_dev():
    """Against answering with every setting on its own."""
    made, documents = plain(), corpus(0, DOCUMENTS)
    queries = Queries([f"q{n}" for n in range(4)], QUERIES)
    qrels = {f"q{n}": {f"d{5 * n}": 1, f"d{7 * n + 3}": 1} for n in range(4)}
    settings = {"betas": (0.0, 2.0), "chosen": (1, 3, 50), "measure": "R@10", "measures": ["RR@10"], "k": 10}
    choice = gdr_choice.choose(made, queries, qrels, documents, **settings)
    assert len(choice.table) == 6 and (made.beta, made.chosen) == (1.5, None)
    best = []
    for point in choice.table:
        other = like(made, beta=point["beta"], chosen=point["chosen"])
        found = other.retrieve(QUERIES, 10).doc_index
        right = [[f"d{d}" in qrels[f"q{n}"] for d in row] for n, row in enumerate(found)]
        assert point["R@10"] == pytest.approx(np.mean([sum(row) / len(qrels[f"q{n}"]) for n, row in enumerate(right)]))
        first = [1 / (row.index(True) + 1) if True in row else 0 for row in right]
        assert point["RR@10"] == pytest.approx(np.mean(first))
        assert point["share_scored"] == pytest.approx(other.share_scored(other.decode(QUERIES)).mean())
        best.append((-point["R@10"], point["chosen"], point["beta"]))
    assert (choice.chosen, choice.beta) == min(best)[1:]
    assert (choice.retriever(made).beta, choice.retriever(made).chosen) == (choice.beta, choice.chosen)
    cheap = gdr_choice.choose(made, queries, qrels, documents, most_share=0.0, **settings)
    assert cheap.chosen == 1 and cheap.as_json()["table"] == [dict(point) for point in choice.table]
    for wrong in ({"betas": ()}, {"betas": (-1.0,)}, {"chosen": (0,)}, {"measure": "R@1O"}, {"measure": "R@11"}):
        with pytest.raises(InputError):
            gdr_choice.choose(made, queries, qrels, documents, **{**settings, **wrong})


def test_bad_input():
    for queries, k, message in ((["a", " "], 3, "query 1 is empty"), ("a", 3, "sequence"), (["a"], 0, "k is")):
        with pytest.raises(InputError, match=message):
            plain().retrieve(queries, k)
    with pytest.raises(InputError, match="fit"):
        plain().retrieve(["a"], 3, allowed=np.ones(5, bool))
    for settings in (
        {"beams": 0}, {"chosen": 0}, {"beta": -1.0}, {"beta": float("nan")}, {"similarity": "l2"}, {"pooling": "max"},
        {"normalize": "z"},
    ):  # fmt: skip
        with pytest.raises(InputError):
            retriever(tree(), **settings)


def test_parts_of_other_models_are_refused():
    cids = tree()
    module, params = network(cids)
    searcher = plain().searcher
    narrow = ClusteredSearch(vectors()[:, :8].copy(), memberships(cids))
    other = ClusteredSearch(vectors(), np.arange(DOCUMENTS) % 4)
    small = network(Docids.build([[2], [3]], vocab_size=4))[0]
    for parts, message in (
        ((module, params, VOCABULARY, cids, narrow), "8 numbers"),
        ((module, params, VOCABULARY, cids, other), "4 clusters"),
        ((small, params, VOCABULARY, cids, searcher), "tokens"),
    ):
        with pytest.raises(InputError, match=message):
            GDRRetriever(*parts)

"""GDR over documents of several vectors, and over documents that come and go."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import gr_jax
from gr_jax.corpus import Corpus, Document
from gr_jax.corpus.passages import sentence_passages
from gr_jax.dense import ClusteredSearch, base
from gr_jax.docids import Docids, memberships
from gr_jax.errors import InputError
from gr_jax.retrievers import index
from gr_jax.systems.gdr.retriever import GDRRetriever
from launch.docids import find_docids
from tests.systems.gdr.small_gdr import (
    DOCUMENTS,
    QUERIES,
    VOCABULARY,
    WIDTH,
    check,
    cluster_weights,
    corpus,
    document_encoder,
    like,
    network,
    query_vectors,
    retriever,
    table,
    tree,
    vectors,
)

OWNER = np.sort(np.concatenate([np.arange(24), np.random.default_rng(3).integers(0, 24, DOCUMENTS - 24)]))


@functools.cache
def passages_tree() -> Docids:
    """The clusters of `tree`, of 24 documents."""
    rows = [tree().sequence(tree().rows_of(document)[0]) for document in range(24)]
    return Docids.build(
        rows, vocab_size=14, levels=tree().levels, documents=np.arange(24), duplicates="share"
    )  # fmt: skip


def of_passages(**settings) -> GDRRetriever:
    """24 documents of 60 vectors, one or more each, all in the clusters of their document."""
    cids = passages_tree()
    members = memberships(cids)[OWNER]
    searcher = ClusteredSearch(vectors(), members, num_clusters=len(cids))
    module, params = network(cids)
    settings = {"max_query_length": 32, "batch_size": len(QUERIES), "normalize": "level", "beta": 1.5, **settings}
    return GDRRetriever(module, params, VOCABULARY, cids, searcher, OWNER, most_sentences=2, **settings)


def best_of_passages(made: GDRRetriever, **settings) -> np.ndarray:
    """The table of documents: the best of their vectors'."""
    cids = made.cids
    of_vectors = Docids.build(
        [passages_tree().sequence(passages_tree().rows_of(document)[0]) for document in OWNER], vocab_size=14,
        levels=cids.levels, documents=np.arange(DOCUMENTS), duplicates="share",
    )  # fmt: skip
    scores = table(like(made, cids=of_vectors), of_vectors, vectors(), **settings)
    return np.stack([scores[:, document == OWNER].max(axis=1) for document in range(24)], axis=1)


@pytest.mark.parametrize(
    ("fused", "chosen"), [(False, None), (False, 3), (True, 3), pytest.param(True, None, marks=pytest.mark.slow)]
)
def test_a_document_of_several_vectors_is_found_by_the_best(fused, chosen):
    made = of_passages(fused=fused, chosen=chosen)
    assert made.num_documents == 24
    for k in (9,) if fused else (1, 9, 30):  # a fused search is compiled for each
        check(made.retrieve(QUERIES, k), best_of_passages(made, chosen=chosen), k)
    allowed = np.random.default_rng(0).random((len(QUERIES), 24)) < 0.4
    expected = best_of_passages(made, chosen=chosen, allowed=allowed[:, OWNER])
    check(made.retrieve(QUERIES, 9, allowed=allowed), expected, 9)


def test_evidence_names_the_sentence():
    made = of_passages()
    found = made.retrieve(QUERIES, 4, explain=True)
    similarity = np.tanh(query_vectors(made) @ vectors().T)
    first = np.searchsorted(OWNER, np.arange(24))
    for row, documents in enumerate(found.doc_index.tolist()):
        for document, (_, alike) in zip(documents, found.evidence[row], strict=True):
            its = np.flatnonzero(OWNER == document)
            number = int(its[np.argmax(similarity[row, its])] - first[document])
            assert alike.text == (f"sentence {number}" if number else "document")
            np.testing.assert_allclose(alike.score, similarity[row, its].max(), atol=1e-5)


def test_documents_of_several_vectors_come_and_go(tmp_path):
    encoder = document_encoder()
    made = of_passages(document_encoder=encoder)
    made.save(tmp_path / "old", corpus="")
    made = index.load_retriever(tmp_path / "old")
    new = Corpus.from_documents(
        [Document("a", "t", "The first sentence of it. Another sentence that follows it. And a third one of them.")]
    )
    texts, _ = sentence_passages(new, 2)
    assert len(texts) == 3
    whole = encoder.encode(texts, "document")
    cids, kept = passages_tree(), ~np.isin(OWNER, [4, 5])
    means = np.full((len(cids), WIDTH), np.nan)
    for row in range(len(cids)):
        inside = np.isin(OWNER, cids.documents_of(row)) & kept
        means[row] = vectors()[inside].mean(axis=0) if inside.any() else np.nan
    made.update(add=new, remove=[4, 5])
    assert made.num_documents == 25
    assert sorted(made.docids().documents.tolist()) == [d for d in range(25) if d not in (4, 5)]
    found = made.retrieve(QUERIES, 25)
    assert not np.isin(found.doc_index, [4, 5]).any() and (found.doc_index == 24).sum() == len(QUERIES)
    row = int(np.nanargmax(means @ whole[0]))
    weights, similarity = cluster_weights(made), np.tanh(query_vectors(made) @ whole.T).max(axis=1)
    for query in range(len(QUERIES)):
        score = found.score[query, found.doc_index[query] == 24]
        np.testing.assert_allclose(score, similarity[query] + made.beta * weights[query, row], atol=1e-4)
    for wrong in ([25], [-1], [1.5], [True], ["a"]):
        with pytest.raises(InputError, match="no such document"):
            made.update(remove=wrong)


def test_updates_without_training(tmp_path):
    """An added document is in the cluster whose mean has the largest product with it; all through folders."""
    encoder, cids = document_encoder(), tree()
    made = retriever(cids, document_encoder=encoder)
    index.save(tmp_path / "old", made, corpus(0, DOCUMENTS))
    searcher = gr_jax.load(tmp_path / "old")
    added = encoder.encode(corpus(60, 66).contents, "document")
    means = np.stack([vectors()[cids.documents_of(row)].mean(axis=0) for row in range(len(cids))])
    of_added = np.argmax(added @ means.T, axis=1)
    emptied = next(row for row in range(len(cids)) if row not in of_added)
    removed = sorted({*cids.documents_of(emptied).tolist(), 7})
    searcher.update(add=corpus(60, 66), remove=[f"d{n}" for n in removed])
    entries = [(cids.sequence(cids.rows_of(d)[0]), d) for d in range(DOCUMENTS) if d not in removed]
    entries += [(cids.sequence(row), 60 + n) for n, row in enumerate(of_added)]
    left = Docids.build(
        [tokens for tokens, _ in entries], vocab_size=cids.vocab_size, levels=cids.levels, num_documents=66,
        documents=[document for _, document in entries], duplicates="share",
    )  # fmt: skip
    expected = table(like(made, cids=left), left, np.concatenate([vectors(), added]))
    assert len(left) == len(cids) - 1 and np.isneginf(expected[:, removed]).all()
    for folder in ("new", "again"):
        assert searcher.retriever.num_documents == len(searcher.corpus) == 66
        check(searcher.retrieve(QUERIES, 66), expected, 66)
        index.save(tmp_path / folder, searcher.retriever, searcher.corpus)
        searcher = gr_jax.load(tmp_path / folder)
        described = find_docids(tmp_path / folder)
        for name in ("tokens", "offsets", "documents", "num_documents"):
            np.testing.assert_array_equal(getattr(described, name), getattr(left, name))
    hit = searcher.search(QUERIES[0], 1)[0]
    assert hit.docid and hit.doc_id not in {f"d{n}" for n in removed}


@pytest.mark.slow  # tests/dense shows that backends find the same
def test_scann_inside_the_clusters(tmp_path):
    """The same answers as of every other backend: filters, additions, removals and what was saved."""
    pytest.importorskip(base.SCANN)
    made = retriever(tree(3), backend="scann", beams=11, chosen=5, document_encoder=document_encoder())
    other = retriever(tree(3), beams=11, chosen=5, document_encoder=document_encoder())
    assert made.searcher.backend == "scann" != other.searcher.backend
    allowed = np.random.default_rng(0).random(DOCUMENTS) < 0.4
    check(made.retrieve(QUERIES, 9), table(made, tree(3), vectors(), chosen=5), 9)
    check(made.retrieve(QUERIES, 9, allowed=allowed), table(made, tree(3), vectors(), chosen=5, allowed=allowed), 9)
    for one in (made, other):
        one.update(add=corpus(60, 66), remove=[3, 7])
    made.save(tmp_path / "gdr", corpus="")
    for one in (made, index.load_retriever(tmp_path / "gdr")):
        assert one.searcher.backend == "scann"
        found, expected = (r.retrieve(QUERIES, 12) for r in (one, other))
        np.testing.assert_allclose(found.score, expected.score, atol=1e-5)
        assert (found.doc_index == expected.doc_index).mean() > 0.9 and not np.isin(found.doc_index, [3, 7]).any()


def test_nothing_is_left():
    made = retriever(tree(), document_encoder=document_encoder())
    made.update(remove=range(DOCUMENTS))
    found = made.retrieve(QUERIES, 3, explain=True)
    assert (found.doc_index == -1).all() and found.evidence == ((),) * len(QUERIES)
    with pytest.raises(InputError, match="no documents left"):
        made.decode(QUERIES)
    made.update(add=corpus(60, 62))
    assert sorted(made.retrieve(QUERIES[:1], 3).doc_index[0]) == [-1, 60, 61]


def test_updates_that_cannot_be_change_nothing():
    made = retriever(tree())
    with pytest.raises(InputError, match="nothing to encode"):
        made.update(add=corpus(60, 62), remove=[1])
    made.document_encoder = document_encoder()
    with pytest.raises(InputError, match="no such document"):
        made.update(add=corpus(60, 62), remove=[60])
    assert made.num_documents == DOCUMENTS
    check(made.retrieve(QUERIES, 60), table(made, tree(), vectors()), 60)

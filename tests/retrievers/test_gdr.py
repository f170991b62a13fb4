"""GDR against scoring every cluster by teacher forcing and every document by its inner product, in NumPy."""

from __future__ import annotations

import copy
import functools

import jax
import numpy as np
import pytest

import gr_jax
from gr_jax import models, text
from gr_jax.corpus import Corpus, Document, Queries
from gr_jax.corpus.passages import sentence_passages
from gr_jax.dense import ClusteredSearch
from gr_jax.docids import Docids, memberships
from gr_jax.errors import InputError
from gr_jax.models import BiEncoderConfig
from gr_jax.retrievers import DenseEncoder, GDRRetriever, gdr_choice, index
from gr_jax.retrievers.vectors_alone import VectorsAlone
from launch.docids import find_docids
from tests.retrievers.test_generative import docid_scores

QUERIES = ["a red cat", "dogs", "where is it?", "x"]
VOCABULARY = text.ByteVocabulary()
WIDTH, DOCUMENTS = 16, 60


def vectors(seed: int = 0, documents: int = DOCUMENTS) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(documents, WIDTH)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


@functools.cache
def tree(most_docids: int = 1) -> Docids:
    """Eleven clusters of unequal size: two at depth 1, nine at depth 2."""
    names = [[2], [3], *([4, token] for token in range(5, 14))]
    random = np.random.default_rng(0)
    of = np.stack([random.permutation(11)[:most_docids] for _ in range(DOCUMENTS)])
    of[:11, 0] = np.arange(11)  # none is empty
    return Docids.build(
        [names[cluster] for cluster in of.reshape(-1)], vocab_size=14, levels=[(2, 3), (5, 9)],
        documents=np.repeat(np.arange(DOCUMENTS), most_docids), duplicates="share",
    )  # fmt: skip


def network(cids: Docids, seed: int = 1):
    """A small BERT and a T5 decoder with random parameters, larger than at initialisation, so that scores differ."""
    module = models.EncoderDecoder(
        encoder_config=models.BertConfig(
            vocab_size=VOCABULARY.size, emb_dim=WIDTH, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=64
        ),
        decoder_config=models.T5Config(
            vocab_size=cids.vocab_size, emb_dim=WIDTH, num_heads=2, head_dim=8, num_decoder_layers=1, mlp_dim=24
        ),
        share_embeddings=False,
        query_residual=True,
    )
    tokens = np.ones((1, 4), np.int32)
    shapes = jax.eval_shape(module.init, jax.random.key(0), tokens, tokens)["params"]  # nothing to compile
    random = np.random.default_rng(seed)

    def draw(path, leaf) -> np.ndarray:
        center = 1.0 if "scale" in str(path[-1]) else 0.0
        return np.asarray(center + 0.3 * random.normal(size=leaf.shape), np.float32)

    return module, jax.tree_util.tree_map_with_path(draw, dict(shapes))


def retriever(cids: Docids, *, seed: int = 1, codes: str | None = None, backend: str = "auto", **settings):
    module, params = network(cids, seed)
    searcher = ClusteredSearch(vectors(), memberships(cids), codes=codes, backend=backend, num_clusters=len(cids))
    settings = {"max_query_length": 32, "batch_size": len(QUERIES), "normalize": "level", "beta": 1.5, **settings}
    return GDRRetriever(module, params, VOCABULARY, cids, searcher, **settings)


@functools.cache
def plain() -> GDRRetriever:
    """One that documents stay in."""
    return retriever(tree())


def like(made: GDRRetriever, **changes) -> GDRRetriever:
    """The same with other settings."""
    other = copy.copy(made)
    other.__dict__.update(changes)
    return other


@functools.partial(jax.jit, static_argnums=0)
def _states(module, params, read):
    return module.apply({"params": params}, read, method="encode")


def query_vectors(made: GDRRetriever) -> np.ndarray:
    """From the encoder's states, pooled in NumPy."""
    read, _ = text.encode_texts(VOCABULARY, QUERIES, made.max_query_length)
    states = np.asarray(_states(made.module, made.params, read), np.float64)
    real = (read != 0)[..., None]
    found = (states * real).sum(axis=1) / real.sum(axis=1) if made.pooling == "mean" else states[:, 0]
    return found / np.linalg.norm(found, axis=1, keepdims=True) if made.similarity == "cosine" else found


def cluster_weights(made: GDRRetriever, beams: int | None = None) -> np.ndarray:
    """Softmax over the best clusters, float64[queries, clusters]; for clusters beyond the beam by the same sum."""
    weights = np.exp(docid_scores(_named(made), QUERIES))
    return weights / -np.sort(-weights, axis=1)[:, :beams].sum(axis=1, keepdims=True)


def table(
    made: GDRRetriever, cids: Docids, documents: np.ndarray, *, chosen: int | None = None, allowed=None
) -> np.ndarray:
    """The score of every document, float64[queries, documents]: of the best clusters that hold an allowed one."""
    similarity = query_vectors(made) @ documents.T.astype(np.float64)
    similarity = np.tanh(similarity) if made.similarity == "tanh" else similarity
    allowed = np.broadcast_to(True if allowed is None else allowed, similarity.shape)
    weights = cluster_weights(made)
    scores = np.full(similarity.shape, -np.inf)
    for query in range(len(QUERIES)):
        held = [row for row in range(len(cids)) if allowed[query, cids.documents_of(row)].any()]
        for row in sorted(held, key=lambda row: -weights[query, row])[:chosen]:
            inside = cids.documents_of(row)
            found = similarity[query, inside] + made.beta * weights[query, row]
            scores[query, inside] = np.maximum(scores[query, inside], found)
    return np.where(allowed, scores, -np.inf)


def _named(made: GDRRetriever):
    """What `docid_scores` reads of a generative retriever."""

    class Named:
        docids, module, params = made.cids, made.module, made.params
        normalize, max_query_length = made.normalize, made.max_query_length

    return Named


def check(ranking, scores: np.ndarray, k: int) -> None:
    """The k best of a table of scores, −inf for those that must not be found."""
    best = np.full((len(scores), k), -np.inf)
    best[:, : scores.shape[1]] = -np.sort(-scores, axis=1)[:, :k]
    np.testing.assert_allclose(ranking.score, best, atol=1e-5)
    assert (ranking.doc_index >= 0).tolist() == np.isfinite(best).tolist()
    for row, documents in enumerate(ranking.doc_index):
        real = documents[documents >= 0]
        assert len(set(real.tolist())) == len(real)
        np.testing.assert_allclose(scores[row, real], ranking.score[row, : len(real)], atol=1e-5)


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


@pytest.mark.parametrize("most_docids", [1, 3])
def test_evidence_is_the_cluster_and_the_similarity(most_docids):
    cids = tree(most_docids)
    made = plain() if most_docids == 1 else retriever(cids)
    weights, similarity = cluster_weights(made), np.tanh(query_vectors(made) @ vectors().T)
    found = made.retrieve(QUERIES, 6, explain=True)
    for row, documents in enumerate(found.doc_index.tolist()):
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


def document_encoder() -> DenseEncoder:
    stack = models.BertConfig(
        vocab_size=VOCABULARY.size, emb_dim=WIDTH, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=64
    )
    config = BiEncoderConfig(stack, similarity="cosine")
    module, tokens = models.BiEncoder(config), np.ones((1, 4), np.int32)
    params = jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"]
    return DenseEncoder(config, params, VOCABULARY, query_length=32, document_length=32)


def corpus(first: int, last: int) -> Corpus:
    return Corpus.from_documents(Document(f"d{n}", "", f"text number {n} of {n * n}") for n in range(first, last))


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


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("chosen", [None, 3])
def test_a_document_of_several_vectors_is_found_by_the_best(fused, chosen):
    made = of_passages(fused=fused, chosen=chosen)
    assert made.num_documents == 24
    for k in (1, 5, 30):
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
    with pytest.raises(InputError, match="no document has this position"):
        made.update(remove=[25])


def test_all_clusters_and_vectors_alone():
    made = like(plain(), chosen=2, beams=4)
    decoded = made.decode(QUERIES)
    everywhere = made.with_all_clusters(decoded)
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


def test_what_was_saved_answers_alike(tmp_path):
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

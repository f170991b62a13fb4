"""GDR against scoring every cluster by teacher forcing and every document by its inner product, in NumPy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from gr_jax import models, text
from gr_jax.dense import ClusteredSearch
from gr_jax.docids import Docids, hierarchical_kmeans
from gr_jax.retrievers.gdr import GDRRetriever, memberships
from tests.retrievers.test_generative import docid_scores

QUERIES = ["a red cat", "dogs", "where is it?", "x"]
VOCABULARY = text.ByteVocabulary()
WIDTH, DOCUMENTS = 16, 60


def vectors(seed: int = 0, documents: int = DOCUMENTS) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(documents, WIDTH)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def tree(most_docids: int = 1) -> Docids:
    return hierarchical_kmeans(
        vectors(), branching=3, leaf_capacity=1, leaf="share", clusters=11, most_docids=most_docids, margin=0.5,
        tokens="node",
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
    searcher = ClusteredSearch(vectors(), memberships(cids), codes=codes, backend=backend)
    settings = {"max_query_length": 32, "batch_size": len(QUERIES), **settings}
    return GDRRetriever(module, params, VOCABULARY, cids, searcher, **settings)


def query_vectors(made: GDRRetriever) -> np.ndarray:
    """From the encoder's states, pooled in NumPy."""
    read, _ = text.encode_texts(VOCABULARY, QUERIES, made.max_query_length)
    states = np.asarray(made.module.apply({"params": made.params}, read, method="encode"), np.float64)
    real = (read != 0)[..., None]
    found = (states * real).sum(axis=1) / real.sum(axis=1) if made.pooling == "mean" else states[:, 0]
    return found / np.linalg.norm(found, axis=1, keepdims=True) if made.similarity == "cosine" else found


def table(made: GDRRetriever, cids: Docids, documents: np.ndarray) -> np.ndarray:
    """The score of every document, over all clusters: float64[queries, documents]."""
    similarity = query_vectors(made) @ documents.T.astype(np.float64)
    similarity = np.tanh(similarity) if made.similarity == "tanh" else similarity
    weights = np.exp(docid_scores(_named(made), QUERIES))
    weights /= weights.sum(axis=1, keepdims=True)
    scores = np.full(similarity.shape, -np.inf)
    for row in range(len(cids)):
        inside = cids.documents_of(row)
        scores[:, inside] = np.maximum(scores[:, inside], similarity[:, inside] + made.beta * weights[:, row, None])
    return scores


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
    [("tanh", "mean", "vocabulary"), ("cosine", "mean", "level"), ("dot", "cls", "constraint")],
)
def test_with_all_clusters_it_is_the_formula(similarity, pooling, normalize):
    cids = tree()
    made = retriever(cids, similarity=similarity, pooling=pooling, normalize=normalize, beta=1.5)
    for k in (5, DOCUMENTS + 3):
        check(made.retrieve(QUERIES, k), table(made, cids, vectors()), k)

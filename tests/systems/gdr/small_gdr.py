"""A small GDR, and what it must answer: every cluster scored by teacher forcing, every document in NumPy."""

from __future__ import annotations

import copy
import functools

import jax
import numpy as np

from gr_jax import models, text
from gr_jax.corpus import Corpus, Document
from gr_jax.dense import ClusteredSearch
from gr_jax.docids import Docids, memberships
from gr_jax.models import BiEncoderConfig
from gr_jax.retrievers import DenseEncoder
from gr_jax.systems.gdr.retriever import GDRRetriever
from tests.retrievers.random_network import random_parameters
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
    return module, random_parameters(module, seed)


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
        docids, model = made.cids, made._decoder
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

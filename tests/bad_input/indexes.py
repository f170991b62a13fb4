"""A small index of each kind that can be saved, with random weights: nothing is trained."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from benchmarks import small_systems
from gr_jax import dense, docids, models, text
from gr_jax.constraints import Trie
from gr_jax.corpus import Corpus, Document
from gr_jax.corpus.passages import sentence_passages
from gr_jax.dense import ClusteredSearch
from gr_jax.models import BiEncoder, BiEncoderConfig
from gr_jax.models.bert import BertConfig
from gr_jax.retrievers import BM25, DenseEncoder, DenseRetriever, GenerativeRetriever, HybridRetriever, index
from gr_jax.retrievers.rerank import RerankRetriever
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionConfig
from gr_jax.systems.colbert.retriever import LateInteractionRetriever
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from gr_jax.systems.cross_encoder.network import CrossEncoder, CrossEncoderConfig
from gr_jax.systems.cross_encoder.scorer import CrossEncoderScorer
from gr_jax.systems.gdr.retriever import GDRRetriever
from tests import small_data

QUESTION = "where is the red cat"
BYTES = text.ByteVocabulary()
CORPUS = Corpus.from_documents(Document(row["_id"], row["title"], row["text"]) for row in small_data.documents(16))
SHORT = Corpus.from_documents(dataclasses.replace(one, text=one.text[:16]) for one in CORPUS)
BERT = BertConfig(
    vocab_size=BYTES.size + 3, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=100,
    dropout_rate=0.0,
)  # fmt: skip
SETTINGS = {"max_query_length": 32, "batch_size": 1, "beams": 8}


@functools.cache
def _vocabulary() -> text.Vocabulary:
    return text.SentencePieceVocabulary.train([*CORPUS.titles, *CORPUS.texts], 320)


@functools.cache
def _encoder() -> DenseEncoder:
    stack = models.T5Config(
        vocab_size=BYTES.size, emb_dim=16, num_heads=2, head_dim=8, num_encoder_layers=1, mlp_dim=16, dropout_rate=0.0
    )
    config = BiEncoderConfig(encoder=stack, projection=8, similarity="cosine")
    return DenseEncoder(config, _parameters(BiEncoder(config)), BYTES, query_length=24, document_length=32)


def _parameters(module) -> dict:
    tokens = np.ones((1, 8), np.int32)
    return jax.jit(module.init)(jax.random.key(0), tokens, tokens)["params"]


def _tree(first_token: int = 2) -> docids.Docids:
    vectors = np.random.default_rng(0).normal(size=(len(CORPUS), 8)).astype(np.float32)
    return docids.hierarchical_kmeans(vectors, branching=4, leaf_capacity=4, first_token=first_token)


def _bm25() -> BM25:
    return BM25(CORPUS)


def _dsi() -> GenerativeRetriever:
    tree = _tree()
    module = _writer(tree)
    params = small_systems.random_parameters(module, 0)
    return GenerativeRetriever.over_docids(module, params, BYTES, tree, **SETTINGS)


def _writer(tree: docids.Docids) -> models.EncoderDecoder:
    sizes = models.T5Config(vocab_size=BYTES.size, num_encoder_layers=1, **small_systems.SIZES)
    decoder = models.T5Config(vocab_size=tree.vocab_size, **small_systems.SIZES)
    return models.EncoderDecoder(sizes, decoder, share_embeddings=False)


def _trie() -> GenerativeRetriever:
    """A decoder alone behind a prompt, under a trie with a folder of its own."""
    made = small_systems.prompted(CORPUS, _vocabulary(), **SETTINGS)
    assert isinstance(made.constraint, Trie)
    return made


def _ngrams() -> GenerativeRetriever:
    return small_systems.ngrams(SHORT, seed=4, **SETTINGS)  # one that finds something


def _contextual_titles() -> GenerativeRetriever:
    return small_systems.contextual_titles(CORPUS, _vocabulary(), **SETTINGS)


def _gdr(most_sentences: int = 0) -> GDRRetriever:
    cids = _tree()
    texts, owner = sentence_passages(CORPUS, most_sentences)
    vectors = np.random.default_rng(1).normal(size=(len(texts), 16)).astype(np.float32)
    held = docids.memberships(cids)
    if most_sentences:
        held = [np.asarray(held)[document] for document in owner]
    searcher = ClusteredSearch(vectors, np.asarray(held), num_clusters=len(cids))
    module = _writer(cids)
    params = small_systems.random_parameters(module, 0)
    settings = {**SETTINGS, "most_sentences": most_sentences, "similarity": "dot"}
    return GDRRetriever(module, params, BYTES, cids, searcher, owner if most_sentences else None, **settings)


def _dense(search: str = "exact", most_sentences: int = 0, **settings) -> DenseRetriever:
    texts, owner = sentence_passages(CORPUS, most_sentences)
    searcher = dense.make_searcher(search, _encoder().encode(texts, "document"), **settings)
    return DenseRetriever(_encoder(), searcher, owner if most_sentences else None, most_sentences=most_sentences)


def _late_interaction() -> LateInteractionRetriever:
    config = LateInteractionConfig(
        BERT, dimension=8, query_length=24, mask_token=BYTES.size, query_marker=BYTES.size + 1,
        document_marker=BYTES.size + 2, prefix_length=0, skipped_tokens=(),
    )  # fmt: skip
    module = LateInteraction(config)
    encoder = TokenEncoder(module, _parameters(module), BYTES, query_length=24, document_length=40, batch_size=8)
    return LateInteractionRetriever(
        encoder, encoder.encode_documents(CORPUS.contents, precision="float32"), first=_bm25(), depth=8
    )


def _rerank() -> RerankRetriever:
    config = CrossEncoderConfig(BERT, similarity=True, max_sim_scale=2.0, query_length=16, prefix_length=0)
    module = CrossEncoder(config)
    scorer = CrossEncoderScorer(module, _parameters(module), BYTES, query_length=16, max_length=64, batch_size=4)
    return RerankRetriever(_bm25(), scorer, CORPUS, depth=4)


def _hybrid() -> HybridRetriever:
    return HybridRetriever({"BM25": _bm25(), "dense": _dense()}, (0.5, 0.5))


KINDS: dict[str, Callable] = {
    "bm25": _bm25,
    "dsi": _dsi,
    "trie": _trie,
    "ngrams": _ngrams,
    "contextual_titles": _contextual_titles,
    "gdr": _gdr,
    "gdr_sentences": functools.partial(_gdr, 2),
    "dense": _dense,
    "dense_sentences": functools.partial(_dense, most_sentences=2),
    "clustered": functools.partial(_dense, "clustered", clusters=np.arange(16) % 3),
    "late_interaction": _late_interaction,
    "rerank": _rerank,
    "hybrid": _hybrid,
}


def write(kind: str, folder: pathlib.Path) -> pathlib.Path:
    """Saves the index of a kind as `folder`, and returns it."""
    index.save(folder, KINDS[kind](), SHORT if kind == "ngrams" else CORPUS)
    return folder

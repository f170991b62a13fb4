"""Every kind of index that can take and leave documents, through its folder: it answers as one of what is left."""

import gzip
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import gr_jax
from gr_jax import dense
from gr_jax.corpus import Corpus, Document
from gr_jax.corpus.passages import sentence_passages
from gr_jax.errors import InputError
from gr_jax.models import BertConfig, BiEncoder, BiEncoderConfig
from gr_jax.retrievers import BM25, Searcher, index
from gr_jax.retrievers.dense import DenseRetriever
from gr_jax.retrievers.dense_encoder import DenseEncoder
from gr_jax.retrievers.hybrid import HybridRetriever
from gr_jax.retrievers.rerank import RerankRetriever
from gr_jax.text import ByteVocabulary
from launch import update
from tests import small_data

DOCUMENTS = [Document(row["_id"], row["title"], row["text"]) for row in small_data.documents(20)]
OLD, NEW = Corpus.from_documents(DOCUMENTS[:16]), Corpus.from_documents(DOCUMENTS[16:])
REMOVED = ["d3", "d0", "d15"]
LEFT = Corpus.from_documents(one for one in DOCUMENTS if one.doc_id not in REMOVED)
ASKED = ["where is the red cat", "who saw a green dog in the garden", "blue"]


@pytest.fixture(scope="module")
def encoder():
    stack = BertConfig(vocab_size=300, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=16, max_positions=64)
    config = BiEncoderConfig(stack)
    tokens = np.ones((1, 4), np.int32)
    params = jax.jit(BiEncoder(config).init)(jax.random.key(0), tokens, tokens)["params"]
    return DenseEncoder(config, params, ByteVocabulary(), query_length=32, document_length=48)


class Lengths:
    """Scores a pair by its document's length; can be saved like a cross-encoder, were it one."""

    def __call__(self, pairs):
        return np.array([len(document) for _, document in pairs], np.float32)


def made(kind, encoder, corpus):
    if kind == "bm25":
        return BM25(corpus)
    if kind in ("exact", "clustered"):
        vectors = encoder.encode(corpus.contents, "document")
        settings = {"clusters": np.arange(len(corpus)) % 3, "backend": "xla"} if kind == "clustered" else {}
        return DenseRetriever(encoder, dense.make_searcher(kind, vectors, **settings))
    if kind == "sentences":
        texts, owner = sentence_passages(corpus, 2)
        searcher = dense.make_searcher("exact", encoder.encode(texts, "document"))
        return DenseRetriever(encoder, searcher, owner, most_sentences=2)
    parts = {"BM25": BM25(corpus), "dense": made("exact", encoder, corpus)}
    return HybridRetriever(parts, (0.3, 0.7), depth=9)


# The combination has a part of the two others.
OTHERS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("bm25", "exact")]


@pytest.mark.parametrize("kind", ["clustered", "sentences", "hybrid", *OTHERS])
def test_an_updated_index_answers_as_one_made_of_what_is_left(kind, encoder, tmp_path):
    index.save(tmp_path / "old", made(kind, encoder, OLD), OLD)
    searcher = gr_jax.load(tmp_path / "old")
    searcher.update(add=NEW, remove=REMOVED)
    index.save(tmp_path / "new", searcher.retriever, searcher.corpus)
    expected = made(kind, encoder, LEFT).retrieve(ASKED, 5)
    for found in (searcher, gr_jax.load(tmp_path / "new")):
        ranking = found.retrieve(ASKED, 5)
        names = [[found.corpus.doc_ids[i] for i in row if i >= 0] for row in ranking.doc_index]
        assert names == [[LEFT.doc_ids[i] for i in row if i >= 0] for row in expected.doc_index]
        np.testing.assert_allclose(ranking.score, expected.score, atol=1e-4)
    assert {hit.doc_id for hit in gr_jax.load(tmp_path / "old").search("red cat", 16)} & set(REMOVED)


def test_a_reranker_reads_what_was_added(encoder):
    searcher = gr_jax.retrievers.Searcher(RerankRetriever(BM25(OLD), Lengths(), OLD, depth=20), OLD)
    searcher.update(add=NEW, remove=REMOVED)
    expected = RerankRetriever(BM25(LEFT), Lengths(), LEFT, depth=20).retrieve(ASKED, 20)
    ranking = searcher.retrieve(ASKED, 20)
    names = [[searcher.corpus.doc_ids[i] for i in row if i >= 0] for row in ranking.doc_index]
    assert names == [[LEFT.doc_ids[i] for i in row if i >= 0] for row in expected.doc_index]


class Fixed:
    """A retriever that documents cannot come to."""

    num_documents = 16


def test_where_one_part_cannot_change_none_does():
    """However deep it lies."""
    bm25 = BM25(OLD)
    for part in (Fixed(), RerankRetriever(Fixed(), Lengths(), OLD, depth=5)):
        with pytest.raises(InputError, match="cannot take or leave"):
            HybridRetriever({"BM25": bm25, "other": part}, (0.5, 0.5)).update(add=NEW)
        with pytest.raises(InputError, match="cannot take or leave"):
            Searcher(part, OLD).update(add=NEW)
    assert bm25.num_documents == 16


def test_ids_of_removed_documents_stay_theirs():
    searcher = Searcher(BM25(OLD), OLD).update(remove=["d3"])
    again = Corpus.from_documents([Document("d3", "", "a new text")])
    with pytest.raises(InputError, match="until it was removed.*'d3'"):
        searcher.update(add=again)
    assert searcher.retriever.num_documents == len(searcher.corpus) == 16
    searcher.update(add=NEW, remove=["d3"])  # once more: it is gone already
    assert len(searcher.corpus) == 20


def test_the_program(tmp_path, monkeypatch):
    index.save(tmp_path / "old", BM25(OLD), OLD)
    (tmp_path / "more").mkdir()
    small_data.write_jsonl(tmp_path / "more" / "corpus.jsonl", small_data.documents(20)[16:])
    (tmp_path / "ids.gz").write_bytes(gzip.compress("\n".join([*REMOVED, "", REMOVED[0]]).encode()))
    (tmp_path / "wrong").write_text("d1\n\nnobody\n")
    told = {"index": "old", "add": "more", "remove": "ids.gz", "output": "new"}
    flags = [f"--{name}={tmp_path / file}" for name, file in told.items()]
    command = [sys.executable, "-m", "launch.update", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XLA_FLAGS": ""})
    assert done.returncode == 0 and "4 documents added, 3 removed" in done.stdout, done.stderr
    searcher, expected = gr_jax.load(tmp_path / "new"), BM25(LEFT).retrieve(ASKED, 9)
    np.testing.assert_allclose(searcher.retrieve(ASKED, 9).score, expected.score, rtol=1e-6)
    for changes, says in (
        ({"output": "old"}, "another folder as --output"),
        ({"output": "none", "add": "", "remove": ""}, "nothing is to be added or removed"),
        ({"output": "none", "add": "", "remove": "wrong"}, "wrong:3: no document.*'nobody'"),
    ):
        flags = {name: file and str(tmp_path / file) for name, file in {**told, **changes}.items()}
        monkeypatch.setattr(update.flags, "FLAGS", types.SimpleNamespace(**flags))
        with pytest.raises(InputError, match=says):
            update.main()
    assert not (tmp_path / "none").exists()

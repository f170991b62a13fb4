"""Late interaction from text to ranking, against scoring every pair of texts alone."""

import dataclasses

import jax
import numpy as np
import pytest

from gr_jax.corpus import Corpus, Document
from gr_jax.errors import InputError
from gr_jax.models.bert import BertConfig
from gr_jax.retrievers import BM25, index
from gr_jax.systems.colbert.network import LateInteraction, LateInteractionConfig
from gr_jax.systems.colbert.retriever import LateInteractionRetriever
from gr_jax.systems.colbert.token_encoder import TokenEncoder
from gr_jax.text import ByteVocabulary
from tests.small_data import documents

VOCABULARY = ByteVocabulary()
BERT = BertConfig(
    vocab_size=VOCABULARY.size + 3, emb_dim=16, num_heads=2, num_encoder_layers=1, mlp_dim=24, max_positions=100,
    dropout_rate=0.0,
)  # fmt: skip
CONFIG = LateInteractionConfig(
    BERT, dimension=8, query_length=24, mask_token=VOCABULARY.size, query_marker=VOCABULARY.size + 1,
    document_marker=VOCABULARY.size + 2, prefix_length=0, skipped_tokens=tuple(VOCABULARY.encode(".")),
)  # fmt: skip
TEXTS = [f"{row['title']} {row['text']}" for row in documents(30)]
QUERIES = ["red cat", "who saw a green dog near the river", "black"]


@pytest.fixture(scope="module")
def encoder():
    tokens = np.ones((1, 8), np.int32)
    params = jax.jit(LateInteraction(CONFIG).init)(jax.random.key(0), tokens, tokens)["params"]
    return TokenEncoder(LateInteraction(CONFIG), params, VOCABULARY, query_length=40, document_length=60, batch_size=8)


@pytest.fixture(scope="module")
def retriever(encoder):
    return LateInteractionRetriever(encoder, encoder.encode_documents(TEXTS, precision="float32"))


@pytest.fixture(scope="module")
def scores(encoder):
    """Of every pair, each computed alone, without padding."""
    module, params = encoder.module, encoder.params
    score = jax.jit(lambda query, document: module.apply({"params": params}, query, document)[0])
    rows = [[np.array([row]) for row in encoder.tokenize(texts, side)]
            for texts, side in ((QUERIES, "query"), (TEXTS, "document"))]  # fmt: skip
    width = max(row.shape[1] for row in rows[1])
    padded = [np.pad(row, ((0, 0), (0, width - row.shape[1]))) for row in rows[1]]
    return np.array([[float(score(query, document)) for document in padded] for query in rows[0]])


def test_retrieves_what_scores_best(retriever, scores):
    ranking = retriever.retrieve(QUERIES, 5)
    np.testing.assert_allclose(ranking.score, -np.sort(-scores, axis=1)[:, :5], atol=1e-3)
    np.testing.assert_allclose(np.take_along_axis(scores, ranking.doc_index, axis=1), ranking.score, atol=1e-3)


def test_filters(retriever, scores):
    allowed = np.random.default_rng(0).random((3, 30)) < 0.2
    ranking = retriever.retrieve(QUERIES, 30, allowed=allowed)
    for row in range(3):
        found = ranking.doc_index[row][ranking.doc_index[row] >= 0]
        assert set(found) == set(np.flatnonzero(allowed[row]))
        assert (np.diff(scores[row][found]) < 1e-3).all()


def test_ranking_of_a_first_stage(retriever, scores):
    class First:
        num_documents = 30

        def retrieve(self, queries, k, *, allowed=None, explain=False):
            from gr_jax.retrievers import Ranking

            index = np.tile(np.arange(10, 10 + k, dtype=np.int32), (len(queries), 1))
            index[0, 3:] = -1
            return Ranking(index, np.zeros(index.shape, np.float32))

    reranked = LateInteractionRetriever(retriever.encoder, retriever.vectors, first=First(), depth=6)
    ranking = reranked.retrieve(QUERIES, 4)
    assert ranking.doc_index[0, 3] == -1 and ranking.score[0, 3] == -np.inf
    expected = [10 + np.argsort(-scores[row, 10:16], kind="stable")[:4] for row in (1, 2)]
    np.testing.assert_array_equal(ranking.doc_index[1:], expected)


def test_explanations_sum_to_the_score(retriever):
    ranking = retriever.retrieve(QUERIES[:1], 3, explain=True)
    for reasons, score in zip(ranking.evidence[0], ranking.score[0], strict=True):
        np.testing.assert_allclose(sum(reason.score for reason in reasons), score, rtol=1e-4)
        assert all(reason.kind == "token" for reason in reasons)


def test_documents_on_disk_are_those_in_memory(encoder, retriever, tmp_path):
    stored = encoder.encode_documents(TEXTS, tmp_path / "vectors", precision="int8")
    in_memory = encoder.encode_documents(TEXTS, precision="int8")
    for number in range(len(TEXTS)):
        np.testing.assert_array_equal(stored.document(number), in_memory.document(number))
        np.testing.assert_array_equal(stored.tokens(number), in_memory.tokens(number))
    # A vector for every token but the full stop, and one for the marker.
    expected = [len(VOCABULARY.encode(text[:59])) + 2 - text[:59].count(".") for text in TEXTS]
    assert retriever.vectors.lengths[0] == len(VOCABULARY.encode(TEXTS[0])[:59]) + 2 - TEXTS[0][:59].count(".")
    np.testing.assert_array_equal(stored.lengths, expected)


class Killed(BaseException):
    """What nothing catches."""


def test_encoding_goes_on_behind_the_last_finished_shard(encoder, tmp_path, monkeypatch):
    settings = {"precision": "int8", "shard_size": 7}
    whole = tmp_path / "whole"
    encoder.encode_documents(TEXTS, whole, **settings)
    tokenize, begun = TokenEncoder.tokenize, []

    def dying(self, texts, side):
        begun.append(list(texts))
        if len(begun) in (3, 4):
            raise Killed
        return tokenize(self, texts, side)

    monkeypatch.setattr(TokenEncoder, "tokenize", dying)
    for _ in range(2):
        with pytest.raises(Killed):
            encoder.encode_documents(TEXTS, tmp_path / "killed", **settings)
        assert not (tmp_path / "killed").exists()
    encoder.encode_documents(TEXTS, tmp_path / "killed", **settings)
    assert begun == [TEXTS[:7], TEXTS[7:14], TEXTS[14:21], TEXTS[14:21], TEXTS[14:21], TEXTS[21:28], TEXTS[28:]]
    for file in whole.glob("*.npy"):
        assert file.read_bytes() == (tmp_path / "killed" / file.name).read_bytes()
    assert not list(tmp_path.glob("*.shards"))
    encoder.encode_documents(TEXTS, tmp_path / "killed", **settings)  # it is there
    assert len(begun) == 7
    encoder.with_lengths(40, 50).encode_documents(TEXTS, tmp_path / "killed", **settings)
    assert len(begun) > 7


def test_documents_come_and_go(encoder, retriever, tmp_path):
    corpora = [Corpus.from_documents(Document(str(number), "", TEXTS[number]) for number in range(start, stop))
               for start, stop in ((0, 20), (20, 24), (24, 30))]  # fmt: skip
    vectors = encoder.encode_documents(corpora[0].contents, precision="float32")
    changed = LateInteractionRetriever(encoder, vectors, first=BM25(corpora[0]), depth=30)
    index.save(tmp_path / "index", changed, corpora[0])
    searcher = index.load(tmp_path / "index")
    searcher.update(add=corpora[1], remove=["3"])
    searcher.update(add=corpora[2], remove=["22"])
    index.save(tmp_path / "index", searcher.retriever, searcher.corpus)
    living = ~np.isin(np.arange(30), [3, 22])
    expected = retriever.retrieve(QUERIES, 30, allowed=living)
    for found in (searcher, index.load(tmp_path / "index")):
        changed = found.retriever
        assert changed.num_documents == changed.first.num_documents == 30
        ranking = LateInteractionRetriever(encoder, changed.vectors).retrieve(QUERIES, 30)
        np.testing.assert_array_equal(ranking.doc_index, expected.doc_index)
        np.testing.assert_allclose(ranking.score, expected.score, atol=1e-4)
        ranking = changed.retrieve(QUERIES, 30, explain=True)
        for row, reasons in zip(ranking.doc_index, ranking.evidence, strict=True):
            proposed = row[row >= 0]
            assert {3, 22}.isdisjoint(proposed) and max(proposed) >= 24 and len(reasons) == len(proposed)


def test_an_update_that_cannot_be_made_changes_nothing(encoder):
    retriever = LateInteractionRetriever(encoder, encoder.encode_documents(TEXTS[:5], precision="float32"))
    more = Corpus.from_documents([Document("x", "", "a red dog")])
    with pytest.raises(InputError, match="no such document"):
        retriever.update(add=more, remove=[5])
    assert retriever.num_documents == 5
    fixed = type("First", (), {"num_documents": 5})()
    with pytest.raises(InputError, match="first stage"):
        LateInteractionRetriever(encoder, retriever.vectors, first=fixed).update(add=more)
    assert retriever.num_documents == 5


def test_an_index_answers_as_before(retriever, tmp_path):
    corpus = Corpus.from_documents(Document(row["_id"], row["title"], row["text"]) for row in documents(30))
    index.save(tmp_path / "index", retriever, corpus)
    searcher = index.load(tmp_path / "index")
    before, after = (one.retrieve(QUERIES, 4) for one in (retriever, searcher.retriever))
    np.testing.assert_array_equal(before.doc_index, after.doc_index)
    np.testing.assert_allclose(before.score, after.score, rtol=1e-5)
    assert searcher.search("red cat", 2)[0].doc_id == corpus.doc_ids[int(before.doc_index[0, 0])]


def test_bad_input(encoder, retriever):
    with pytest.raises(InputError, match="query 1 is empty"):
        retriever.retrieve(["a", " "], 1)
    with pytest.raises(InputError, match="length of a query"):
        TokenEncoder(encoder.module, encoder.params, VOCABULARY, query_length=1)
    with pytest.raises(InputError, match="puts 0 tokens before"):
        TokenEncoder(
            LateInteraction(dataclasses.replace(CONFIG, prefix_length=1)), encoder.params, VOCABULARY, query_length=9
        )
    with pytest.raises(InputError, match="first stage of 29"):
        first = type("First", (), {"num_documents": 29})()
        LateInteractionRetriever(encoder, retriever.vectors, first=first)

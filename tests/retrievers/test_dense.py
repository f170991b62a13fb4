"""Dense retrieval: what NumPy finds with the same vectors; filters, updates, folders, bad input."""

import jax
import numpy as np
import pytest

import gr_jax
from gr_jax import dense, models
from gr_jax.corpus import Corpus, Document
from gr_jax.corpus.passages import sentence_passages
from gr_jax.errors import InputError
from gr_jax.models import BiEncoder, BiEncoderConfig, SentenceEncoder
from gr_jax.retrievers import DenseEncoder, DenseRetriever, Searcher, index
from gr_jax.text import ByteVocabulary
from tests import small_data

DOCUMENTS = [Document(row["_id"], row["title"], row["text"]) for row in small_data.documents(24)]
CORPUS = Corpus.from_documents(DOCUMENTS)
QUERIES = ["where is the red cat", "who saw a grey goat", "an owl near the river"]
SMALL = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_encoder_layers": 1, "mlp_dim": 16}


def encoder(*, shared: bool = True, similarity: str = "cosine", seed: int = 0, **settings) -> DenseEncoder:
    vocabulary = ByteVocabulary()
    stack = models.T5Config(vocab_size=vocabulary.size, dropout_rate=0.0, **SMALL)
    config = BiEncoderConfig(encoder=stack, shared=shared, projection=12, similarity=similarity)
    tokens = np.ones((1, 8), np.int32)
    params = jax.jit(BiEncoder(config).init)(jax.random.key(seed), tokens, tokens)["params"]
    return DenseEncoder(config, params, vocabulary, query_length=24, document_length=32, **settings)


@pytest.fixture(scope="module")
def encoders() -> dict[bool, DenseEncoder]:
    """By whether the towers are shared."""
    return {True: encoder(), False: encoder(shared=False, query_prefix="query: ", document_prefix="passage: ")}


def retriever(one: DenseEncoder, corpus: Corpus = CORPUS, most_sentences: int = 0) -> DenseRetriever:
    texts, owner = sentence_passages(corpus, most_sentences)
    searcher = dense.make_searcher("exact", one.encode(texts, "document"))
    return DenseRetriever(one, searcher, owner if most_sentences else None, most_sentences=most_sentences)


@pytest.mark.parametrize("shared", [True, False])
def test_the_ranking_is_that_of_the_inner_products(encoders, shared):
    """Against the module itself, applied to one text at a time."""
    one = encoders[shared]

    def vectors(texts, side, length):
        rows = []
        apply = jax.jit(
            lambda tokens: BiEncoder(one.config).apply({"params": one.params}, tokens, method=f"encode_{side}")
        )
        for text in texts:
            vocabulary = one.vocabulary
            kept = length - len(vocabulary.prefix) - len(vocabulary.suffix)
            ids = vocabulary.encode(one.prefixes[side] + text)[:kept]
            tokens = np.array([[*vocabulary.prefix, *ids, *vocabulary.suffix]], np.int32)
            rows.append(apply(tokens)[0])
        return np.stack(rows)

    scores = vectors(QUERIES, "query", 24) @ vectors(CORPUS.contents, "document", 32).T
    found = retriever(one).retrieve(QUERIES, 5, explain=True)
    np.testing.assert_allclose(found.score, -np.sort(-scores, axis=1)[:, :5], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(scores, found.doc_index, 1), found.score, atol=1e-5)
    for row, reasons in enumerate(found.evidence):
        assert [reason.score for (reason,) in reasons] == [float(score) for score in found.score[row]]
        assert {reason.kind for (reason,) in reasons} == {"similarity"}


def test_filters_are_exact(encoders):
    generator = np.random.default_rng(0)
    dense_retriever = retriever(encoders[True])
    everything = dense_retriever.retrieve(QUERIES, 24)
    for allowed in (generator.random(24) < 0.3, generator.random((3, 24)) < 0.3, np.zeros(24, bool)):
        found = dense_retriever.retrieve(QUERIES, 24, allowed=allowed)
        mask = np.broadcast_to(allowed, (3, 24))
        for row in range(3):
            expected = [d for d in everything.doc_index[row].tolist() if mask[row, d]]
            assert found.doc_index[row].tolist() == expected + [-1] * (24 - len(expected))
            assert np.isneginf(found.score[row, len(expected) :]).all()


def test_more_than_there_are(encoders):
    found = retriever(encoders[True]).retrieve(QUERIES, 30)
    assert found.doc_index.shape == (3, 30) and (found.doc_index[:, 24:] == -1).all()
    assert all(sorted(row[:24]) == list(range(24)) for row in found.doc_index.tolist())


@pytest.mark.parametrize("shared", [True, False])
def test_what_was_saved_answers_alike(encoders, shared, tmp_path):
    one = retriever(encoders[shared])
    index.save(tmp_path / "index", one, CORPUS)
    searcher = gr_jax.load(tmp_path / "index")
    assert searcher.retriever.encoder.config == encoders[shared].config
    found, again = (r.retrieve(QUERIES, 5) for r in (one, searcher.retriever))
    np.testing.assert_array_equal(found.doc_index, again.doc_index)
    np.testing.assert_allclose(found.score, again.score, atol=1e-6)
    assert searcher.search(QUERIES[0], 1)[0].doc_id == DOCUMENTS[found.doc_index[0, 0]].doc_id


def test_updates_without_training(encoders, tmp_path):
    """The same as an index of what is left, but for the positions."""
    first, more = CORPUS.subset(range(16)), CORPUS.subset(range(16, 24))
    searcher = Searcher(retriever(encoders[True], first), first)
    removed = ["d3", "d9"]
    assert searcher.update(add=more, remove=removed) is searcher
    assert searcher.retriever.num_documents == len(searcher.corpus) == 24
    left = [n for n in range(24) if DOCUMENTS[n].doc_id not in removed]
    expected = retriever(encoders[True], CORPUS.subset(left)).retrieve(QUERIES, 22)
    for place in ("memory", "disk"):
        found = searcher.retrieve(QUERIES, 24)
        np.testing.assert_array_equal(found.doc_index[:, :22], np.array(left)[expected.doc_index], err_msg=place)
        assert (found.doc_index[:, 22:] == -1).all()
        index.save(tmp_path / "index", searcher.retriever, searcher.corpus)
        searcher = gr_jax.load(tmp_path / "index")
    searcher.update(remove=["d16"])
    assert 16 not in searcher.retrieve(QUERIES, 24).doc_index


def test_updates_that_cannot_be_change_nothing(encoders):
    searcher = Searcher(retriever(encoders[True]), CORPUS)
    for changes in ({"add": CORPUS.subset([0])}, {"remove": ["nobody"]}, {"add": CORPUS.subset([1]), "remove": ["d0"]}):
        with pytest.raises(InputError):
            searcher.update(**changes)
    with pytest.raises(InputError):
        searcher.retriever.update(remove=[24])
    for wrong in ([1.7], np.arange(24) == 2):  # a part of a document, and a mask
        with pytest.raises(InputError, match="no such document"):
            searcher.retriever.update(remove=wrong)
    broken = encoders[True].with_parameters(jax.tree.map(lambda leaf: leaf * np.nan, encoders[True].params))
    searcher.retriever.encoder, kept = broken, searcher.retriever.encoder
    with pytest.raises(InputError, match="not finite"):
        searcher.retriever.update(add=CORPUS.subset([0]), remove=[2])
    searcher.retriever.encoder = kept
    assert len(searcher.corpus) == searcher.retriever.num_documents == 24
    assert (searcher.retrieve(QUERIES, 24).doc_index >= 0).all()
    with pytest.raises(InputError, match="cannot take or leave"):
        Searcher(object(), CORPUS).update(remove=["d0"])


@pytest.mark.parametrize("k", [1, 3, 24])
def test_a_document_is_found_by_the_best_of_its_passages(encoders, k):
    """Against the maximum over a whole table; filters and all depths."""
    one = encoders[True]
    texts, owner = sentence_passages(CORPUS, 2)
    assert len(texts) == 72
    table = one.encode(QUERIES, "query") @ one.encode(texts, "document").T
    best = np.stack([table[:, owner == document].max(axis=1) for document in range(24)], axis=1)
    by_passage = retriever(one, most_sentences=2)
    generator = np.random.default_rng(0)
    for allowed in (np.ones((3, 24), bool), generator.random((3, 24)) < 0.5):
        found = by_passage.retrieve(QUERIES, k, allowed=allowed, explain=True)
        expected = np.where(allowed, best, -np.inf)
        np.testing.assert_allclose(found.score, -np.sort(-expected, axis=1)[:, :k], atol=1e-5)
        for row, documents in enumerate(found.doc_index):
            real = [d for d in documents.tolist() if d >= 0]
            assert len(set(real)) == len(real) and allowed[row, real].all()
            for document, (reason,) in zip(real, found.evidence[row], strict=True):
                passages = np.flatnonzero(owner == document)
                number = int(np.argmax(table[row, passages]))
                assert reason.text == (f"sentence {number}" if number else "document")


def test_passages_are_updated_and_saved(encoders, tmp_path):
    first, more = CORPUS.subset(range(16)), CORPUS.subset(range(16, 24))
    searcher = Searcher(retriever(encoders[True], first, 2), first).update(add=more, remove=["d3"])
    left = [n for n in range(24) if n != 3]
    expected = retriever(encoders[True], CORPUS.subset(left), 2).retrieve(QUERIES, 23)
    for _ in range(2):
        found = searcher.retrieve(QUERIES, 24)
        np.testing.assert_array_equal(found.doc_index[:, :23], np.array(left)[expected.doc_index])
        assert (found.doc_index[:, 23] == -1).all() and searcher.retriever.num_documents == 24
        index.save(tmp_path / "index", searcher.retriever, searcher.corpus)
        searcher = gr_jax.load(tmp_path / "index")


def test_other_parameters_give_other_vectors(encoders):
    one, other = encoders[True], encoder(seed=1)
    changed = one.with_parameters(other.params)
    np.testing.assert_allclose(changed.encode(QUERIES, "query"), other.encode(QUERIES, "query"), atol=1e-6)
    assert np.abs(changed.encode(QUERIES, "query") - one.encode(QUERIES, "query")).max() > 1e-3
    assert one.dimension == 12 and isinstance(one.of_documents, SentenceEncoder)


def test_the_transform_reaches_both_sides():
    plain, split = encoder(), encoder(transform="split_identifiers")
    for side in ("query", "document"):
        np.testing.assert_array_equal(split.encode(["fooBar"], side), plain.encode(["foo Bar"], side))


def test_lengths_cut():
    one = encoder()
    long = "a" * 23 + "b" * 50
    np.testing.assert_array_equal(one.encode([long], "query"), one.encode(["a" * 23], "query"))
    assert np.abs(one.encode([long], "document") - one.encode(["a" * 23], "document")).max() > 1e-4


def test_bad_input(encoders):
    one = retriever(encoders[True])
    for queries, k, message in ((["a", " "], 3, "query 1 is empty"), ("a", 3, "sequence"), (["a"], 0, "k is")):
        with pytest.raises(InputError, match=message):
            one.retrieve(queries, k)
    with pytest.raises(InputError, match="fit"):
        one.retrieve(["a"], 3, allowed=np.ones(5, bool))
    config, params = encoders[True].config, encoders[True].params
    with pytest.raises(InputError, match="room"):
        DenseEncoder(config, params, ByteVocabulary(), query_length=1)
    with pytest.raises(InputError, match="transform"):
        DenseEncoder(config, params, ByteVocabulary(), transform="rot13")
    with pytest.raises(InputError, match="numbers"):
        DenseRetriever(encoders[True], dense.make_searcher("exact", np.ones((3, 5), np.float32)))
    with pytest.raises(InputError, match="owner"):
        DenseRetriever(encoders[True], one.searcher, np.zeros(3, np.int32), most_sentences=1)
    tiny = BiEncoderConfig(encoder=models.T5Config(vocab_size=8, **SMALL))
    with pytest.raises(InputError, match="vocabulary"):
        DenseEncoder(tiny, params, ByteVocabulary())


def test_lengths_that_the_encoder_cannot_read():
    sizes = {"emb_dim": 8, "num_heads": 2, "num_encoder_layers": 1, "mlp_dim": 8}
    config = BiEncoderConfig(models.BertConfig(vocab_size=300, max_positions=40, **sizes))
    for length, says in ((41, "reads 40 tokens"), (1, "no room")):
        with pytest.raises(InputError, match=says):
            DenseEncoder(config, {}, ByteVocabulary(), query_length=24, document_length=length)

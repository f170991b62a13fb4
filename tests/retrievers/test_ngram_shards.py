"""Documents join an index of n-grams by a shard: it answers as a retriever of one index of all that is built anew."""

import numpy as np
import pytest

from gr_jax import models
from gr_jax.constraints import FMIndex, ShardedFMIndex, fm_index_shards
from gr_jax.corpus import Corpus, Document
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.docids.spans import token_text
from gr_jax.errors import InputError
from gr_jax.retrievers import GenerativeRetriever
from gr_jax.retrievers.ngram_scorer import NgramScoring
from gr_jax.retrievers.ngrams import NgramAggregation, NgramView
from gr_jax.retrievers.views import View
from gr_jax.text import ByteVocabulary
from tests import small_data
from tests.retrievers.random_network import random_parameters

pytest.importorskip("pydivsufsort")
pytest.importorskip("numba")

OLD, SAID = 20, "title+body"
DOCUMENTS = [Document(row["_id"], row["title"], row["text"]) for row in small_data.documents(OLD)]
# "violet whale" is new, "grey goat" is old, "is seen by few" is in both; some documents have no text.
NEW = [
    Document("new0", "violet whale", "A violet whale is seen by few people."),
    Document("new1", "", ""),
    Document("new2", "red cat", "A second red cat, under the violet bridge."),
    Document("new3", "green eel", "It is green."),
    Document("new4", "whale", "There is a whale. It sings to a violet eel near the pole. " * 8),
]
ASKED = ["who saw a violet whale", "a red cat", "the yellow horse near a river"]
VOCABULARY = ByteVocabulary()
VIEWS = (View(walks=SAID), View("{query} || title", walks=f"^{SAID}"), View("{query} || query", walks="pseudo_query"))
# A random network finds all n-grams unlikely: without a shift almost none would count.
NGRAM_VIEWS = (
    NgramView(shift=18.0, most=-0.5, own_words=3, singles=50),
    NgramView(shift=18.0, most=-0.5, whole=True, own_words=2, singles=0),
    NgramView(shift=14.0, most=-1.0, singles=0),
)
# Few n-grams stand so seldom: most nominate nothing because of how often they stand in all shards together.
SCORING = NgramScoring(smoothing=0.5, most_occurrences=12)


@pytest.fixture(scope="module")
def model():
    sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    module = models.EncoderDecoder(models.T5Config(vocab_size=VOCABULARY.size, mlp_dim=24, dropout_rate=0.0, **sizes))
    return models.GenerativeDecoder(module, random_parameters(module, 0))


def anew(model, documents, removed=(), max_len=3):
    """The retriever of one index of all documents, of which only the old ones have pseudo-queries."""
    queries = [f"which {one.title}" for one in documents[:OLD]]
    own = np.arange(len(queries), dtype=np.int32)
    made = PseudoQueries(queries, own, np.zeros(len(queries), np.int8), ("title",))
    corpus = Corpus.from_documents(documents)
    said = token_text(corpus, VOCABULARY, views=(SAID, "pseudo_query"), pseudo_queries=made)
    said = said.without(removed) if len(removed) else said
    index = FMIndex.from_text(said, filters=True, sample_rate=4)
    of = NgramAggregation(VOCABULARY, said, np.asarray(index.row_documents), views=NGRAM_VIEWS, scoring=SCORING)
    settings = {"beams": 4, "max_len": max_len, "max_query_length": 48, "batch_size": 16}
    return GenerativeRetriever(model, index, VOCABULARY, documents_of=of, views=VIEWS, **settings)


def same(one, other, allowed=None):
    k = one.num_documents
    assert other.num_documents == k
    found, expected = (made.retrieve(ASKED, k, allowed=allowed, explain=True) for made in (one, other))
    assert (expected.doc_index[:, 0] >= 0).all()
    np.testing.assert_array_equal(found.doc_index, expected.doc_index)
    np.testing.assert_allclose(found.score, expected.score, rtol=1e-6)
    for row, other_row in zip(found.evidence, expected.evidence, strict=True):
        for why, other_why in zip(row, other_row, strict=True):
            assert [(a.tokens, a.view) for a in why] == [(b.tokens, b.view) for b in other_why]
            np.testing.assert_allclose([a.score for a in why], [b.score for b in other_why], rtol=1e-6)
    return found


@pytest.mark.slow  # many programs are compiled
def test_shard_by_shard(model, tmp_path):
    """Among the n-grams that count are some of both shards, some of the new and some of the old alone."""
    changed = anew(model, DOCUMENTS)
    first = changed.constraint
    changed.update(Corpus.from_documents(NEW[:2]))
    found = same(changed, anew(model, [*DOCUMENTS, *NEW[:2]]))
    assert [part.num_documents for part in changed.constraint.parts] == [OLD, 2]
    assert changed.constraint.parts[0].bwt is first.bwt
    counted = [
        why for row in found.evidence[:2] for document in row for why in document if not why.view.startswith("p")
    ]
    texts = [one.title + "\n" + one.text for one in [*DOCUMENTS, *NEW[:2]]]
    stands = {
        (any(why.text in text for text in texts[:OLD]), any(why.text in text for text in texts[OLD:]))
        for why in counted
    }
    assert stands == {(True, True), (True, False), (False, True)}
    changed.update(Corpus.from_documents(NEW[2:3]))
    whole = anew(model, [*DOCUMENTS, *NEW[:3]])
    assert len(changed.constraint.parts) == 3
    same(changed, whole)
    allowed = np.random.default_rng(0).random((len(ASKED), OLD + 3)) < 0.5
    same(changed, whole, allowed)
    changed.save(tmp_path / "index", corpus="")
    loaded = GenerativeRetriever.load(tmp_path / "index")
    assert isinstance(loaded.constraint, ShardedFMIndex)
    same(loaded, whole, allowed)
    loaded.update(Corpus.from_documents(NEW[3:]))  # now they are a quarter of the old ones
    assert isinstance(loaded.constraint, FMIndex)
    same(loaded, anew(model, [*DOCUMENTS, *NEW]))


def test_no_step_is_made_for_titles_that_are_longer_than_any(model):
    """Titles are whole segments, and a longer one may come."""
    views = (NgramView(tokens=3), NgramView(whole=True, tokens=14), NgramView(tokens=2))
    kept = [Document(one.doc_id, one.title, "") for one in DOCUMENTS]
    asked = PseudoQueries(["no"], np.zeros(1, np.int32), np.zeros(1, np.int8), ("title",))
    said = token_text(Corpus.from_documents(kept), VOCABULARY, views=(SAID, "pseudo_query"), pseudo_queries=asked)
    of = NgramAggregation(VOCABULARY, said, FMIndex.from_text(said, filters=True).row_documents, views=views)
    longest = max(len(one.title.encode()) for one in kept)
    assert 3 < longest < 12 and of.most_tokens(np.array([0, 2, 1])) == longest
    assert of.most_tokens(np.array([0, 3, 1])) == 3
    with pytest.raises(InputError, match="2 views, and n-grams are made of 3"):
        of.most_tokens(np.array([0, 2]))
    index = FMIndex.from_text(said, filters=True)
    settings = {"beams": 4, "max_len": 14, "max_query_length": 48}
    made = GenerativeRetriever(model, index, VOCABULARY, documents_of=of, views=VIEWS, **settings)
    assert made._most_steps == longest
    made.update(Corpus.from_documents([Document("new", "violet whale", "It sings.")]))
    assert made._most_steps == len("violet whale")


@pytest.mark.slow  # many programs are compiled
def test_documents_leave_a_shard(model):
    changed = anew(model, DOCUMENTS).update(Corpus.from_documents(NEW[:1])).update(Corpus.from_documents(NEW[2:4]))
    documents = [*DOCUMENTS, NEW[0], *NEW[2:4]]
    first = changed.constraint.parts[:2]
    changed.update(remove=[OLD + 1])
    assert all(one.bwt is other.bwt for one, other in zip(changed.constraint.parts[:2], first, strict=True))
    same(changed, anew(model, documents, [OLD + 1]))
    parts = changed.constraint.parts
    changed.update(remove=[OLD + 1])  # once more: it is gone already
    assert all(one.bwt is other.bwt for one, other in zip(changed.constraint.parts, parts, strict=True))
    changed.update(remove=[OLD + 2])  # the last of the shard
    assert [part.num_documents for part in changed.constraint.parts] == [OLD, 3]
    changed.update(Corpus.from_documents([NEW[4]]), remove=[3])
    assert isinstance(changed.constraint, FMIndex)
    same(changed, anew(model, [*documents, NEW[4]], [3, OLD + 1, OLD + 2]))
    with pytest.raises(InputError, match="no such document"):
        changed.update(remove=[99])


@pytest.mark.slow  # many programs are compiled
def test_shards_are_few(model, monkeypatch):
    monkeypatch.setattr(fm_index_shards, "MOST_PARTS", 2)
    changed = anew(model, DOCUMENTS)
    first = changed.constraint
    for one in (NEW[0], NEW[2], NEW[3]):
        changed.update(Corpus.from_documents([one]))
        assert len(changed.constraint.parts) == 2 and changed.constraint.parts[0].bwt is first.bwt
    same(changed, anew(model, [*DOCUMENTS, NEW[0], *NEW[2:4]]))


def test_documents_without_text(model):
    changed = anew(model, DOCUMENTS, max_len=2)
    first = changed.constraint
    changed.update(Corpus.from_documents([NEW[1]]))
    assert isinstance(changed.constraint, FMIndex) and changed.constraint.bwt is first.bwt
    changed.documents_of.check(changed.constraint)
    assert changed.num_documents == OLD + 1
    other = Document("other", "", "")
    changed.update(Corpus.from_documents([NEW[0]])).update(Corpus.from_documents([other]))
    assert [part.num_documents for part in changed.constraint.parts] == [OLD + 1, 2]
    same(changed, anew(model, [*DOCUMENTS, NEW[1], NEW[0], other], max_len=2))


def test_nothing_is_left(model):
    changed = anew(model, DOCUMENTS[:3])
    with pytest.raises(InputError, match="no tokens to index"):
        changed.update(remove=[0, 1, 2])
    assert changed.num_documents == 3
    changed.update(remove=[])
    changed.documents_of.check(changed.constraint)


def test_rows_that_are_not_kept_are_made(model):
    """An index without filters cannot be a shard: it is built again, with them."""
    said = token_text(Corpus.from_documents(DOCUMENTS), VOCABULARY, views=(SAID,))
    index = FMIndex.from_text(said)
    more = token_text(Corpus.from_documents(NEW[:1]), VOCABULARY, views=(SAID,))
    found = fm_index_shards.updated(index, said.joined(more), np.zeros(0, int))
    assert isinstance(found, FMIndex) and found.row_documents is not None

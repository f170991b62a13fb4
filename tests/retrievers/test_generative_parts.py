"""What a generative retriever is made of: several views and constraints, documents that come and go, parts that do not
fit."""

import numpy as np
import pytest

from gr_jax import models, text
from gr_jax.constraints import Everything, FMIndex, Mixed, TokenTextTrie, Trie
from gr_jax.corpus import Corpus, Document
from gr_jax.docids import Docids, TokenText, naive_numeric, titles
from gr_jax.errors import InputError
from gr_jax.retrievers import GenerativeRetriever, Searcher, index
from gr_jax.retrievers.base import updatable
from gr_jax.retrievers.documents_of import BestDocid
from gr_jax.retrievers.ngrams import NgramAggregation
from gr_jax.retrievers.views import View, walked
from tests.retrievers.test_generative import QUERIES, VOCABULARY, network

TITLES = ["cat", "d", "ox", "o", "owl", "a"]  # few tokens, so that programs are small
CORPUS = Corpus.from_documents([Document(f"d{i}", title, f"A {title}.") for i, title in enumerate(TITLES)])
MORE = Corpus.from_documents([Document("new0", "be", "A be."), Document("new1", "o", "Another o.")])
SETTINGS = {"beams": 12, "max_query_length": 32, "batch_size": 4}
# Decoder ids 0 … 258 write the bytes' tokens, each by its own number; 259 writes "c" once more, 260 starts.
TEXT_OF = np.array([-1, *range(1, 259), ord("c") + 3, -1], np.int32)


def by_titles(documents: Corpus = CORPUS, docids: Docids | None = None) -> GenerativeRetriever:
    docids = titles(documents.titles, VOCABULARY) if docids is None else docids
    return GenerativeRetriever.over_docids(*network(docids), VOCABULARY, docids, **SETTINGS)


def by_token_texts(docids: Docids) -> GenerativeRetriever:
    sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1}
    module = models.EncoderDecoder(
        models.T5Config(vocab_size=VOCABULARY.size, mlp_dim=24, **sizes),
        models.T5Config(vocab_size=len(TEXT_OF), mlp_dim=24, **sizes),
        share_embeddings=False,
        start_token=260,
    )
    trie = TokenTextTrie.from_docids(docids, TEXT_OF)
    from tests.retrievers.random_network import random_parameters

    model = models.GenerativeDecoder(module, random_parameters(module, 3), eos_id=trie.eos_id)
    return GenerativeRetriever(
        model, trie, VOCABULARY, documents_of=BestDocid(docids, text_of=TEXT_OF), merge="max", **SETTINGS
    )


def same(one, other, k: int) -> None:
    found, expected = (made.retrieve(QUERIES, k, explain=True) for made in (one, other))
    np.testing.assert_array_equal(found.doc_index, expected.doc_index)
    np.testing.assert_allclose(found.score, expected.score, atol=1e-5)
    assert [[[why.text for why in each] for each in row] for row in found.evidence] == [
        [[why.text for why in each] for each in row] for row in expected.evidence
    ]


@pytest.mark.parametrize(
    "make",
    [by_titles, pytest.param(lambda: by_token_texts(titles(CORPUS.titles, VOCABULARY)), marks=pytest.mark.slow)],
)
def test_documents_come_and_go_by_their_titles(make, tmp_path):
    """As a retriever that was made with them, of the same network."""
    made = make()
    searcher = Searcher(made, CORPUS)
    assert updatable(made)
    searcher.update(add=MORE, remove=["d1", "d4"])
    assert made.num_documents == 8 and len(searcher.corpus) == 8
    called = ["cat", "", "ox", "o", "", "a", "be", "o (2)"]
    tokens = [(document, VOCABULARY.encode(title)) for document, title in enumerate(called) if title]
    docids = Docids.build(
        [row for _, row in tokens], documents=[document for document, _ in tokens], num_documents=8,
        vocab_size=VOCABULARY.size, eos_id=1, texts=[called[document] for document, _ in tokens],
    )  # fmt: skip
    fresh = by_titles(docids=docids) if make is by_titles else by_token_texts(docids)
    same(made, fresh, 8)
    found = made.retrieve(QUERIES, 8).doc_index
    assert not np.isin(found, [1, 4]).any() and all(np.isin([6, 7], row).all() for row in found)
    index.save(tmp_path / "index", searcher.retriever, searcher.corpus)
    loaded = index.load(tmp_path / "index")
    same(loaded, made, 8)
    assert 6 not in loaded.update(remove=["new0"]).retriever.docids.documents


def test_what_cannot_change_says_so():
    made = GenerativeRetriever.over_docids(*network(naive_numeric(6)), VOCABULARY, naive_numeric(6), **SETTINGS)
    assert not updatable(made)
    with pytest.raises(InputError, match="cannot take or leave"):
        Searcher(made, CORPUS).update(add=MORE)
    before = made.retrieve(QUERIES, 6)
    with pytest.raises(InputError, match="no such document"):
        made.update(remove=[6])
    with pytest.raises(InputError, match="no document would be left"):
        made.update(remove=range(6))
    np.testing.assert_array_equal(made.retrieve(QUERIES, 6).score, before.score)
    # Somebody who can name documents makes it one that can.
    named = lambda add, docids: Docids.build([[11, 11, int(c)] for c in (2, 3)], vocab_size=12, eos_id=1)  # noqa: E731
    made.name_documents = named
    assert updatable(made)
    found = made.update(add=MORE).retrieve(QUERIES, 8, explain=True)
    assert sorted(found.doc_index[0].tolist()) == list(range(8))
    made.name_documents = lambda add, docids: Docids.build([[11, 10]], vocab_size=12, eos_id=1)
    with pytest.raises(InputError, match="1 documents for 2"):
        made.update(add=MORE)
    made.name_documents = lambda add, docids: Docids.build([[2]], vocab_size=12, eos_id=1)
    with pytest.raises(InputError, match="docid"):
        made.update(add=MORE.subset([0]))
    assert made.num_documents == 8


def test_several_views_walk_several_constraints_in_one_batch():
    """A document has the best of what it has alone in each view; the batch is not full."""
    queries = QUERIES[:3]
    module, params = network(naive_numeric(14))
    rng = np.random.default_rng(0)
    many = [naive_numeric(14), Docids.build(rng.permuted(naive_numeric(14).tokens, axis=0), vocab_size=12, eos_id=1,
            documents=range(14), duplicates="share")]  # fmt: skip
    prompts = ["{query}", "title of {query}"]
    model = models.GenerativeDecoder(module, params, eos_id=1)
    alone = []
    for docids, prompt in zip(many, prompts, strict=True):
        made = GenerativeRetriever(
            model, Trie.from_docids(docids), VOCABULARY, documents_of=BestDocid(docids), views=[View(prompt)],
            **{**SETTINGS, "beams": 14},
        )  # fmt: skip
        ranking = made.retrieve(queries, 14)
        scores = np.full((len(queries), 14), -np.inf)
        np.put_along_axis(scores, ranking.doc_index, ranking.score, axis=1)
        alone.append(scores)
    mixed = Mixed(tuple(Trie.from_docids(docids) for docids in many))
    both = GenerativeRetriever(
        model, mixed, VOCABULARY, documents_of=BestDocid(limit=3),
        views=[View(prompt, constraint=i) for i, prompt in enumerate(prompts)], **{**SETTINGS, "beams": 14},
    )  # fmt: skip
    expected, ranking = np.maximum(*alone), both.retrieve(queries, 14)
    np.testing.assert_allclose(ranking.score, -np.sort(-expected, axis=1), atol=1e-4)
    np.testing.assert_allclose(np.take_along_axis(expected, ranking.doc_index, axis=1), ranking.score, atol=1e-4)


def test_which_automaton_rows_walk():
    trie = Trie.from_docids(naive_numeric(3))
    assert walked(trie, (View(), View()), 2) is None
    with pytest.raises(InputError, match="one automaton"):
        walked(trie, (View(walks="title"),), 1)
    with pytest.raises(InputError, match="not there"):
        walked(Mixed((trie, trie)), (View(constraint=2),), 1)
    pytest.importorskip("pydivsufsort")
    spans = FMIndex.from_text(TokenText.of([[3, 4], [5, 6]], 12, views=[0, 1], view_names=("title", "body")))
    views = (View(walks="body"), View(walks="^title"))
    assert walked(spans, views, 2).tolist() == [1, 2, 1, 2]
    views = (View(constraint=0), View(walks="body", constraint=1))
    which, (of_trie, of_spans) = walked(Mixed((trie, spans)), views, 2)
    assert which.tolist() == [0, 1, 0, 1] and of_trie is None and of_spans.tolist() == [0, 1, 0, 1]
    with pytest.raises(InputError, match="'abstract'"):
        walked(spans, (View(walks="abstract"),), 1)
    with pytest.raises(InputError, match="one place"):
        View("no question")


class WideVocabulary(text.ByteVocabulary):
    size = 300


def test_parts_that_do_not_fit_are_refused_by_name():
    docids = naive_numeric(6)
    module, params = network(docids)
    model = models.GenerativeDecoder(module, params, docids.levels, docids.eos_id)
    trie, best = Trie.from_docids(docids), BestDocid(docids)

    def make(constraint=trie, vocabulary=VOCABULARY, documents_of=best, **settings):
        return GenerativeRetriever(model, constraint, vocabulary, documents_of=documents_of, **settings)

    larger = Trie.from_docids(titles(CORPUS.titles, VOCABULARY))
    said = TokenText.of([[3, 4], [5, 6]], module.vocab_size)
    ngrams = NgramAggregation(VOCABULARY, said, np.zeros(6, np.int32))
    for wrong, message in (
        ({"constraint": larger}, f"writes {module.vocab_size} tokens, the Trie need {VOCABULARY.size}"),
        ({"constraint": Mixed((trie, larger))}, "the Mixed need"),
        ({"constraint": Everything(module.vocab_size), "max_len": 3}, "leads to no documents"),
        ({"vocabulary": WideVocabulary()}, "300 tokens, the encoder reads"),
        ({"normalize": "level"}, "'level'"),
        ({"beams": 0}, "beam"),
        ({"merge": "mean"}, "'mean'"),
        ({"max_len": 0}, "max_len"),
        ({"views": ()}, "view"),
        ({"documents_of": BestDocid(naive_numeric(7))}, "7 documents.* leads to 6"),
        ({"documents_of": ngrams}, "FM-index.*'Trie'"),
    ):
        with pytest.raises(InputError, match=message):
            make(**wrong)
    with pytest.raises(InputError, match="limit"):
        BestDocid()
    pytest.importorskip("pydivsufsort")
    spans = FMIndex.from_text(said)
    with pytest.raises(InputError, match="n-grams have none"):
        make(spans, documents_of=ngrams)
    other = NgramAggregation(VOCABULARY, TokenText.of([[3, 4]], module.vocab_size), np.zeros(3, np.int32))
    with pytest.raises(InputError, match="text of 1"):
        make(spans, documents_of=other, max_len=2)
    made = make(spans, documents_of=ngrams, max_len=2, beams=4, max_query_length=32)
    with pytest.raises(InputError, match="filters=True"):
        made.retrieve(["ok"], 1, allowed=np.ones(2, bool))
    assert updatable(made)
    with pytest.raises(InputError, match="no docids"):
        made.docids  # noqa: B018

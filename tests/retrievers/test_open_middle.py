"""Any network under any constraint, on real documents: searched, filtered, explained, saved and loaded, and equal to
writing every identifier out and scoring it by teacher forcing."""

import functools

import jax
import numpy as np
import pytest

from benchmarks import small_systems
from gr_jax import corpus as corpus_lib
from gr_jax import models, text
from gr_jax.retrievers import GenerativeRetriever, index
from gr_jax.retrievers.ngram_scorer import NgramScoring

pytest.importorskip("pydivsufsort")
pytest.importorskip("sentencepiece")

QUERIES = ["Who built the first aqueduct?", "When did the oil embargo begin?"]
SETTINGS = {"max_query_length": 64, "batch_size": 2}
COUNT = 80


@pytest.fixture(scope="module")
def corpus(shared_data) -> corpus_lib.Corpus:
    """80 paragraphs, of all articles; titles and the first words of texts, so that all n-grams can be written out."""
    whole = corpus_lib.read_beir(shared_data / "squad_dev").corpus
    chosen = [whole[int(i)] for i in np.linspace(0, len(whole) - 1, COUNT)]
    return corpus_lib.Corpus.from_documents(corpus_lib.Document(one.doc_id, one.title, one.text[:24]) for one in chosen)


@pytest.fixture(scope="module")
def vocabulary(corpus) -> text.Vocabulary:
    return text.SentencePieceVocabulary.train([*corpus.titles, *corpus.texts], 700)


class Counting(models.DecoderOnly):
    """Counts the prompt tokens that are read when programs run."""

    def read_prompt(self, tokens):
        jax.debug.callback(lambda: READ.append(tokens.shape[1]))
        return super().read_prompt(tokens)


READ: list[int] = []


@pytest.fixture(
    scope="module", params=["ngrams", "prompted", pytest.param("contextual_titles", marks=pytest.mark.slow)]
)
def system(request, corpus, vocabulary):
    """A retriever with enough beams for everything, its enumeration, and its answer."""
    if request.param == "ngrams":
        made = small_systems.ngrams(corpus, scoring=NgramScoring(most_occurrences=64), max_len=2, **SETTINGS)
    elif request.param == "contextual_titles":
        made = small_systems.contextual_titles(corpus, vocabulary, **SETTINGS)
    else:
        READ.clear()
        made = small_systems.prompted(corpus, vocabulary, network=Counting, **SETTINGS)
    made.beams = small_systems.enough_beams(made, corpus)
    return (
        made,
        functools.partial(small_systems.enumerate_all, made, corpus),
        made.retrieve(QUERIES, COUNT, explain=True),
    )


def test_searched_it_finds_what_enumeration_finds(system):
    _, enumerate_all, ranking = system
    assert small_systems.agreement(ranking, enumerate_all(QUERIES)) == 1.0


def test_evidence_is_what_was_written_and_makes_the_score(system, corpus):
    made, _, ranking = system
    total = sum if made.documents_of.kind == "ngrams" else max
    for row, scores, reasons in zip(ranking.doc_index, ranking.score, ranking.evidence, strict=True):
        assert len(reasons) == np.sum(row >= 0) > COUNT // 4
        for document, score, why in zip(row.tolist(), scores.tolist(), reasons, strict=False):
            np.testing.assert_allclose(total([one.score for one in why]), score, rtol=1e-4)
            if made.documents_of.kind == "ngrams":
                parts = [made.vocabulary.encode(part) for part in (corpus.titles[document], corpus.texts[document])]
                assert all(any(_stands_in(list(one.tokens), part) for part in parts) for one in why)
            else:
                rows = [int(docid) for docid in made.docids.rows_of(document)]
                names = {"-".join(map(str, made.docids.sequence(docid))) for docid in rows}
                assert {one.text for one in why} == (
                    names if made.docids.texts is None else {made.docids.name(docid) for docid in rows}
                )


def _stands_in(ngram: list[int], tokens: list[int]) -> bool:
    return any(tokens[i : i + len(ngram)] == ngram for i in range(len(tokens)))


def test_a_filter_is_exact(system):
    made, enumerate_all, _ = system
    allowed = np.random.default_rng(0).random(COUNT) < 0.3
    ranking = made.retrieve(QUERIES, COUNT, allowed=allowed)
    assert small_systems.agreement(ranking, enumerate_all(QUERIES, allowed)) == 1.0
    found = ranking.doc_index[ranking.doc_index >= 0]
    assert len(found) and allowed[found].all()


def test_saved_and_loaded_it_answers_the_same(system, corpus, tmp_path):
    made, _, expected = system
    index.save(tmp_path / "index", made, corpus)
    searcher = index.load(tmp_path / "index")
    assert isinstance(searcher.retriever, GenerativeRetriever)
    searcher.retriever._reader.batch_size = made._reader.batch_size  # how to compute, which is not kept
    found = searcher.retrieve(QUERIES, COUNT, explain=True)
    np.testing.assert_array_equal(found.doc_index, expected.doc_index)
    np.testing.assert_array_equal(found.score, expected.score)
    assert found.evidence == expected.evidence


def test_other_parameters_rebuild_nothing(system):
    made, _, before = system
    other = made.with_parameters(jax.tree.map(lambda leaf: -leaf, made.model.params))
    assert other.constraint is made.constraint and other.documents_of is made.documents_of
    assert (other.retrieve(QUERIES, COUNT).score != before.score).any()


@pytest.mark.parametrize("system", ["prompted"], indirect=True)
def test_the_prompt_was_read_once(system):
    made, _, _ = system
    READ.clear()
    again = made.with_parameters(made.model.params)
    for _ in range(2):
        again.retrieve(QUERIES, COUNT)
    jax.effects_barrier()
    assert READ == [len(made.model.prompt)]

"""SEAL and MINDER, whole, on a few documents; and what their writers learn from."""

import dataclasses
import json
import pathlib
import re
import types

import jax
import numpy as np
import pytest

import gr_jax
from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.constraints import FMIndex, ShardedFMIndex
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.docids.spans import token_text
from gr_jax.errors import InputError, InputWarning
from gr_jax.retrievers import GenerativeRetriever
from gr_jax.retrievers.base import updatable
from gr_jax.retrievers.documents_of import Written
from gr_jax.retrievers.ngrams import Found, NgramAggregation
from gr_jax.retrievers.views import View
from gr_jax.systems import (
    DSIQG,
    MINDER,
    SEAL,
    Asking,
    BM25DocT5Query,
    Distilling,
    GeneratedQueries,
    NgramWriting,
    QueryGenerating,
)
from gr_jax.systems.ngram import distilling, samples, writer
from gr_jax.systems.ngram.asking import ASKED, SAID, _ngram_view
from gr_jax.text import ByteVocabulary
from tests import small_data

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")
pytest.importorskip("pydivsufsort")
pytest.importorskip("numba")
pytest.importorskip("sentencepiece")

SMALL = {
    "encoder": "t5", "vocabulary": "sentencepiece", "vocabulary_size": 330, "width": 32, "heads": 2, "mlp_width": 32,
    "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "words": 32,
}  # fmt: skip
WRITING = NgramWriting(
    **SMALL, query_tokens=64, row_targets=48, span_tokens=4, title_tokens=4, steps=60, warmup_steps=5, batch_size=12,
    learning_rate=1e-2, evaluate_every=30, dev_queries=8, checkpoint_every=20,
)  # fmt: skip
ASKING = Asking(beams=4, tokens=4, title_tokens=4)  # each step is compiled
SYSTEMS = {
    "SEAL": SEAL(  # MINDER's is evaluated on dev
        writing=dataclasses.replace(WRITING, evaluate_every=None, dev_queries=None, keep_best=None), asking=ASKING
    ),
    "MINDER": MINDER(
        writing=WRITING,
        asking=dataclasses.replace(ASKING, writes=("body", "title", "pseudo_query"), pseudo_query_shift=0.0),
        generator=QueryGenerating(
            **SMALL, document_tokens=64, query_tokens=32, row_targets=64, made={"title": 1}, steps=40, warmup_steps=5,
            batch_size=12, learning_rate=1e-2, evaluate_every=20,
        ),
        generated=GeneratedQueries(samples=4, top_k=3, temperature=0.5, within=None, most=3),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=24)


@pytest.fixture(scope="module", params=["SEAL", pytest.param("MINDER", marks=pytest.mark.slow)])
def made(request, beir, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, folder, SYSTEMS[request.param].run(beir, folder, until="index", say=lambda line: None)


def test_it_finds_what_it_was_trained_on(made, beir):
    _, _, searcher = made
    dataset = corpus_lib.read_beir(beir)
    train = dataset.split_queries("train")
    found = searcher.retrieve(train.texts, 3).doc_index[:, 0]
    right = [dataset.corpus.index_of(next(iter(dataset.split("train")[one]))) for one in train.ids]
    assert np.mean(found == right) > 0.9


@pytest.mark.slow
def test_its_results(made, beir):
    name, folder, _ = made
    SYSTEMS[name].run(beir, folder, say=lambda line: None)
    metrics = json.loads((folder / "results" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"BM25", name, f"BM25 + {name}"}
    assert "FM-index" in (folder / "results" / "report.md").read_text()


def test_read_back_it_answers_the_same(made):
    _, folder, searcher = made
    loaded = gr_jax.load(folder / "index")
    asked = ["who saw a red cat", "where is the goat"]
    one, other = (index.retrieve(asked, 10, explain=True) for index in (searcher, loaded))
    np.testing.assert_array_equal(one.doc_index, other.doc_index)
    np.testing.assert_array_equal(one.score, other.score)
    assert one.evidence == other.evidence


def test_why_a_document_was_found_stands_in_it(made, beir):
    name, _, searcher = made
    corpus = corpus_lib.read_beir(beir).corpus
    ranking = searcher.retrieve(["who saw a black horse"], 5, explain=True)
    views = set()
    found = int((ranking.doc_index[0] >= 0).sum())
    assert found == len(ranking.evidence[0]) > 0
    for document, score, reasons in zip(
        ranking.doc_index[0][:found], ranking.score[0], ranking.evidence[0], strict=False
    ):
        assert sum(one.score for one in reasons) == pytest.approx(score, rel=1e-5)
        said = f"{corpus.titles[document]}\n{corpus.texts[document]}"
        for one in reasons:
            views.add(one.view)
            if one.view != "pseudo_query":
                assert one.kind == "ngram" and searcher.retriever.vocabulary.decode(one.tokens) in said
    assert "pseudo_query" in views if name == "MINDER" else views == {""}


def test_a_shorter_answer_is_the_beginning_of_a_longer_one(made):
    _, _, searcher = made
    assert searcher.retriever.nested
    asked = ["who saw a red cat", "where is the goat"]
    few, many = (searcher.retrieve(asked, k) for k in (3, 20))
    np.testing.assert_array_equal(few.doc_index, many.doc_index[:, :3])
    np.testing.assert_array_equal(few.score, many.score[:, :3])


@pytest.mark.slow  # as tests/retrievers/test_ngram_shards.py shows with a random network
def test_a_filter_leaves_others_out(made):
    _, _, searcher = made
    allowed = np.arange(24) % 3 == 0
    found = searcher.retriever.retrieve(["where is the red cat"], 24, allowed=allowed).doc_index[0]
    found = found[found >= 0]
    assert len(found) and allowed[found].all()


@pytest.mark.slow  # as tests/retrievers/test_ngram_shards.py shows with a random network
@pytest.mark.parametrize("made", ["SEAL"], indirect=True)
def test_documents_come_and_go_as_in_an_index_built_anew(made, beir):
    _, folder, _ = made
    dataset = corpus_lib.read_beir(beir)
    whole = list(dataset.corpus)
    changed = gr_jax.load(folder / "index").retriever
    assert updatable(changed)
    changed.update(remove=[1, 5])
    added = [corpus_lib.Document("new", "violet whale", "A violet whale sings at the pole.")]
    changed.update(corpus_lib.Corpus.from_documents(added))
    assert isinstance(changed.constraint, ShardedFMIndex)
    gone = [corpus_lib.Document(one.doc_id, "", "") if place in (1, 5) else one for place, one in enumerate(whole)]
    words = changed.vocabulary
    anew = corpus_lib.Corpus.from_documents([*gone, *added])
    said = token_text(anew, words, views=(SAID,)).without([1, 5])
    index = FMIndex.from_text(said, filters=True)
    before = changed.documents_of
    aggregation = NgramAggregation(
        words, said, np.asarray(index.row_documents), views=before.views, scoring=before.scorer.settings
    )
    other = GenerativeRetriever(
        changed.model, index, words, documents_of=aggregation,
        views=changed.views, beams=changed.beams, max_len=changed.max_len,
    )  # fmt: skip
    asked = ["who saw a violet whale", "where is the blue cat", "a whale at the pole"]

    def untied(parameter):
        """A copier finds some tokens exactly equally likely, and which of these is kept depends on how rows lie."""
        noise = np.random.default_rng(parameter.size).normal(size=parameter.shape)
        return np.asarray(parameter * (1 + 0.02 * noise), np.float32)

    params = jax.tree.map(untied, changed.model.params)
    one, two = (retriever.with_parameters(params).retrieve(asked, 25) for retriever in (changed, other))
    np.testing.assert_array_equal(one.doc_index, two.doc_index)
    np.testing.assert_allclose(one.score, two.score, rtol=1e-6)
    assert one.doc_index[0, 0] == 24 and not np.isin(one.doc_index, [1, 5]).any()
    with pytest.raises(InputError, match="no such document"):
        changed.update(remove=[99])


@pytest.mark.slow
def test_an_untrained_writer_copies_what_questions_share_with_documents(beir, tmp_path):
    system = dataclasses.replace(SYSTEMS["SEAL"], trained=False)
    searcher = system.run(beir, tmp_path, until="index", say=lambda line: None)
    found = searcher.retrieve(["red cat"], 1, explain=True)
    assert "red" in "".join(one.text for one in found.evidence[0][0])
    assert storage.read_folder(tmp_path / "model", verify=False).meta.get("step") is None


@pytest.mark.parametrize("made", ["SEAL"], indirect=True)
def test_nothing_likely_is_said_and_not_only_empty(made):
    _, _, searcher = made
    nothing, unlikely = np.zeros((2, 1), np.int32), np.full((2, 1), -np.inf, np.float32)
    tokens, rows = np.zeros((2, 1, 3), np.int32), np.zeros((2, 1, 1), np.int32)
    found = Found(tokens, nothing, unlikely, rows, rows, nothing[:, 0], nothing, unlikely)
    with pytest.warns(InputWarning, match="words that the documents use"):
        assert searcher.retriever.documents_of.rank(Written(None, found), 3, explain=True) == []


def test_what_a_question_learns_to_write(beir):
    dataset, vocabulary = corpus_lib.read_beir(beir), ByteVocabulary()
    said = token_text(dataset.corpus, vocabulary, views=(SAID,))
    documents = samples.Documents(said, vocabulary, vocabulary.encode_batch(list(dataset.corpus.titles)))
    sampling = samples.Sampling(
        spans=4, titles=2, pseudo_queries=0, span_tokens=5, title_tokens=10, temperature=1.0, seed=0
    )
    data = samples.source_targets(dataset, "train", documents, vocabulary, ASKING.views, sampling, 64)
    assert len(data.sources) == 2 * 24
    for number, document in enumerate(dataset.corpus):
        body, titles = data.kinds[0][2 * number : 2 * number + 2]
        text = [vocabulary.decode(span) for span in body]
        assert len(text) == 4 and all(span in document.text or span in document.title for span in text)
        title = [document.title] * 2 if len(document.title) <= 10 else []
        assert [vocabulary.decode(one) for one in titles] == title
        assert vocabulary.decode(data.sources[2 * number + 1]).endswith("|| title")
    rates = samples.copy_rates(data, vocabulary.size)
    assert ((rates > 0) & (rates < 1)).all()


@pytest.mark.parametrize("temperature", [1.0, None])
def test_spans_of_generated_queries_are_learned(beir, temperature):
    dataset, vocabulary = corpus_lib.read_beir(beir), ByteVocabulary()
    letters = [chr(ord("A") + number) for number in range(len(dataset.corpus))]
    asked = [f"what is the name of {letter} in latin ?" for letter in letters for _ in range(2)]
    owners = np.repeat(np.arange(len(dataset.corpus), dtype=np.int32), 2)
    made = PseudoQueries(asked, owners, np.zeros(len(asked), np.int8), ("generated",), dataset.corpus.fingerprint)
    said = token_text(dataset.corpus, vocabulary, views=(SAID, ASKED), pseudo_queries=made)
    documents = samples.Documents(said, vocabulary, vocabulary.encode_batch(list(dataset.corpus.titles)))
    sampling = samples.Sampling(
        spans=6, titles=0, pseudo_queries=2, span_tokens=8, title_tokens=10, temperature=temperature, seed=0
    )
    rng = np.random.default_rng(0)
    spans = documents.pseudo_queries(3, ASKED, vocabulary.encode(letters[3]), sampling, rng)
    texts = [vocabulary.decode(span) for span in spans]
    assert len(texts) == 6 and all(text in asked[6] and len(text) <= 8 for text in texts)
    at_the_letter = [text.startswith("D in la") for text in texts]
    assert all(at_the_letter) if temperature is not None else not all(at_the_letter)
    none = dataclasses.replace(sampling, pseudo_queries=0)
    assert documents.pseudo_queries(3, ASKED, [1], none, rng) == []


@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_generated_queries_are_asked_as_questions(beir, count):
    dataset, vocabulary = corpus_lib.read_beir(beir), ByteVocabulary()
    words = ("red", "green", "blue")
    asked = [f"{word} of number {number} ?" for number in range(len(dataset.corpus)) for word in words]
    owners = np.repeat(np.arange(len(dataset.corpus), dtype=np.int32), len(words))
    made = PseudoQueries(asked, owners, np.zeros(len(asked), np.int8), ("generated",), dataset.corpus.fingerprint)
    said = token_text(dataset.corpus, vocabulary, views=(SAID, ASKED), pseudo_queries=made)
    documents = samples.Documents(said, vocabulary, vocabulary.encode_batch(list(dataset.corpus.titles)))
    sampling = samples.Sampling(
        spans=6, titles=1, pseudo_queries=3, span_tokens=40, title_tokens=60, temperature=1.0, seed=0,
        made_questions=count,
    )  # fmt: skip
    views = MINDER().asking.views
    data = samples.made_targets(documents, len(dataset.corpus), vocabulary, views, sampling, 64)
    count = min(count, len(words))
    assert len(data.sources) == count * len(views) * len(dataset.corpus)
    for number, document in enumerate(np.repeat(np.arange(len(dataset.corpus)), count)):
        body, titles, queries = data.kinds[0][3 * number : 3 * number + 3]
        question, _, ask = (vocabulary.decode(data.sources[3 * number + view]) for view in range(3))
        assert question in asked[3 * document : 3 * document + 3] and ask == f"{question} || query"
        assert [vocabulary.decode(one) for one in titles] == [dataset.corpus[document].title]
        text = [vocabulary.decode(span) for span in body]
        one = dataset.corpus[document]
        assert text and all(span in one.text or span in one.title for span in text)
        # Nothing of the question itself: its first word is in no other query of the document.
        spans = [vocabulary.decode(span) for span in queries]
        assert spans and not any(span.startswith(question.split()[0]) for span in spans)
        assert all(any(span in one for one in asked[3 * document : 3 * document + 3]) for span in spans)
    system = dataclasses.replace(WRITING, vocabulary="byte", made_questions=count)
    of_people, all_of_them = (
        writer._start(dataset, vocabulary, said, settings, MINDER().asking)
        for settings in (dataclasses.replace(system, made_questions=0), system)
    )
    assert len(all_of_them[-1].sources) == len(of_people[-1].sources) + len(data.sources)
    rates = (params["copy_bias"] for _, params, *_ in (of_people, all_of_them))
    np.testing.assert_array_equal(*rates)  # generated queries are not counted
    none = dataclasses.replace(sampling, made_questions=0)
    assert samples.made_targets(documents, len(dataset.corpus), vocabulary, views, none, 64) is None
    assert samples.made_targets(documents, len(dataset.corpus), vocabulary, views[:2], sampling, 64) is None


def test_queries_count_as_they_are_or_less_or_as_the_released_code_has_them():
    vocabulary = ByteVocabulary()
    said = ((None, (None, None)), (14.0, (14.0, -1.0)), (0.0, (0.0, -1.0)), (-1.0, (-1.0, -1.0)))
    for shift, expected in said:
        view = _ngram_view("pseudo_query", View("{query} || query"), vocabulary, Asking(pseudo_query_shift=shift))
        assert (view.shift, view.most) == expected
        assert (view.own_words, view.singles) == (0, 0)  # the question's own, and single tokens, are of the body
    assert MINDER().asking.pseudo_query_shift == -1.0


def test_views_that_there_are_not_are_named():
    with pytest.raises(InputError, match="title"):
        Asking(writes=("titles",))
    with pytest.raises(InputError, match="MINDER"):
        SEAL(asking=Asking(writes=("body", "pseudo_query")))
    with pytest.raises(InputError, match="made_questions"):
        SEAL(writing=NgramWriting(made_questions=1))


@pytest.mark.parametrize("kind", [SEAL, MINDER, BM25DocT5Query, DSIQG])
def test_without_training_questions_it_is_refused_before_anything_is_trained(kind, tmp_path):
    unasked = corpus_lib.read_beir(small_data.write_beir(tmp_path, count=4, queries=False))
    with pytest.raises(InputError, match=f"{re.escape(kind.name)} learns to write.*training questions.*there are none"):
        kind().check_data(unasked)


def test_who_learns_to_rank_goes_on_with_generated_queries_too(beir, monkeypatch):
    """Learning to write, as before, is of the questions that the student learned to write to."""
    dataset, vocabulary = corpus_lib.read_beir(beir), ByteVocabulary()
    owners = np.arange(len(dataset.corpus), dtype=np.int32)
    queries = [f"what of number {number} ?" for number in owners]
    made = PseudoQueries(queries, owners, np.zeros(len(owners), np.int8), ("generated",), dataset.corpus.fingerprint)
    said = token_text(dataset.corpus, vocabulary, views=(SAID, ASKED), pseudo_queries=made)

    class Made(Exception):
        pass

    def batches(data, **_):
        raise Made(len(data.sources))

    student = types.SimpleNamespace(module=None, params={}, words=[])
    stubs = {
        "load_dataset": dataset, "load_vocabulary": vocabulary, "load_asked": types.SimpleNamespace(texts=["red cat"]),
        "scores_to_learn": None, "retriever_of": None, "CopyNetworkModel": None,
        "lists_to_learn": (types.SimpleNamespace(drawn=lambda *_: np.array([0])), None, 1.0),
        "FMIndex.load": None, "TokenText.load": said, "CopyDecoder.load": student, "Candidates.load": None,
    }  # fmt: skip
    for name, value in stubs.items():
        monkeypatch.setattr(f"gr_jax.systems.ngram.distilling.{name}", lambda *_, value=value: value)
    monkeypatch.setattr(distilling, "TargetBatches", batches)
    nowhere, rows = pathlib.Path("nowhere"), []
    for count in (0, 1):
        writing = dataclasses.replace(WRITING, vocabulary="byte", made_questions=count)
        with pytest.raises(Made) as caught:
            distilling.model.function(
                None, *[nowhere] * 7, settings=Distilling(), writing=writing, asking=MINDER().asking
            )
        rows.append(caught.value.args[0])
    assert rows[1] == rows[0] + len(queries) * len(MINDER().asking.views)

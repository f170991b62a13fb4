"""BM25 as a system."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import gr_jax
from gr_jax import corpus, retrievers, systems
from gr_jax.errors import InputError
from gr_jax.evaluation import calibration
from gr_jax.systems import BM25
from tests import small_data
from tests.small_dsi import Said


def test_it_answers_as_the_retriever_does(tmp_path):
    beir = small_data.write_beir(tmp_path / "mine", count=24)
    said = Said()
    searcher = BM25().run(beir, tmp_path / "bm25", say=said.append)
    assert said.made() == ["corpus", "bm25", "index", "results"]
    read = corpus.read_beir(beir)
    expected = retrievers.BM25(read.corpus).retrieve(["red cat", "under the bridge"], 10)
    for one in (searcher, gr_jax.load(tmp_path / "bm25" / "index")):
        found = one.retrieve(["red cat", "under the bridge"], 10)
        np.testing.assert_array_equal(found.doc_index, expected.doc_index)
        np.testing.assert_array_equal(found.score, expected.score)
    metrics = json.loads((tmp_path / "bm25" / "results" / "metrics.json").read_text())
    assert list(metrics["test"]) == ["BM25"]
    shutil.rmtree(tmp_path / "bm25" / "results")
    said = Said()
    BM25(lexical=systems.Lexical(b=0.9)).run(beir, tmp_path / "bm25", say=said.append)
    assert said.made() == ["bm25", "index", "results"]


def test_documents_in_memory_count_by_their_content(tmp_path):
    texts, judged = ["a red cat", "a blue dog"], {"queries": {"q": "red"}, "qrels": {"test": {"q": {"0": 1}}}}

    def made(source, until="corpus"):
        said = Said()
        searcher = BM25().run(source, tmp_path / "bm25", until=until, say=said.append)
        assert searcher is None or [hit.doc_id for hit in searcher.search("red")] == ["0"]
        return said.made()

    first = corpus.Dataset.from_texts(texts, **judged)
    assert made(first, until="index") == ["corpus", "bm25", "index"]
    assert made(corpus.Dataset.from_texts(texts, **judged), until="index") == []
    for changed in (
        {"texts": texts[::-1]}, {"titles": ["", "Dog"]}, {"ids": ["0", "2"]}, {"queries": {"q": "blue"}},
        {"qrels": {"dev": {"q": {"0": 1}}}}, {"qrels": {"test": {"q": {"1": 1}}}}, {"qrels": {"test": {"q": {"0": 2}}}},
    ):  # fmt: skip
        assert made(corpus.Dataset.from_texts(**{"texts": texts, **judged, **changed})) == ["corpus"], changed
    assert made(dataclasses.replace(first, transform="split_identifiers")) == ["corpus"]
    assert made(first.corpus) == ["corpus"]
    with pytest.raises(InputError, match="no source of documents.*from_texts"):
        BM25().run(texts, tmp_path / "bm25", say=print)


def test_there_is_nothing_to_train(tmp_path):
    """`gr-jax train` reads the documents, and that is all."""
    said = Said()
    beir = small_data.write_beir(tmp_path / "mine", count=4)
    assert BM25().run(beir, tmp_path / "bm25", until=systems.base.TRAINED, say=said.append) is None
    assert said.made() == ["corpus"]


def test_how_sure_it_is_is_measured_on_request(tmp_path):
    beir = small_data.write_beir(tmp_path / "mine", count=24)
    said = Said()
    searcher = BM25().run(beir, tmp_path / "bm25", calibrate=True, say=said.append)
    assert said.made() == ["corpus", "bm25", "index", "results", "calibration"]
    made = searcher.calibration
    assert made.queries == 12 and made == gr_jax.load(tmp_path / "bm25" / "index").calibration
    values = json.loads((tmp_path / "bm25" / "calibration" / "report.json").read_text())
    assert values["dev"]["BM25"]["Brier, calibrated"] == made.brier
    run = corpus.Run.load(tmp_path / "bm25" / "results" / "runs" / "BM25.test.trec")
    found = calibration.of_list(run, corpus.read_beir(beir).split("test"), made.temperature)
    assert values["test"]["BM25"]["Brier, calibrated"] == pytest.approx(calibration.brier(found), abs=1e-6)
    (hit, *_) = searcher.search("who saw a red dog", probability=True)
    assert 0 < hit.probability <= 1
    said = Said()
    BM25().run(beir, tmp_path / "bm25", calibrate=True, say=said.append)
    assert said.made() == []


def test_without_questions_of_dev_nothing_is_said_to_be_sure(tmp_path):
    beir = small_data.write_beir(tmp_path / "mine", count=24)
    (beir / "qrels" / "dev.tsv").unlink()
    judged = (beir / "qrels" / "test.tsv").read_text().splitlines(keepends=True)[:2]
    for lines in ([], judged):  # none, and one question
        if lines:
            (beir / "qrels" / "dev.tsv").write_text("".join(lines))
        with pytest.raises(InputError, match="two questions of dev or more"):
            BM25().run(beir, tmp_path / "bm25", calibrate=True, say=Said().append)
    assert not (tmp_path / "bm25" / "results").exists()

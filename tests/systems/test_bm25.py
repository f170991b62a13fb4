"""BM25 as a system."""

import json
import shutil

import numpy as np

import gr_jax
from gr_jax import corpus, retrievers, systems
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


def test_there_is_nothing_to_train(tmp_path):
    """`launch.train` reads the documents, and that is all."""
    said = Said()
    beir = small_data.write_beir(tmp_path / "mine", count=4)
    assert BM25().run(beir, tmp_path / "bm25", until=systems.base.TRAINED, say=said.append) is None
    assert said.made() == ["corpus"]

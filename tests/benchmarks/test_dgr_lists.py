"""Whose share a distillation's lost gain is, on four questions that are worked out by hand."""

import dataclasses
import json
import pathlib
import types

import numpy as np
import pytest

from benchmarks import dgr_lists
from benchmarks.recipe_runs import RecipeRun
from gr_jax import retrievers
from gr_jax.corpus import Corpus, Document
from gr_jax.retrievers import scoring

# What answers question i is document i. What is found before, by the teacher's scores of it, and after.
BEFORE = np.array([[0, 1, 4], [0, 1, 4], [0, 1, 4], [0, 3, -1]], np.int32)
SCORES = np.array([[0.9, 0.1, 0.2], [0.1, 0.9, 0.2], [np.nan, 0.3, 0.2], [0.8, 0.2, np.nan]], np.float32)
TAUGHT = np.array([[0, 4, 1], [1, 4, 0], [1, 4, 0], [0, 3, -1]], np.int32)
AFTER = np.array([[4, 0, 1], [1, 0, 4], [0, 1, 4], [3, 0, -1]], np.int32)


@pytest.fixture
def run(monkeypatch, tmp_path):
    corpus = Corpus.from_documents(Document(f"d{number}", "", "text") for number in range(5))
    names = corpus.doc_ids
    qrels = {f"q{number}": {names[number]: 1} for number in range(4)}
    dataset = types.SimpleNamespace(corpus=corpus)
    student = RecipeRun("ngram", "squad_dev", "minder")
    taught = dataclasses.replace(student, system="dgr", trained=student, teacher=RecipeRun("dense", "squad_dev", "dpr"))
    monkeypatch.setattr(dgr_lists, "questions", lambda data, split="dev": (dataset, qrels, list(qrels)))
    monkeypatch.setattr(dgr_lists, "found", lambda one, split="dev": BEFORE if one is student else AFTER)
    monkeypatch.setattr(retrievers.index, "load", lambda folder: types.SimpleNamespace(retriever=None))
    monkeypatch.setattr(scoring, "candidate_scores", lambda retriever, texts, documents: SCORES)
    monkeypatch.setattr(RecipeRun, "make", lambda self: None)
    monkeypatch.setattr(RecipeRun, "folder", property(lambda self: tmp_path))
    model = pathlib.Path(tmp_path, "model")
    model.mkdir()
    lines = [{"step": 1, "train/ranking": 2.5}, {"step": 2, "dev/RR@10": 0.5}, {"step": 3, "train/ranking": 1.5}]
    (model / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    dgr_lists.ordered.cache_clear()
    yield taught
    dgr_lists.ordered.cache_clear()


def test_the_teachers_order_has_what_it_does_not_score_behind(run):
    np.testing.assert_array_equal(dgr_lists.ordered(run), TAUGHT)
    assert dgr_lists.reached(run.data, TAUGHT, ["RR@10"])["RR@10"] == pytest.approx((1 + 1 + 0 + 1 / 2) / 4)


def test_shares_are_those_counted_by_hand(run):
    assert dgr_lists.lost(run) == pytest.approx(
        {
            "student right": 1 / 4,  # question 0
            "teacher right": 2 / 4,  # 0 and 1
            "no answer among 100": 1 / 4,  # 2
            "answer among 100, teacher wrong": 1 / 4,  # 3
            "teacher alone right": 1 / 4,  # 1
            "teacher alone right, learned": 1 / 4,
            "student alone right": 0,
            "student alone right, unlearned": 0,
            "both right, unlearned": 1 / 4,  # 0
            "both wrong, learned": 1 / 4,  # 3
            "right after it": 2 / 4,  # 1 and 3
            "pairs as taught, before": (2 / 3 + 1 / 3 + 1 / 3 + 1) / 4,
            "pairs as taught, after": (2 / 3 + 2 / 3 + 1 / 3 + 0) / 4,
            "first loss": 2.5,
            "last loss": 1.5,
        }
    )


def test_pairs_that_an_order_lacks_are_behind_or_left_out():
    wanted, among = np.array([[5, 6, 7, 8]], np.int32), np.array([[8, 7, 6, 5]], np.int32)
    # 6 stands before 5 and before what is missing; 5 does too; of (7, 8) nothing is known.
    assert dgr_lists.as_wanted(np.array([[6, 5, -1, -1]], np.int32), wanted, among) == pytest.approx(4 / 5)
    assert dgr_lists.as_wanted(wanted[:, ::-1], wanted, among) == 0

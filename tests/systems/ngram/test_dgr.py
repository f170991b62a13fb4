"""LTRGR and DGR from end to end, on few documents: they learn to rank what they find, and answer as before."""

import dataclasses
import json

import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.losses.ranking import RankedLists
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.scoring import candidate_scores
from gr_jax.systems.doct5query import GeneratedQueries, QueryGenerating
from gr_jax.systems.ngram import Asking, NgramWriting, distilling
from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.dgr import DGR, LTRGR
from gr_jax.systems.ngram.distilling import Distilling
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
LEARNING = Distilling(
    steps=60, batch_size=6, learning_rate=3e-3, warmup_steps=5, evaluate_every=None, dev_queries=None, keep_best=None,
    checkpoint_every=30, candidates=10, ngrams=40, length=5, pool=8, rows=6, row_tokens=96, row_ngrams=48, margin=3.0,
)  # fmt: skip
SETTINGS = {
    "writing": NgramWriting(
        **SMALL, query_tokens=64, row_targets=48, span_tokens=5, title_tokens=6, steps=20, warmup_steps=5,
        batch_size=12, learning_rate=1e-2, evaluate_every=None, dev_queries=None, keep_best=None, checkpoint_every=None,
    ),
    "asking": Asking(beams=4, tokens=5, title_tokens=6),
    "generator": QueryGenerating(**SMALL),
    "generated": GeneratedQueries(),
}  # fmt: skip


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=24)


@pytest.fixture(scope="module")
def teacher(beir, tmp_path_factory):
    """BM25, in a folder of its own."""
    from gr_jax.retrievers.lexical import BM25

    folder = tmp_path_factory.mktemp("teacher") / "index"
    dataset = corpus_lib.read_beir(beir)
    indexes.save(folder, BM25(dataset.corpus), dataset.corpus)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LTRGR, DGR])
def test_it_learns_to_rank(kind, beir, teacher, tmp_path):
    own = {"teacher": str(teacher)} if kind is DGR else {}
    loss = "distilled_ranknet" if kind is DGR else "two_margins"
    system = kind(**SETTINGS, distilling=dataclasses.replace(LEARNING, loss=loss), **own)
    searcher = system.run(beir, tmp_path, say=lambda line: None)
    curve = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    costs = [one["train/ranking"] for one in curve if "train/ranking" in one]
    assert costs[-1] < 0.7 * costs[0]
    found = Candidates.load(tmp_path / "candidates" / "found")
    dataset = corpus_lib.read_beir(beir)
    questions = dataset.split_queries("train")
    assert len(found) == len(questions.texts)
    if kind is DGR:
        scores = np.load(tmp_path / "taught" / "scores.npy")
        retriever = indexes.load(teacher).retriever
        np.testing.assert_array_equal(scores, candidate_scores(retriever, questions.texts, np.array(found.documents)))
    # The same program under the same index: only parameters differ.
    student, taught = tmp_path / "student_index" / "retriever", tmp_path / "index" / "retriever"
    files = [storage.read_folder(one, verify=False).files for one in (student, taught)]
    assert files[0].keys() == files[1].keys()
    changed = {name for name in files[0] if files[0][name]["sha256"] != files[1][name]["sha256"]}
    assert changed and all("parameters" in name for name in changed if not name.endswith(storage.MANIFEST))
    right = [dataset.corpus.index_of(next(iter(dataset.split("train")[one]))) for one in questions.ids]
    assert np.mean(searcher.retrieve(questions.texts, 1).doc_index[:, 0] == right) > 0.8


def test_a_teacher_of_another_corpus_is_named(beir, teacher, tmp_path):
    other = small_data.write_beir(tmp_path / "others", count=12)
    place = type("Place", (), {"folder": tmp_path, "work": tmp_path / "work", "notes": {}})
    dataset = corpus_lib.read_beir(other)
    nothing = np.zeros(0, np.int32)
    count = len(dataset.split_queries("train").texts)
    Candidates(
        np.zeros((count, 2), np.int32), np.ones((count, 2), np.float32), np.ones((count, 2), np.float32),
        np.zeros(count + 1, np.int64), np.zeros((0, 3), np.int32), nothing, nothing, nothing.astype(bool),
        nothing.astype(np.float32), nothing.astype(np.float32), np.zeros(2 * count + 1, np.int64), nothing,
        nothing.astype(np.float32),
    ).save(tmp_path / "candidates" / "found")  # fmt: skip
    from gr_jax.stages import documents
    from gr_jax.stages.graph import in_order
    from gr_jax.stages.runner import Runner
    from gr_jax.systems import BeirFolder

    stage, runner = documents.corpus(BeirFolder(str(other))), Runner(tmp_path / "run")
    runner.run(in_order(stage))
    with pytest.raises(InputError, match="a teacher of another corpus"):
        distilling.taught.function(
            place, runner.folder(stage), tmp_path / "candidates", teacher=distilling.Teacher(str(teacher))
        )


def test_settings_that_fit_nothing():
    with pytest.raises(InputError, match="none is named"):
        DGR().run("documents", "runs/dgr")
    with pytest.raises(InputError, match="lists of 8 documents, and 6"):
        Distilling(length=8, pool=5)
    with pytest.raises(InputError, match="above 0"):
        Distilling(margins=(0.0, 100.0))
    assert Distilling(length=8, pool=None, candidates=8).drawing.pool is None


def test_margins_are_the_students():
    documents = np.tile(np.arange(12, dtype=np.int32), (3, 1))
    scores = np.stack([np.linspace(110, 0, 12), np.linspace(220, 0, 12), np.linspace(330, 0, 12)]).astype(np.float32)
    nothing = np.zeros(0, np.int32)
    found = Candidates(
        documents, scores, np.ones_like(scores), np.zeros(4, np.int64), np.zeros((0, 3), np.int32), nothing, nothing,
        nothing.astype(bool), nothing.astype(np.float32), nothing.astype(np.float32), np.zeros(37, np.int64), nothing,
        nothing.astype(np.float32),
    )  # fmt: skip
    assert distilling.rank_distance(found) == pytest.approx(180)  # nine steps of 20
    assert distilling.margins_of(Distilling(margin=0.5), found) == pytest.approx((90, 30))
    assert distilling.margins_of(Distilling(margins=(300, 100)), found) == (300, 100)
    loss = distilling.make_loss(Distilling(margins=(300, 100)), found)
    assert (loss.base, loss.gap) == (1.0, pytest.approx(1 / 3))


@pytest.mark.parametrize("loss", ["margin_mse", "listwise_kl"])
def test_a_teachers_unit_does_not_matter(loss):
    rng = np.random.default_rng(0)
    scores = -np.sort(-rng.normal(size=(5, 12)).astype(np.float32), axis=1)
    found = Candidates(
        np.tile(np.arange(12, dtype=np.int32), (5, 1)), scores, np.ones_like(scores), np.zeros(6, np.int64),
        np.zeros((0, 3), np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, bool),
        np.zeros(0, np.float32), np.zeros(0, np.float32), np.zeros(61, np.int64), np.zeros(0, np.int32),
        np.zeros(0, np.float32),
    )  # fmt: skip
    taught = rng.normal(size=(5, 12)).astype(np.float32)
    taught[0, 3:] = np.nan
    taught[1] = np.nan
    ordered = [-np.sort(-row[np.isfinite(row)]) for row in taught if np.isfinite(row).sum() > 1]
    expected = np.median([row[0] - row[min(len(row), 10) - 1] for row in ordered])
    assert distilling.teacher_distance(found, taught) == pytest.approx(expected)
    values = []
    for unit in (1.0, 0.01, 50.0):
        made = distilling.make_loss(Distilling(loss=loss), found, taught * np.float32(unit))
        lists = RankedLists(np.ones((3, 12), bool), taught[2:] * np.float32(unit))
        values.append(np.asarray(made(scores[2:], lists)))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-4)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-4)
    assert distilling.teacher_distance(found, np.full_like(taught, np.nan)) == 1.0

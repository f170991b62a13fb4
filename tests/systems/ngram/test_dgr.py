"""LTRGR and DGR from end to end, on few documents: they learn to rank what they find, and answer as before."""

import dataclasses
import json

import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.scoring import candidate_scores
from gr_jax.systems.doct5query import GeneratedQueries, QueryGenerating
from gr_jax.systems.ngram import Asking, NgramWriting
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
    checkpoint_every=30, candidates=10, ngrams=40, length=5, pool=8, rows=6, row_prefixes=48, row_ngrams=48, margin=3.0,
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
    folder = tmp_path / "run"
    own = {"teacher": str(teacher)} if kind is DGR else {}
    loss = "distilled_ranknet" if kind is DGR else "two_margins"
    system = kind(**SETTINGS, distilling=dataclasses.replace(LEARNING, loss=loss), **own)
    searcher = system.run(beir, folder, say=lambda line: None)
    curve = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    costs = [one["train/ranking"] for one in curve if "train/ranking" in one]
    assert costs[-1] < 0.7 * costs[0]
    shared = tmp_path / "shared"
    found = Candidates.load(next(shared.glob("candidates-*")) / "found")
    dataset = corpus_lib.read_beir(beir)
    questions = dataset.split_queries("train")
    assert len(found) == len(questions.texts)
    if kind is DGR:
        scores = np.load(next(shared.glob("teacher_scores-*")) / "scores.npy")
        retriever = indexes.load(teacher).retriever
        np.testing.assert_array_equal(scores, candidate_scores(retriever, questions.texts, np.array(found.documents)))
    # The same program under the same index: only parameters differ.
    student, taught = folder / "student_index" / "retriever", folder / "index" / "retriever"
    files = [storage.read_folder(one, verify=False).files for one in (student, taught)]
    assert files[0].keys() == files[1].keys()
    changed = {name for name in files[0] if files[0][name]["sha256"] != files[1][name]["sha256"]}
    assert changed and all("parameters" in name for name in changed if not name.endswith(storage.MANIFEST))
    right = [dataset.corpus.index_of(next(iter(dataset.split("train")[one]))) for one in questions.ids]
    assert np.mean(searcher.retrieve(questions.texts, 1).doc_index[:, 0] == right) > 0.8


def made(run, shared):
    """The stages that were made, beside the documents."""
    finished = {one.name.split("-")[0] for folder in (run, shared) if folder.exists() for one in folder.iterdir()}
    return finished - {"corpus", "work", ".locks"}


def test_a_teacher_of_another_corpus_is_named_before_training(teacher, tmp_path):
    others = small_data.write_beir(tmp_path / "others", count=12)
    with pytest.raises(InputError, match="a teacher of another corpus"):
        DGR(**SETTINGS, distilling=LEARNING, teacher=str(teacher)).run(others, tmp_path / "run", say=lambda line: None)
    assert not made(tmp_path / "run", tmp_path / "shared")


@pytest.mark.parametrize("kind", [LTRGR, DGR])
def test_labels_without_an_answer_are_named_before_training(kind, teacher, tmp_path):
    unanswered = small_data.write_grades(small_data.write_beir(tmp_path / "unanswered", count=24), 0)
    system = kind(**SETTINGS, distilling=LEARNING, **({"teacher": str(teacher)} if kind is DGR else {}))
    with pytest.raises(InputError, match=f"{system.name} learns to write.*no grade in them is above 0"):
        system.run(unanswered, tmp_path / "run", say=lambda line: None)
    assert not made(tmp_path / "run", tmp_path / "shared")


@pytest.mark.parametrize("loss", ["listwise_kl", "margin_mse"])
def test_a_loss_of_a_teachers_scores_needs_a_teacher(loss, beir, teacher, tmp_path):
    dataset, own = corpus_lib.read_beir(beir), dataclasses.replace(LEARNING, loss=loss)
    with pytest.raises(InputError, match=f"there is no teacher, and this loss reads its scores.*{loss}"):
        LTRGR(**SETTINGS, distilling=own).run(beir, tmp_path / "run", say=lambda line: None)
    assert not made(tmp_path / "run", tmp_path / "shared")
    DGR(**SETTINGS, distilling=own, teacher=str(teacher)).check_data(dataset)
    labels = dataclasses.replace(LEARNING, loss="two_margins", teacher_labels=True)
    DGR(**SETTINGS, distilling=labels, teacher=str(teacher)).check_data(dataset)


def test_settings_that_fit_nothing():
    with pytest.raises(InputError, match="none is named"):
        DGR().run("documents", "runs/dgr")
    with pytest.raises(InputError, match="lists of 8 documents, and 6"):
        Distilling(length=8, pool=5)
    with pytest.raises(InputError, match="above 0"):
        Distilling(margins=(0.0, 100.0))
    assert Distilling(length=8, pool=None, candidates=8).drawing.pool is None


def test_factors_for_an_encoder_that_stays_as_it_is():
    factors = {"encoder": 0.1}
    with pytest.raises(InputError, match=r"encoder': 0.1.*Distilling\.frozen to False"):
        LTRGR(distilling=Distilling(multipliers=factors))
    learned = LTRGR(distilling=Distilling(multipliers=factors, frozen=False)).distilling
    assert learned is not None and learned.multipliers == factors

"""What a teacher is asked, once; and how settings, margins and losses follow from what a student found."""

import dataclasses
import types

import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax import storage
from gr_jax.corpus import Qrels
from gr_jax.errors import InputError
from gr_jax.losses.ranking import RANKING_LOSSES, RankedLists
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.scoring import candidate_scores
from gr_jax.stages import documents, teaching
from gr_jax.stages.asked import load_asked
from gr_jax.stages.graph import Place, in_order
from gr_jax.stages.runner import Runner
from gr_jax.stages.sources import BeirFolder
from gr_jax.stages.teaching import FoundDocuments, ListLearning, Teacher
from tests import small_data


def stage_of(folder, source, found):
    """The folder of documents, one of candidates, and a place to work."""
    corpus, runner = documents.corpus(BeirFolder(str(source))), Runner(folder / "run")
    runner.run(in_order(corpus))
    with storage.write_folder(folder / "candidates" / "found", "candidates") as new:
        np.save(new / "documents.npy", found)
        np.save(new / "scores.npy", np.ones(found.shape, np.float32))
    small_data.write_asked(folder / "asked", corpus_lib.read_beir(source))
    (folder / "filled").mkdir()
    return runner.folder(corpus), folder / "candidates", Place(folder / "filled", folder / "work", {})


def test_a_teacher_of_another_corpus_is_named(memorised, tmp_path):
    other = small_data.write_beir(tmp_path / "others", count=12)
    corpus, candidates, place = stage_of(tmp_path, other, np.zeros((12, 2), np.int32))
    with pytest.raises(InputError, match="a teacher of another corpus"):
        teaching.teacher_scores.function(
            place, corpus, candidates.with_name("asked"), candidates, teacher=Teacher(str(memorised.model_dir))
        )


def test_an_interrupted_teacher_goes_on(memorised, tmp_path, monkeypatch):
    found = np.random.default_rng(0).permuted(np.tile(np.arange(64, dtype=np.int32), (64, 1)), axis=1)[:, :5]
    found[7, 3:] = -1
    corpus, candidates, place = stage_of(tmp_path, memorised.corpus, found)
    asked = []

    def once(retriever, questions, its):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(tuple(questions))
        return candidate_scores(retriever, questions, its)

    monkeypatch.setattr(teaching, "_BLOCK", 13)
    monkeypatch.setattr(teaching, "candidate_scores", once)
    arguments, teacher = (place, corpus, candidates.with_name("asked"), candidates), Teacher(str(memorised.model_dir))
    with pytest.raises(KeyboardInterrupt):
        teaching.teacher_scores.function(*arguments, teacher=teacher)
    before = list(asked)
    monkeypatch.setattr(teaching, "candidate_scores", lambda *given: asked.append(given[1]) or candidate_scores(*given))
    teaching.teacher_scores.function(*arguments, teacher=teacher)
    questions = corpus_lib.read_beir(memorised.corpus).split_queries("train").texts
    assert [len(one) for one in asked] == [13, 13, 13, 13, 12]
    assert [text for block in asked for text in block] == list(questions) and asked[:3] == before
    expected = candidate_scores(indexes.load(teacher.index).retriever, questions, found)
    np.testing.assert_array_equal(np.load(place.folder / "scores.npy"), expected)


def test_systems_beside_each_other_ask_once():
    """What is asked does not depend on how a student then learns, and lies where others find it."""
    corpus = documents.corpus(types.SimpleNamespace(identity=lambda: "documents"))
    teacher = types.SimpleNamespace(identity=lambda: "a teacher")
    one, other = (
        teaching.teacher_scores(corpus, corpus, corpus, teacher=teacher).named(name)
        for name in ("teacher_scores", "teacher_scores_1")
    )
    runner = Runner("runs/one"), Runner("runs/other")
    assert runner[0].folder(one) == runner[1].folder(other)


def test_shuffling_is_a_setting_of_the_training(tmp_path):
    found = FoundDocuments(
        np.tile(np.arange(6, dtype=np.int32), (4, 1)), np.tile(np.arange(6, 0, -1, dtype=np.float32), (4, 1))
    )
    judged = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    np.save(tmp_path / "scores.npy", judged)
    np.testing.assert_array_equal(teaching.scores_to_learn(tmp_path, found, ListLearning(length=3, pool=4)), judged)
    assert teaching.scores_to_learn(None, found, ListLearning(length=3, pool=4)) is None
    whole = ListLearning(length=3, pool=4, shuffled=1.0)
    for source, scores in ((tmp_path, judged), (None, found.scores)):
        dealt = teaching.scores_to_learn(source, found, whole)
        assert (dealt != scores).any()
        np.testing.assert_array_equal(np.sort(dealt, axis=1), np.sort(scores, axis=1))
    for wrong in (-0.1, 1.1):
        with pytest.raises(InputError, match="shuffled"):
            ListLearning(shuffled=wrong)


def test_what_nobody_can_learn_from_is_named(tmp_path):
    dataset = corpus_lib.read_beir(small_data.write_beir(tmp_path / "asked", count=12))
    unasked = corpus_lib.read_beir(small_data.write_beir(tmp_path / "unasked", count=12, queries=False))
    ListLearning(length=12, pool=None).check_data("DGR", dataset)
    with pytest.raises(InputError, match="lists of 13 documents, and there are 12"):
        ListLearning(length=13, pool=None).check_data("DGR", dataset)
    with pytest.raises(InputError, match="DGR ranks documents for training questions, and there are none"):
        ListLearning(length=12, pool=None).check_data("DGR", unasked)
    with pytest.raises(InputError, match=r"3 questions without a judgement are to be asked.*has 0.*unlabelled to 0"):
        ListLearning(length=12, pool=None, unlabelled=3).check_data("DGR", dataset)
    for loss in ("listwise_kl", "margin_mse"):  # they read scores, and there would be the student's own alone
        with pytest.raises(InputError, match=rf"this loss reads its scores.*{loss}.*ListLearning\.loss"):
            ListLearning(loss=loss).check_alone()
    for loss in RANKING_LOSSES.keys() - {"listwise_kl", "margin_mse"}:
        ListLearning(loss=loss).check_alone()
    for changed in ({"unlabelled": 3}, {"made": 2}, {"teacher_labels": True}, {"labelled": False}):
        with pytest.raises(InputError, match=r"there is no teacher.*ListLearning\."):
            ListLearning(**changed).check_alone()
    with pytest.raises(InputError, match=r"Set ListLearning\.labelled"):
        ListLearning(labelled=False, teacher_labels=True)


def test_labels_without_an_answer_are_named(tmp_path):
    """Where labels are all that there is to learn from, and nothing answers a question."""
    folder, learning = small_data.write_beir(tmp_path, count=12), ListLearning(length=12, pool=None)
    for grade in (0, -1):
        dataset = corpus_lib.read_beir(small_data.write_grades(folder, grade))
        with pytest.raises(InputError, match=r"lists of DGR begin with .* grade above 0.*in qrels/train\.tsv\.$"):
            learning.check_data("DGR", dataset)
        for more in ({"labelled": False}, {"made": 3}):  # there is something else
            dataclasses.replace(learning, **more).check_data("DGR", dataset)
    judged = dict(dataset.split("train"))
    del judged[next(iter(judged))]
    unjudged = dataclasses.replace(dataset, qrels={"train": Qrels(judged)})
    dataclasses.replace(learning, unlabelled=1).check_data("DGR", unjudged)


def test_labels_without_an_answer_among_the_questions_that_are_asked(tmp_path):
    dataset = corpus_lib.read_beir(small_data.write_beir(tmp_path / "beir", count=12))
    dataset.save(tmp_path / "corpus" / "dataset")
    few, place = ListLearning(length=12, pool=None, questions=4), Place(tmp_path / "asked", tmp_path / "work", {})
    place.folder.mkdir()
    stage = few.asked(documents.corpus(BeirFolder(str(tmp_path / "beir"))), None)
    stage.function.function(place, tmp_path / "corpus", **stage.settings)
    asked, train = load_asked(place.folder).ids, dataset.split("train")
    assert len(asked) == 4
    for answered in train:
        grades = {one: dict.fromkeys(its, int(one == answered)) for one, its in train.items()}
        changed = dataclasses.replace(dataset, qrels={"train": Qrels(grades)})
        if answered in asked:
            few.check_data("DGR", changed)
            continue
        with pytest.raises(InputError, match=r"got 4.*set ListLearning\.questions = None"):
            few.check_data("DGR", changed)


def test_questions_that_a_teacher_has_no_score_for_are_counted(tmp_path):
    """An answered one is learned in the student's order; the manifest says how many there are."""
    dataset = corpus_lib.read_beir(small_data.write_beir(tmp_path / "beir", count=12))
    small_data.write_asked(tmp_path / "asked", dataset)
    queries = load_asked(tmp_path / "asked")
    documents = np.tile(np.arange(12, dtype=np.int32), (12, 1))
    found = FoundDocuments(documents, np.tile(np.linspace(12, 1, 12, dtype=np.float32), (12, 1)))
    scores = np.random.default_rng(0).normal(size=documents.shape).astype(np.float32)
    settings, said = ListLearning(length=4, pool=6, margin=9.0), "answered, but not scored by the teacher"
    for silent in (0, 3):
        scores[:silent] = np.nan
        place = Place(tmp_path, tmp_path, {})
        teaching.lists_to_learn(place, dataset, queries, found, scores, settings)
        assert [number for name, number in place.notes.items() if name.startswith(said)] == [silent] * bool(silent)
        assert place.notes["lists"]["questions"] == 12


def test_margins_are_the_students():
    documents = np.tile(np.arange(12, dtype=np.int32), (3, 1))
    scores = np.stack([np.linspace(110, 0, 12), np.linspace(220, 0, 12), np.linspace(330, 0, 12)]).astype(np.float32)
    found = FoundDocuments(documents, scores)
    assert teaching.rank_distance(found) == pytest.approx(180)  # nine steps of 20
    assert teaching.margins_of(ListLearning(margin=0.5), found) == pytest.approx((90, 30))
    assert teaching.margins_of(ListLearning(margins=(300, 100)), found) == (300, 100)
    loss = teaching.make_loss(ListLearning(margins=(300, 100)), found)
    assert (loss.base, loss.gap) == (1.0, pytest.approx(1 / 3))


@pytest.mark.parametrize("loss", ["margin_mse", "listwise_kl"])
def test_a_teachers_unit_does_not_matter(loss):
    rng = np.random.default_rng(0)
    student = -np.sort(-rng.normal(size=(5, 12)).astype(np.float32), axis=1)
    found = FoundDocuments(np.tile(np.arange(12, dtype=np.int32), (5, 1)), student)
    scores = rng.normal(size=(5, 12)).astype(np.float32)
    scores[0, 3:] = np.nan
    scores[1] = np.nan
    ordered = [-np.sort(-row[np.isfinite(row)]) for row in scores if np.isfinite(row).sum() > 1]
    expected = np.median([row[0] - row[min(len(row), 10) - 1] for row in ordered])
    assert teaching.teacher_distance(found, scores) == pytest.approx(expected)
    values = []
    for unit in (1.0, 0.01, 50.0):
        made = teaching.make_loss(ListLearning(loss=loss), found, scores * np.float32(unit))
        lists = RankedLists(np.ones((3, 12), bool), scores[2:] * np.float32(unit))
        values.append(np.asarray(made(student[2:], lists)))
    np.testing.assert_allclose(values[1], values[0], rtol=1e-4)
    np.testing.assert_allclose(values[2], values[0], rtol=1e-4)
    assert teaching.teacher_distance(found, np.full_like(scores, np.nan)) == 1.0

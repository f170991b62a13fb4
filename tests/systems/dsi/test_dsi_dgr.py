"""DGR of docids from end to end, on few documents: it learns to rank what it finds, and answers as before."""

import dataclasses
import json

import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax import storage, systems
from gr_jax.errors import InputError
from gr_jax.retrievers import index as indexes
from gr_jax.retrievers.scoring import candidate_scores
from gr_jax.stages import documents
from gr_jax.stages.graph import in_order
from gr_jax.stages.teaching import FoundDocuments
from gr_jax.systems import DSIDGR, DocidDistilling
from tests import small_data
from tests.small_dsi import dsi, network, quiet, training

LEARNING = DocidDistilling(
    steps=60, batch_size=8, rows=8, learning_rate=3e-3, warmup_steps=5, evaluate_every=None, dev_queries=None,
    keep_best=None, checkpoint_every=30, candidates=10, length=5, pool=8, margin=1.0, mesh=(1, 1),
)  # fmt: skip
LONG = training(steps=60, batch_size=24, learning_rate=3e-3, warmup_steps=5, rates={"query": 1.0})


def taught(teacher, **changes) -> DSIDGR:
    alone = dsi(network=network(width=32, mlp_width=32, dropout=0.0), training=LONG)
    fields = {field.name: getattr(alone, field.name) for field in dataclasses.fields(alone) if field.name != "name"}
    return DSIDGR(**{**fields, "teacher": None if teacher is None else str(teacher), "distilling": LEARNING, **changes})


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "animals", count=24)


@pytest.fixture(scope="module")
def teacher(beir, tmp_path_factory):
    """BM25, in a folder of its own."""
    pytest.importorskip("bm25s")
    pytest.importorskip("Stemmer")
    from gr_jax.retrievers.lexical import BM25

    folder = tmp_path_factory.mktemp("teacher") / "index"
    dataset = corpus_lib.read_beir(beir)
    indexes.save(folder, BM25(dataset.corpus), dataset.corpus)
    return folder


@pytest.mark.slow
def test_it_learns_to_rank(beir, teacher, tmp_path):
    folder, shared, said = tmp_path / "run", tmp_path / "shared", []
    searcher = taught(teacher).run(beir, folder, say=quiet)
    curve = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    costs = [one["train/ranking"] for one in curve if "train/ranking" in one]
    assert costs[-1] < 0.5 * costs[0]
    found = FoundDocuments.load(next(shared.glob("docid_candidates-*")))
    scores = np.load(next(shared.glob("teacher_scores-*")) / "scores.npy")
    dataset = corpus_lib.read_beir(beir)
    questions = dataset.split_queries("train")
    expected = candidate_scores(indexes.load(teacher).retriever, questions.texts, np.array(found.documents))
    np.testing.assert_array_equal(scores, expected)
    # The same program under the same index: only parameters differ.
    files = [
        storage.read_folder(folder / name / "retriever", verify=False).files for name in ("student_index", "index")
    ]
    assert files[0].keys() == files[1].keys()
    changed = {name for name in files[0] if files[0][name]["sha256"] != files[1][name]["sha256"]}
    assert changed and all("parameters" in name for name in changed if not name.endswith(storage.MANIFEST))
    right = [dataset.corpus.index_of(next(iter(dataset.split("train")[one]))) for one in questions.ids]
    before = indexes.load(folder / "student_index").retriever.retrieve(questions.texts, 1).doc_index[:, 0]
    assert np.mean(searcher.retrieve(questions.texts, 1).doc_index[:, 0] == right) >= np.mean(before == right)
    # Another beside it, with the control: it has the same student, and asks nobody.
    control = dataclasses.replace(LEARNING, shuffled=1.0, labelled=False, steps=2)
    taught(teacher, distilling=control).run(beir, tmp_path / "control", say=said.append)
    for stage in ("candidates", "teacher_scores"):
        assert any(line.startswith(f"✓ {stage}: already made") for line in said)
    # Rounds: what was learned finds documents anew.
    twice = taught(teacher, rounds=2, distilling=dataclasses.replace(LEARNING, steps=2))
    twice.run(beir, tmp_path / "twice", until="model", say=said.append)
    assert len([*shared.glob("teacher_scores-*")]) == 2


def test_stages_of_rounds(beir, memorised):
    def names(**changes):
        corpus = documents.corpus(systems.BeirFolder(str(beir)))
        named = None if changes.get("distilling", LEARNING) is None else memorised.model_dir
        return [one.name for one in in_order(taught(named, **changes).stages(corpus))]

    one = names()
    start = one.index("student")
    assert one[start : start + 6] == [
        "student",
        "asked_questions",
        "student_index",
        "candidates",
        "teacher_scores",
        "model",
    ]
    two = names(rounds=2)
    start = two.index("student")
    assert two[start : start + 10] == [
        "student", "asked_questions", "student_index_1", "candidates_1", "teacher_scores_1", "student_1",
        "student_index_2", "candidates_2", "teacher_scores_2", "model",
    ]  # fmt: skip
    assert "student" not in names(distilling=None)


def test_what_cannot_be_learned_is_named_before_training(beir, memorised, tmp_path):
    with pytest.raises(InputError, match=r"none is named.*DSIDGR\.teacher"):
        taught(None).run(beir, tmp_path / "run", say=quiet)
    with pytest.raises(InputError, match="a teacher of another corpus"):
        taught(memorised.model_dir).run(beir, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run" / "student").exists()
    with pytest.raises(InputError, match="what the constraint allows"):
        taught(memorised.model_dir, decoding=systems.Decoding(normalize="constraint"))
    with pytest.raises(InputError, match="not trained to write"):
        taught(memorised.model_dir, training=None)
    taught(memorised.model_dir, training=None, distilling=dataclasses.replace(LEARNING, generation=0.0))
    few = dataclasses.replace(LEARNING, length=30, pool=None, candidates=40)
    with pytest.raises(InputError, match="lists of 30 documents, and there are 24"):
        taught(memorised.model_dir, distilling=few).run(beir, tmp_path / "run", say=quiet)
    unanswered = small_data.write_grades(small_data.write_beir(tmp_path / "unanswered", count=24), 0)
    with pytest.raises(InputError, match=r"lists of DSI \+ DGR begin with documents that answer.*grade above 0"):
        taught(memorised.model_dir).run(unanswered, tmp_path / "run", say=quiet)
    assert not (tmp_path / "run" / "student").exists()
    unasked = small_data.write_beir(tmp_path / "unasked", count=24, queries=False)
    with pytest.raises(InputError, match="there are none"):
        taught(memorised.model_dir).run(unasked, tmp_path / "run", say=quiet)

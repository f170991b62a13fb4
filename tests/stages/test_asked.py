"""The questions that are asked: of train, without a judgement, and made from documents."""

import json

import numpy as np
import pytest

from gr_jax import corpus as corpus_lib
from gr_jax.docids.pseudo_queries import PseudoQueries
from gr_jax.errors import InputError
from gr_jax.stages import asked, documents
from gr_jax.stages.graph import Place, in_order
from gr_jax.stages.runner import Runner
from gr_jax.stages.sources import BeirFolder
from tests import small_data


@pytest.fixture
def beir(tmp_path):
    """24 documents, of whose training questions all but the first five lost their judgement."""
    folder = small_data.write_beir(tmp_path / "animals", count=24)
    file = folder / "qrels" / "train.tsv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:6]))
    return folder


def ask(tmp_path, beir, pseudo=None, **counts):
    """The questions of the stage, and its notes."""
    stage, runner = documents.corpus(BeirFolder(str(beir))), Runner(tmp_path / "run")
    runner.run(in_order(stage))
    place = Place(tmp_path / f"asked{len(list(tmp_path.iterdir()))}", tmp_path / "work", {})
    place.folder.mkdir()
    wanted = {"labelled": None, "unlabelled": 0, "made": 0, "setting": "Distilling", **counts}
    asked.asked_questions.function(place, runner.folder(stage), pseudo, **wanted)
    return asked.load_asked(place.folder), place.notes


def test_what_is_asked(beir, tmp_path):
    dataset = corpus_lib.read_beir(beir)
    train = list(dataset.split("train"))
    assert len(train) == 5 and len(asked.unjudged(dataset)) == 19
    everything, notes = ask(tmp_path, beir, unlabelled=19)
    assert list(everything.ids) == [*train, *asked.unjudged(dataset)] and notes == {
        "of train": 5,
        "not judged": 19,
        "made": 0,
    }
    assert list(everything.texts) == dataset.query_texts(everything.ids)
    few, _ = ask(tmp_path, beir, labelled=3, unlabelled=7)
    assert set(few.ids[:3]) < set(train) and set(few.ids[3:]) < set(asked.unjudged(dataset)) and len(few.ids) == 10
    assert ask(tmp_path, beir, labelled=3, unlabelled=7)[0] == few
    # Nobody has judged these; of the others the answers are known.
    right = asked.answers_of(dataset, few)
    assert right[3:] == [None] * 7
    assert [[dataset.corpus[document].doc_id for document in one or ()] for one in right[:3]] == [
        list(dataset.split("train")[one]) for one in few.ids[:3]
    ]


def test_what_is_made_from_documents_is_asked_once(beir, tmp_path):
    texts = ["a red cat", "a red cat", "an owl", "some bee"]
    made = PseudoQueries(tuple(texts), np.arange(4, dtype=np.int32), np.zeros(4, np.int8), ("span",))
    made.save(tmp_path / "made" / "pseudo_queries")
    rows = [json.loads(line) for line in (beir / "queries.jsonl").read_text().splitlines()]
    small_data.write_jsonl(beir / "queries.jsonl", [*rows, {"_id": "made:1", "text": "of somebody"}])
    found, _ = ask(tmp_path, beir, tmp_path / "made", labelled=1, made=2)
    assert list(found.ids[1:]) == ["made:0", "made:2"] and list(found.texts[1:]) == ["a red cat", "some bee"]
    dataset = corpus_lib.read_beir(beir)
    assert asked.answers_of(dataset, found)[1:] == [None, None]
    assert asked.asked_by_people(dataset, found).tolist() == [True, False, False]
    for pseudo, there in ((tmp_path / "made", 2), (None, 0)):
        with pytest.raises(InputError, match=rf"there are {there}.*Set Distilling\.made to {there}"):
            ask(tmp_path, beir, pseudo, made=3)


def test_a_question_that_nothing_answers_is_judged(beir):
    file = beir / "qrels" / "train.tsv"
    file.write_text(file.read_text().replace("\t1\n", "\t0\n", 1))
    dataset = corpus_lib.read_beir(beir)
    assert asked.answers_of(dataset, dataset.queries)[0] == {}


def test_answers_have_their_grades(beir):
    file = beir / "qrels" / "train.tsv"
    name = file.read_text().splitlines()[1].split("\t")[0]
    file.write_text(f"{file.read_text()}{name}\td20\t3\n{name}\td21\t0\n{name}\td22\t-1\n")
    dataset = corpus_lib.read_beir(beir)
    first = asked.answers_of(dataset, dataset.queries.select([name]))[0]
    assert first == {dataset.corpus.index_of("d0"): 1, dataset.corpus.index_of("d20"): 3}


def test_more_than_there_are(beir):
    dataset = corpus_lib.read_beir(beir)
    asked.check_asked(dataset, 19, "Distilling.unlabelled")
    with pytest.raises(InputError, match=r"20 questions without.*has 19.*Set Distilling\.unlabelled to 19"):
        asked.check_asked(dataset, 20, "Distilling.unlabelled")

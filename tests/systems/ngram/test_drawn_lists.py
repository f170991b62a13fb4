"""Lists of candidates: what they begin with, who is in them, in which order, and who has none."""

import numpy as np
import pytest

from gr_jax.corpus import Corpus, Dataset, Document, Qrels, Queries
from gr_jax.errors import InputError
from gr_jax.systems.ngram.candidates import Candidates
from gr_jax.systems.ngram.drawn_lists import Drawing, DrawnLists

DOCUMENTS, DEPTH = 40, 20
QUESTIONS = 30


def found(seed=0, scores=None) -> Candidates:
    """Documents of each question, best first, some with fewer than others; no n-grams."""
    rng = np.random.default_rng(seed)
    documents = np.stack([rng.permutation(DOCUMENTS)[:DEPTH] for _ in range(QUESTIONS)]).astype(np.int32)
    documents[3, 3:] = -1
    if scores is None:
        scores = -np.sort(-rng.random((QUESTIONS, DEPTH)) * 100, axis=1)
    nothing = np.zeros(0, np.int32)
    return Candidates(
        documents, np.asarray(scores, np.float32), np.ones(documents.shape, np.float32),
        np.zeros(QUESTIONS + 1, np.int64), np.zeros((0, 3), np.int32), nothing, nothing, nothing.astype(bool),
        nothing.astype(np.float32), nothing.astype(np.float32), np.zeros(QUESTIONS * DEPTH + 1, np.int64), nothing,
        nothing.astype(np.float32),
    )  # fmt: skip


def dataset(candidates: Candidates, places) -> Dataset:
    """The answers of a question are the candidates at some places; of question 1 something that was not found."""
    corpus = Corpus.from_documents(Document(f"d{n}", "", "text") for n in range(DOCUMENTS))
    qrels = {}
    for row in range(QUESTIONS):
        right = [
            int(candidates.documents[row, place]) for place in places(row) if candidates.documents[row, place] >= 0
        ]
        if row == 1:
            right = [next(n for n in range(DOCUMENTS) if n not in candidates.documents[row])]
        qrels[f"q{row}"] = {f"d{n}": 1 for n in right}
    queries = Queries(tuple(qrels), tuple(f"question {row}" for row in range(QUESTIONS)))
    return Dataset(corpus, queries, {"train": Qrels(qrels)})


def teacher(seed=1):
    scores = np.random.default_rng(seed).normal(size=(QUESTIONS, DEPTH)).astype(np.float32)
    scores[:, 17:] = np.nan
    return scores


@pytest.mark.parametrize("pool", [9, None])
def test_a_labelled_list(pool):
    candidates, judged = found(), teacher()
    data = dataset(candidates, lambda row: (2, 5))
    lists = DrawnLists(data, candidates, judged, Drawing(6, pool, True, 0), margin=1e9)
    assert set(lists.questions) == set(range(QUESTIONS)) - {1, 3}
    assert lists.counts() == {
        "questions": QUESTIONS - 2, "nothing found answers them": 1, "fewer other candidates than a list has": 1,
    }  # fmt: skip
    heads = set()
    for seed in range(30):
        for question in (0, 7):
            places, scores = lists.draw(question, np.random.default_rng(seed))
            np.testing.assert_array_equal(scores, judged[question][places])
            assert places[0, 0] == 2 and places[1, 0] in (2, 5)
            heads.add(int(places[1, 0]))
            for row in places:
                rest = row[1:]
                assert len(set(row.tolist())) == 6 and not {2, 5} & set(rest.tolist())
                assert 0 in rest  # the student's best that is wrong
                assert pool is None or set(rest.tolist()) <= {p for p in range(11) if p not in (2, 5)}
                known = [judged[question, place] for place in rest if not np.isnan(judged[question, place])]
                assert known == sorted(known, reverse=True)
                unknown = [place for place in rest.tolist() if np.isnan(judged[question, place])]
                assert rest.tolist()[len(known) :] == unknown == sorted(unknown)
    assert heads == {2, 5}


def test_lists_without_labels_are_the_teachers():
    candidates, judged = found(), teacher()
    lists = DrawnLists(dataset(candidates, lambda row: ()), candidates, judged, Drawing(6, 12, False, 0), margin=0)
    assert set(lists.questions) == set(range(QUESTIONS)) - {3}
    for question in (0, 1, 9):
        places, _ = lists.draw(question, np.random.default_rng(question))
        best = int(np.nanargmax(judged[question, :13]))
        assert places[0, 0] == best
        for row in places:
            assert 0 in row and len(set(row.tolist())) == 6 and row.max() < 13
            assert (np.diff(judged[question][row]) <= 0).all()


def test_without_a_teacher_the_students_order_stands_behind_what_is_right():
    candidates = found()
    lists = DrawnLists(dataset(candidates, lambda row: (4,)), candidates, None, Drawing(5, None, True, 0), margin=1e9)
    places, scores = lists.draw(0, np.random.default_rng(0))
    assert (places[:, 0] == 4).all() and (np.diff(places[:, 1:]) > 0).all()
    np.testing.assert_array_equal(scores, candidates.scores[0][places])


def test_what_is_learned_already_is_left_out():
    scores = np.tile(np.linspace(100, 5, DEPTH), (QUESTIONS, 1))  # steps of 5
    candidates = found(scores=scores)
    for margin, kept in ((4.9, 0), (5.1, QUESTIONS - 2)):
        data = dataset(candidates, lambda row: (0,))
        if kept:
            assert len(DrawnLists(data, candidates, None, Drawing(4, 15, True, 0), margin).questions) == kept
        else:
            with pytest.raises(InputError, match="learned already"):
                DrawnLists(data, candidates, None, Drawing(4, 15, True, 0), margin)


def test_bad_input():
    candidates = found()
    data = dataset(candidates, lambda row: (2,))
    with pytest.raises(InputError, match="a teacher's scores of"):
        DrawnLists(data, candidates, teacher()[:4], Drawing(4, 15, True, 0), 1.0)
    judged = teacher()
    judged[0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        DrawnLists(data, candidates, judged, Drawing(4, 15, True, 0), 1.0)
    with pytest.raises(InputError, match=r"no question has a list.*labelled = False"):
        DrawnLists(dataset(candidates, lambda row: ()), candidates, None, Drawing(4, 15, True, 0), 1.0)

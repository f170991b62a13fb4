"""Lists of candidates: what they begin with, who is in them, in which order, and who has none."""

from typing import NamedTuple

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.training.ranked_lists import LISTS, Drawing, DrawnLists, shuffled

DOCUMENTS, DEPTH = 40, 20
QUESTIONS = 30


class Candidates(NamedTuple):
    """What a student found."""

    documents: np.ndarray
    scores: np.ndarray


def found(seed=0, scores=None) -> Candidates:
    """Documents of each question, best first, some with fewer than others."""
    rng = np.random.default_rng(seed)
    documents = np.stack([rng.permutation(DOCUMENTS)[:DEPTH] for _ in range(QUESTIONS)]).astype(np.int32)
    documents[3, 3:] = -1
    if scores is None:
        scores = -np.sort(-rng.random((QUESTIONS, DEPTH)) * 100, axis=1)
    return Candidates(documents, np.asarray(scores, np.float32))


def answers(candidates: Candidates, *places: int) -> list[list[int]]:
    """Each question is answered by the candidates at some places, question 1 by something that was not found."""
    right = [[int(documents[place]) for place in places if documents[place] >= 0] for documents in candidates.documents]
    right[1] = [next(n for n in range(DOCUMENTS) if n not in candidates.documents[1])]
    return right


NONE: list[list[int] | None] = [None] * QUESTIONS  # nobody has judged any question


def teacher(seed=1):
    scores = np.random.default_rng(seed).normal(size=(QUESTIONS, DEPTH)).astype(np.float32)
    scores[:, 17:] = np.nan
    return scores


@pytest.mark.parametrize("pool", [9, None])
def test_a_labelled_list(pool):
    candidates, judged = found(), teacher()
    lists = DrawnLists(answers(candidates, 2, 5), candidates, judged, Drawing(6, pool, True, 0), margin=1e9)
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
    lists = DrawnLists(NONE, candidates, judged, Drawing(6, 12, False, 0), margin=0)
    assert set(lists.questions) == set(range(QUESTIONS)) - {3}
    for question in (0, 1, 9):
        places, _ = lists.draw(question, np.random.default_rng(question))
        best = int(np.nanargmax(judged[question, :13]))
        assert places[0, 0] == best
        for row in places:
            assert 0 in row and len(set(row.tolist())) == 6 and row.max() < 13
            assert (np.diff(judged[question][row]) <= 0).all()


def test_questions_without_a_label_beside_others():
    """Those have lists as without labels, or, as a control, what the teacher holds to be the best for one."""
    candidates, judged = found(), teacher()
    some: list[list[int] | None] = [right if row < 10 else None for row, right in enumerate(answers(candidates, 2, 5))]
    every, alone = (
        DrawnLists(some, candidates, judged, Drawing(6, 12, labelled, 0), 1e9) for labelled in (True, False)
    )
    assert set(every.questions) == set(range(QUESTIONS)) - {1, 3}
    rng = np.random.default_rng
    for question in (0, 9):
        assert every.draw(question, rng(0))[0][0, 0] == 2
    for question in (10, 29):
        np.testing.assert_array_equal(every.draw(question, rng(0))[0], alone.draw(question, rng(0))[0])
    control = DrawnLists(some, candidates, judged, Drawing(6, 12, True, 0, teacher_labels=True), 1e9)
    assert control.draw(0, rng(0))[0][0, 0] == 2
    assert control.fingerprint != every.fingerprint != alone.fingerprint
    for question in (10, 29):
        best = int(np.nanargmax(judged[question, :13]))  # of those that lists are drawn from
        places, _ = control.draw(question, rng(0))
        assert best == every.draw(question, rng(0))[0][0, 0]
        assert (places[:, 0] == best).all() and best not in places[:, 1:]


def test_what_is_left_out_of_questions_without_a_label():
    candidates, judged = found(scores=np.tile(np.linspace(100, 5, DEPTH), (QUESTIONS, 1))), teacher()
    judged[7] = np.nan
    some: list[list[int] | None] = [[] if row == 5 else None for row in range(QUESTIONS)]
    for control in (False, True):
        lists = DrawnLists(some, candidates, judged, Drawing(6, 12, True, 0, teacher_labels=control), 0.1)
        # Of 5 somebody has said that nothing answers it; of 7 the teacher says nothing; 3 has three candidates.
        assert set(lists.questions) == set(range(QUESTIONS)) - {3, 5, 7}
    with pytest.raises(InputError, match="answers of 29 questions, and candidates of 30"):
        DrawnLists(some[1:], candidates, judged, Drawing(6, 12, True, 0), 0.1)


def test_without_a_teacher_the_students_order_stands_behind_what_is_right():
    candidates = found()
    lists = DrawnLists(answers(candidates, 4), candidates, None, Drawing(5, None, True, 0), margin=1e9)
    places, scores = lists.draw(0, np.random.default_rng(0))
    assert (places[:, 0] == 4).all() and (np.diff(places[:, 1:]) > 0).all()
    np.testing.assert_array_equal(scores, candidates.scores[0][places])


def without_grades(lists, candidates, judged, right, drawing, question, rng):
    """Labelled lists of one question, as they are drawn where nothing has a grade: one answer before others."""
    count = int((candidates.documents[question] >= 0).sum())
    answered = [place for place in range(count) if candidates.documents[question, place] in right]
    wrong = [place for place in range(count) if place not in answered][: drawing.pool]
    rows = []
    for row in range(LISTS):
        rest = rng.permutation(wrong[1:])[: drawing.length - 2].tolist()
        head = answered[0 if row == 0 else rng.integers(len(answered))]
        known = sorted([wrong[0], *rest], key=lambda place: (-np.nan_to_num(judged[question, place], nan=-1e9), place))
        rows.append([head, *known])
    return rows


@pytest.mark.parametrize("grade", [1, 2])
@pytest.mark.parametrize("pool", [9, None])
def test_answers_of_one_grade_are_drawn_as_without_grades(grade, pool):
    candidates, judged, drawing = found(), teacher(), Drawing(6, pool, True, 3)
    plain = answers(candidates, 2, 5, 11)
    one = DrawnLists(plain, candidates, judged, drawing, margin=1e9)
    graded = DrawnLists([dict.fromkeys(its, grade) for its in plain], candidates, judged, drawing, margin=1e9)
    assert graded.fingerprint == one.fingerprint and graded.counts() == one.counts()
    for question in one.questions.tolist():
        for seed in range(8):
            drawn = [lists.draw(question, np.random.default_rng(seed))[0].tolist() for lists in (one, graded)]
            rng = np.random.default_rng(seed)
            expected = without_grades(one, candidates, judged, plain[question], drawing, question, rng)
            assert drawn == [expected, expected]


def test_higher_grades_stand_above_lower_ones():
    """Of question 0 the places 1, 2, 4, 7 and 9 have the grades 1, 3, 1, 2 and 3; of the others, place 2 answers."""
    candidates, judged = found(), teacher()
    grades = {1: 1, 2: 3, 4: 1, 7: 2, 9: 3}
    data = [dict.fromkeys(one, 1) for one in answers(candidates, 2)]
    alone = DrawnLists(data, candidates, judged, Drawing(6, 9, True, 0), margin=1e9)
    data[0] = {int(candidates.documents[0, place]): grade for place, grade in grades.items()}
    lists = DrawnLists(data, candidates, judged, Drawing(6, 9, True, 0), margin=1e9)
    flat = DrawnLists([[*one] for one in data], candidates, judged, Drawing(6, 9, True, 0), margin=1e9)
    assert lists.fingerprint != flat.fingerprint  # the same answers, of one grade
    seen = set()
    for seed in range(200):
        rows = lists.draw(0, np.random.default_rng(seed))[0].tolist()
        assert rows[0][:3] == [2, 7, 1]  # the student's best of each grade
        for row in rows:
            right = [place for place in row if place in grades]
            assert row[: len(right)] == right and len(set(row)) == 6
            own = [grades[place] for place in right]
            assert own == list(range(own[0], 0, -1))  # all lower ones, once each
            rest = row[len(right) :]
            assert 0 in rest and set(rest) <= {0, 3, 5, 6, 8, 10, 11, 12, 13}
            known = [judged[0, place] for place in rest]
            assert known == sorted(known, reverse=True)
        seen.add(tuple(place for place in rows[1] if place in grades))
        np.testing.assert_array_equal(
            lists.draw(5, np.random.default_rng(seed))[0], alone.draw(5, np.random.default_rng(seed))[0]
        )
    assert seen == {(1,), (4,), *((7, low) for low in (1, 4)), *((top, 7, low) for top in (2, 9) for low in (1, 4))}
    short = DrawnLists(data, candidates, judged, Drawing(3, 9, True, 0), margin=1e9)
    first = short.draw(0, np.random.default_rng(0))[0][0].tolist()
    assert first == [2, 7, 0]  # one that does not answer is always there


def test_what_is_learned_of_grades_is_the_highest():
    """Above what answers less, too."""
    scores = np.tile(np.linspace(100, 5, DEPTH), (QUESTIONS, 1))  # steps of 5
    candidates = found(scores=scores)
    for first, second, kept in ((2, 1, False), (1, 2, True), (1, 1, False)):
        data = [
            {int(documents[0]): first, int(documents[1]): second} if row else {int(documents[6]): 1}
            for row, documents in enumerate(candidates.documents)
        ]
        questions = DrawnLists(data, candidates, None, Drawing(4, 15, True, 0), 4.9).questions.tolist()
        assert questions == [0, *(row for row in range(1, QUESTIONS) if kept and row != 3)]


def test_answered_questions_without_a_teachers_score_are_counted():
    candidates, judged = found(), teacher()
    data = answers(candidates, 2, 5)
    judged[[0, 1, 7]] = np.nan  # 1 has no list
    for scores, number in ((judged, 2), (teacher(), 0), (None, 0)):
        lists = DrawnLists(data, candidates, scores, Drawing(6, None, True, 0), margin=1e9)
        assert lists.unscored == number and {0, 7} <= set(lists.questions.tolist())
    lists = DrawnLists(data, candidates, judged, Drawing(6, None, False, 0), margin=1e9)
    assert lists.unscored == 0 and not {0, 7} & set(lists.questions.tolist())


def test_what_is_learned_already_is_left_out():
    scores = np.tile(np.linspace(100, 5, DEPTH), (QUESTIONS, 1))  # steps of 5
    candidates = found(scores=scores)
    for margin, kept in ((4.9, 0), (5.1, QUESTIONS - 2)):
        data = answers(candidates, 0)
        if kept:
            assert len(DrawnLists(data, candidates, None, Drawing(4, 15, True, 0), margin).questions) == kept
        else:
            with pytest.raises(InputError, match="learned already"):
                DrawnLists(data, candidates, None, Drawing(4, 15, True, 0), margin)


def test_bad_input():
    candidates = found()
    data = answers(candidates, 2)
    with pytest.raises(InputError, match="a teacher's scores of"):
        DrawnLists(data, candidates, teacher()[:4], Drawing(4, 15, True, 0), 1.0)
    judged = teacher()
    judged[0, 0] = np.inf
    with pytest.raises(InputError, match="not finite"):
        DrawnLists(data, candidates, judged, Drawing(4, 15, True, 0), 1.0)
    with pytest.raises(InputError, match=r"no question has a list.*labelled = False"):
        DrawnLists([[DOCUMENTS]] * QUESTIONS, candidates, None, Drawing(4, 15, True, 0), 1.0)
    with pytest.raises(InputError, match="no score for any document"):
        DrawnLists(data, candidates, np.full_like(judged, np.nan), Drawing(4, 15, True, 0), 1.0)
    for wrong in (np.nan, np.inf):
        scores = np.array(candidates.scores)
        scores[2, 1] = wrong
        with pytest.raises(InputError, match="the student's scores are not finite"):
            DrawnLists(data, candidates._replace(scores=scores), None, Drawing(4, 15, True, 0), 1.0)
    padded = np.where(candidates.documents < 0, -np.inf, candidates.scores).astype(np.float32)
    DrawnLists(data, candidates._replace(scores=padded), None, Drawing(4, 15, True, 0), 1e9)


def test_a_batch_depends_on_the_seed_and_its_number_alone():
    candidates, judged = found(), teacher()
    data = answers(candidates, 2, 5)

    def lists(seed):
        return DrawnLists(data, candidates, judged, Drawing(6, 9, True, seed), margin=1e9)

    one, other = lists(3), lists(3)
    size, per_epoch = 8, 4  # of 28 questions
    backwards = {number: other.batch(number, size) for number in reversed(range(2 * per_epoch))}
    for number, expected in backwards.items():
        for mine, its in zip(one.batch(number, size), expected, strict=True):
            np.testing.assert_array_equal(mine, its)
    for epoch in range(2):
        its = [backwards[epoch * per_epoch + place] for place in range(per_epoch)]
        real = [(batch.places >= 0).all(axis=(1, 2)) for batch in its]
        assert [int(one.sum()) for one in real] == [8, 8, 8, 4]
        seen = np.concatenate([batch.questions[own] for batch, own in zip(its, real, strict=True)])
        assert sorted(seen.tolist()) == sorted(one.questions.tolist())
        last = its[-1]
        assert last.places.shape == (size, LISTS, 6)
        assert (last.places[4:] == -1).all() and np.isnan(last.teacher[4:]).all()
        assert (last.questions[4:] == last.questions[0]).all()
        for batch, own in zip(its, real, strict=True):
            assert batch.features["list_valid"][own].all() and not batch.features["list_valid"][~own].any()
            for question, places, scores in zip(
                batch.questions[own], batch.places[own], batch.teacher[own], strict=True
            ):
                np.testing.assert_array_equal(scores, judged[question][places])
    for count in (1, 3, per_epoch, 2 * per_epoch):
        asked = np.unique(np.concatenate([backwards[number].questions for number in range(count)]))
        assert one.drawn(count, size).tolist() == asked.tolist()
    assert not np.array_equal(backwards[0].questions, backwards[per_epoch].questions)
    assert not np.array_equal(lists(4).batch(0, size).questions, backwards[0].questions)


def test_shuffled_scores():
    candidates, judged = found(), teacher()
    assert shuffled(candidates, judged, 0.0, 0) is judged
    there = candidates.documents >= 0
    for share in (0.3, 1.0):
        dealt = shuffled(candidates, judged, share, 5)
        np.testing.assert_array_equal(dealt, shuffled(candidates, judged, share, 5))
        assert not np.array_equal(dealt, shuffled(candidates, judged, share, 6), equal_nan=True)
        np.testing.assert_array_equal(dealt[~there], judged[~there])
        moved = []
        for old, new, own in zip(judged, dealt, there, strict=True):
            np.testing.assert_array_equal(np.sort(old[own]), np.sort(new[own]))  # NaN last, as many as before
            moved.append(int((~((old == new) | (np.isnan(old) & np.isnan(new)))).sum()))
        assert max(moved) <= round(share * DEPTH)
        assert np.mean(moved) > 0.6 * share * DEPTH
    # Ranks before and after have nothing to do with each other.
    whole = np.random.default_rng(2).normal(size=(QUESTIONS, DEPTH)).astype(np.float32)
    ranks = [np.argsort(np.argsort(one, axis=1), axis=1) for one in (whole, shuffled(candidates, whole, 1.0, 0))]
    own = np.delete(np.arange(QUESTIONS), 3)
    correlations = [np.corrcoef(ranks[0][row], ranks[1][row])[0, 1] for row in own]
    assert abs(np.mean(correlations)) < 0.15

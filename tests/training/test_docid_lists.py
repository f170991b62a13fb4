"""Docids of ranked lists: which stand where, and that a batch is the same however one comes to it."""

import numpy as np
import pytest

from gr_jax.docids import Docids
from gr_jax.errors import InputError
from gr_jax.training.docid_lists import DocidListBatches, DocidTargets, targets_of
from gr_jax.training.ranked_lists import Drawing, DrawnLists
from tests.training.test_ranked_lists import DOCUMENTS, QUESTIONS, answers, found, teacher


class Written:
    """Batches of examples, which count."""

    settings = {"of": "numbers"}
    input_shapes = {"number": (8,)}

    def __iter__(self):
        return WrittenIterator()


class WrittenIterator:
    at = 0

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]

    def __next__(self):
        self.at += 1
        return {"number": np.full(8, self.at - 1)}


def batches(seed=0, process=None):
    """Every document has two docids, [n + 1, 50] and [n + 1, 51, 52]; of the second candidate only one is kept."""
    sequences = [one for n in range(DOCUMENTS) for one in ([n + 1, 50], [n + 1, 51, 52])]
    docids = Docids.build(sequences, vocab_size=60, eos_id=59, documents=np.repeat(np.arange(DOCUMENTS), 2))
    candidates, judged = found(), teacher()
    rows = np.stack([2 * candidates.documents, 2 * candidates.documents + 1], axis=-1)
    rows[candidates.documents < 0] = -1
    rows[:, 1, 1] = -1
    sources = np.arange(1, QUESTIONS + 1, dtype=np.int32)[:, None] * np.ones(4, np.int32)
    targets = DocidTargets(targets_of(docids), rows.astype(np.int32), sources)
    lists = DrawnLists(answers(candidates, 2, 5), candidates, judged, Drawing(6, 9, True, seed), 1e9)
    return DocidListBatches(lists, targets, Written(), 8, process=process), lists, candidates


def test_targets_end_as_decoding_does():
    ended = Docids.build([[3, 4], [5]], vocab_size=9, eos_id=8)
    np.testing.assert_array_equal(targets_of(ended), [[3, 4, 8], [5, 8, 0]])
    plain = Docids.build([[3, 4], [5]], vocab_size=9)
    np.testing.assert_array_equal(targets_of(plain), [[3, 4], [5, 0]])


def test_what_stands_where():
    made, lists, candidates = batches()
    for number in (0, 3, 5):
        batch, drawn = made.ranked(number), lists.batch(number, 8)
        np.testing.assert_array_equal(batch["encoder_input_tokens"][:, 0], drawn.questions + 1)
        assert batch["docid_tokens"].shape == (8, 12, 2, 4)
        for row, question in enumerate(drawn.questions):
            for at, place in enumerate(drawn.places[row].ravel().tolist()):
                own = batch["docid_tokens"][row, at]
                document = candidates.documents[question, place] + 1
                first, second = [document, 50, 59, 0], [document, 51, 52, 59]
                if place < 0:
                    first = second = [0, 0, 0, 0]
                elif place == 1:
                    second = [0, 0, 0, 0]
                np.testing.assert_array_equal(own, [first, second])


def test_an_iterator_goes_on_where_another_was():
    made, _, _ = batches()
    whole = iter(made)
    all_of_it = [next(whole) for _ in range(9)]
    assert {name: one.shape for name, one in all_of_it[0].items()} == made.input_shapes
    before = iter(made)
    for _ in range(5):
        next(before)
    after = iter(batches()[0])
    after.set_state(before.get_state())
    for expected in all_of_it[5:]:
        found_now = next(after)
        assert found_now.keys() == expected.keys()
        for name, one in expected.items():
            np.testing.assert_array_equal(found_now[name], one)
    assert not np.array_equal(next(iter(batches(1)[0]))["docid_tokens"], all_of_it[0]["docid_tokens"])
    assert batches(1)[0].settings != made.settings


def test_processes_share_out_the_questions_of_a_batch():
    whole, parts = batches()[0], [batches(process=(index, 2))[0] for index in range(2)]
    for number in (0, 5):
        for name, expected in whole.ranked(number).items():
            np.testing.assert_array_equal(np.concatenate([part.ranked(number)[name] for part in parts]), expected)
    assert all(part.input_shapes == whole.input_shapes and part.settings == whole.settings for part in parts)
    with pytest.raises(InputError, match="a batch of 8 questions cannot be split over 3 processes"):
        batches(process=(0, 3))

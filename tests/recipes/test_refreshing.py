"""Negatives that are mined while training goes on: what is drawn from when depends on steps alone."""

import threading

import numpy as np
import pytest

from gr_jax.recipes.refreshing import Refresher
from gr_jax.training.negatives import Negatives

EVERY = 10


def table(number: int) -> Negatives:
    return Negatives(np.full((3, 2), number, np.int32))


def params(number: int) -> dict:
    return {"query": {"scale": np.array(number, np.int32)}}


class Miner:
    """A table that says with which parameters it was mined; may be held up, or fail."""

    def __init__(self, fails: bool = False):
        self.mined, self.go_on, self.fails = [], threading.Event(), fails
        self.go_on.set()

    def __call__(self, given, due) -> Negatives:
        assert due == int(given["query"]["scale"]) + EVERY
        assert self.go_on.wait(30)
        if self.fails:
            raise OSError("the disk is on fire")
        self.mined.append(int(given["query"]["scale"]))
        return table(100 + self.mined[-1])


def first_number(refresher: Refresher, step: int) -> int:
    return int(refresher.negatives.at(step).documents[0, 0])


def test_a_table_is_used_one_refresh_after_its_parameters(tmp_path):
    miner = Miner()
    refresher = Refresher(tmp_path, table(7), EVERY, 60, miner)
    for step in range(0, 61, 5):
        refresher.note(params(step), step)
    seen = [first_number(refresher, step) for step in (0, 9, 10, 19, 20, 29, 30, 45, 50, 59)]
    assert seen == [7, 7, 7, 7, 110, 110, 120, 130, 140, 140]
    assert sorted(miner.mined) == [10, 20, 30, 40]  # 50's would be used from 60 on, which is the end
    assert [refresher.used(steps) for steps in (20, 21, 31, 60)] == [0, 1, 2, 4]
    assert not list(tmp_path.glob("snapshot_*"))


def test_training_goes_on_until_the_table_is_needed(tmp_path):
    miner = Miner()
    miner.go_on.clear()
    refresher = Refresher(tmp_path, table(7), EVERY, 60, miner)
    refresher.note(params(10), 10)  # returns at once
    assert first_number(refresher, 19) == 7
    waited = threading.Thread(target=lambda: found.append(first_number(refresher, 20)))
    found: list[int] = []
    waited.start()
    waited.join(0.2)
    assert waited.is_alive() and not found
    miner.go_on.set()
    waited.join(30)
    assert found == [110]


def test_parameters_that_training_overwrites_are_mined_with_as_they_were(tmp_path):
    miner, given = Miner(), params(10)
    miner.go_on.clear()
    refresher = Refresher(tmp_path, table(7), EVERY, 60, miner)
    refresher.note(given, 10)
    given["query"]["scale"][...] = 99
    miner.go_on.set()
    assert first_number(refresher, 20) == 110


def test_what_was_not_finished_when_the_process_died_is_mined_again(tmp_path):
    dying = Miner(fails=True)
    first = Refresher(tmp_path, table(7), EVERY, 60, dying)
    first.note(params(10), 10)
    assert first.used(60) == 0 and len(list(tmp_path.glob("snapshot_*"))) == 1
    miner = Miner()
    second = Refresher(tmp_path, table(7), EVERY, 60, miner)
    assert first_number(second, 25) == 110 and miner.mined == [10]
    second.note(params(10), 10)  # the step is trained once more: nothing is mined twice
    third = Refresher(tmp_path, table(7), EVERY, 60, miner)
    assert first_number(third, 25) == 110 and miner.mined == [10]


def test_a_failure_is_raised_where_the_table_is_wanted(tmp_path):
    refresher = Refresher(tmp_path, table(7), EVERY, 60, Miner(fails=True))
    refresher.note(params(10), 10)
    assert first_number(refresher, 19) == 7
    with pytest.raises(OSError, match="on fire"):
        refresher.negatives.at(20)


def test_evaluation_follows(tmp_path):
    miner = Miner()
    refresher = Refresher(tmp_path, table(7), EVERY, 60, miner)
    judge = refresher.before(lambda given, step: {"dev/RR@10": float(given["query"]["scale"])})
    assert judge(params(10), 10) == {"dev/RR@10": 10.0}
    assert refresher.before(None)(params(20), 20) == {}
    assert refresher.used(60) == 2

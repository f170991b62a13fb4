"""What processes share out, beside what one makes alone."""

import pathlib

import pytest

from tests import sharing_processes
from tests.sharing_processes import PARTS

EXPECTED = [[[n / 7 for n in range(part)], f"part {part}"] for part in range(PARTS)]


def test_one_process_does_all(tmp_path):
    alone = sharing_processes.shared(tmp_path)
    assert alone["parts"] == alone["beside"] == EXPECTED and sorted(alone["own"]) == sorted([*range(PARTS)] * 3)
    assert alone["blocks"] == [[0, 1, 2, 0], [3, 4, 5, 0], [6, 0]]
    assert alone["encoded"] == [[length, 0] for length in range(5)] and alone["answers"] == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("sharing")


@pytest.fixture(scope="module")
def both(folder) -> list[dict]:
    """What each of two processes found."""
    return sharing_processes.run(2, folder)


def test_each_of_two_does_half_and_both_have_all(both):
    for number, found in enumerate(one["shared"] for one in both):
        assert found["parts"] == found["beside"] == EXPECTED
        assert found["blocks"] == [[0, 1, 2, 0], [3, 4, 5, 1], [6, 0]]
        # Shards of two texts, and of two questions; process 0 joins the shards.
        assert found["encoded"] == (None if number else [[0, 0], [1, 0], [2, 1], [3, 1], [4, 0]])
        assert found["answers"] == [0, 1, 3, 4, 4]
        assert found["first"] == [0, [0, 1]] and found["all"] == [0, 2]
        half = [*range(number, PARTS, 2)]
        assert sorted(found["own"]) == sorted([*half, *half, *range(PARTS)])  # outside of it each does all
        assert found["alone"] == [[0, 1], PARTS]


def test_where_one_fails_all_say_it(both):
    first, second = (one["failing"]["said"] for one in both)
    own = [f"{when} is bad. Mend it." for when in ("within", "before", "behind")]
    assert second == own and first == [f"process 1: {text}" for text in own]


def test_a_stage_that_all_work_at(both, folder):
    first, second = (one["stage"] for one in both)
    assert first["said"] == ["the end is bad. Mend it."] and second["said"] == ["process 0: the end is bad. Mend it."]
    assert (folder / "run" / "toy" / "found.txt").read_text() == f"{PARTS} by 0"
    assert not first["left"] and not second["left"]

"""What processes share out, beside what one makes alone."""

from tests.sharing_processes import PARTS, run

EXPECTED = [[[n / 7 for n in range(part)], f"part {part}"] for part in range(PARTS)]


def test_one_process_does_all(tmp_path):
    (alone,) = run("shared", 1, tmp_path)
    assert alone["parts"] == alone["beside"] == EXPECTED and sorted(alone["own"]) == sorted([*range(PARTS)] * 3)
    assert alone["blocks"] == [[0, 1, 2, 0], [3, 4, 5, 0], [6, 0]]


def test_each_of_two_does_half_and_both_have_all(tmp_path):
    for number, found in enumerate(run("shared", 2, tmp_path)):
        assert found["parts"] == found["beside"] == EXPECTED
        assert found["blocks"] == [[0, 1, 2, 0], [3, 4, 5, 1], [6, 0]]
        assert found["first"] == [0, [0, 1]] and found["all"] == [0, 2]
        half = [*range(number, PARTS, 2)]
        assert sorted(found["own"]) == sorted([*half, *half, *range(PARTS)])  # outside of it each does all
        assert found["alone"] == [[0, 1], PARTS]


def test_where_one_fails_both_say_it(tmp_path):
    first, second = run("failing", 2, tmp_path)
    assert [text for text, _ in first["said"]] == [
        "process 1: this part is bad. Mend it.",
        "process 1: it is bad. Mend it.",
    ]
    assert [text for text, _ in second["said"]] == ["this part is bad. Mend it.", "it is bad. Mend it."]
    assert all(seconds < 30 for _, seconds in first["said"])

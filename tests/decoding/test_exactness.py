"""The top-K of every scheme of docids, with random and trained networks."""

import pytest

from benchmarks import exactness


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("scheme", exactness.SCHEMES)
def test_top_k_is_that_of_enumeration_and_of_plain_beam_search(scheme, trained):
    settings = {"layers": 1, "steps": 60, "normalizers": ["level" if "position" in scheme else "vocabulary"]}
    found = exactness.measure(scheme, documents=60, trained=trained, few=5, count=2, **settings)
    assert found["wrong"] == 0
    assert found["difference"] <= exactness.TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("scheme", exactness.SCHEMES)
def test_top_k_of_a_thousand_docids(scheme, trained):
    found = exactness.measure(scheme, documents=1000, trained=trained, few=20, count=3)
    assert found["wrong"] == 0 and found["difference"] <= exactness.TOLERANCE
    if trained and scheme == "naive numeric":
        assert found["found"] > 0


def test_wrong_ranks_are_counted():
    expected = [(-1.0, (3,)), (-2.0, (4,)), (-3.0, (5,))]
    scores = {docid: score for score, docid in expected}
    assert exactness.compare(expected, expected, scores) == (0, 0.0)
    assert exactness.compare(expected[::-1], expected, scores)[0] == 2
    assert exactness.compare(expected[:2], expected, scores)[0] == 1
    assert exactness.compare([(-1.5, (3,)), *expected[1:]], expected, scores) == (0, 0.5)
    assert exactness.compare([expected[0]] * 3, expected, scores)[0] > 0

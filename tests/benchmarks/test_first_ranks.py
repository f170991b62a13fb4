"""Recorded ranks of first right documents: the measures that follow from them, and when they are found again."""

import numpy as np
import pytest

from benchmarks import first_ranks, harness
from gr_jax.errors import InputError
from gr_jax.evaluation import evaluate

MEASURES = ("Success@1", "Success@10", "RR@10", "RR@100")


def drawn_evaluation(seed: int):
    """Of 40 questions with one to three right documents among 130, of which 100 were found; and the run, with qrels."""
    random = np.random.default_rng(seed)
    qrels, run = {}, {}
    for number in random.permutation(40):
        places = random.permutation(130)
        qrels[f"q{number}"] = {f"d{place}": 1 for place in random.permutation(130)[: random.integers(1, 4)]}
        run[f"q{number}"] = [(f"d{place}", float(-rank)) for rank, place in enumerate(places[:100])]
    return run, qrels


def row(steps: int = 3) -> harness.Row:
    return harness.Row(name="growth DR 10 0", config={"steps": steps}, measure=dict, corpus="abc", seeds=(0,))


def test_measures_are_those_of_the_answers():
    run, qrels = drawn_evaluation(0)
    ranks = first_ranks.ranks_of(evaluate(run, qrels, [first_ranks.RECIPROCAL]))
    assert set(ranks.values()) > {0} and list(ranks) == sorted(qrels)
    found = first_ranks.FirstRanks(ranks, {}, "", "", "", "").evaluation(MEASURES)
    expected = evaluate(run, qrels, MEASURES)
    order = [expected.query_ids.index(query) for query in found.query_ids]
    for name in MEASURES:
        np.testing.assert_allclose(found.per_query[name], expected.per_query[name][order])
        assert found[name] == pytest.approx(expected[name])


@pytest.mark.parametrize("measure", ["nDCG@10", "RR@101", "Success@0", "RR"])
def test_what_does_not_follow_is_refused(measure):
    with pytest.raises(InputError, match=f"ranks of first right documents do not say this.*{measure}"):
        first_ranks.FirstRanks({"q": 1}, {}, "", "", "", "").evaluation([measure])


def test_what_is_recorded_is_found_again_under_other_settings_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(first_ranks, "FOLDER", tmp_path / "ranks")
    found, asked = evaluate(*drawn_evaluation(1), [first_ranks.RECIPROCAL]), []

    def ask():
        asked.append(None)
        return found, {"hash": 5.0}

    first = first_ranks.kept(row(), ask)
    assert first_ranks.kept(row(), ask) == first and len(asked) == 1
    assert first.ranks == first_ranks.ranks_of(found) and first.values == {"hash": 5.0}
    other = first_ranks.kept(row(steps=4), ask)
    assert len(asked) == 2 and other.key != first.key
    (file,) = (tmp_path / "ranks").iterdir()
    file.write_text(file.read_text()[:40])
    with pytest.raises(InputError, match=r"growth_DR_10_0\.json: recorded ranks cannot be read"):
        first_ranks.kept(row(), ask)

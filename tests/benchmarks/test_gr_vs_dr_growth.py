"""The slopes of the study of growth, against fits of single lines, and their intervals."""

import numpy as np
import pytest

from benchmarks import gr_vs_dr_growth, grown
from gr_jax.evaluation import Evaluation

MEASURES = ("Success@1", "Success@10", "RR@10")
SIZES = (10_000, 32_000, 100_000, 178_775)
IDS = tuple(f"q{number}" for number in range(50))


def evaluations(values: np.ndarray) -> dict[int, Evaluation]:
    """Of values [sizes, questions]."""
    return {
        size: Evaluation(dict.fromkeys(MEASURES, float(row.mean())), IDS, dict.fromkeys(MEASURES, row))
        for size, row in zip(SIZES, values, strict=True)
    }


def test_slopes_are_those_of_lines():
    values = np.random.default_rng(0).uniform(size=(4, 50))
    found = gr_vs_dr_growth.slopes(evaluations(values))
    doublings = np.log2(SIZES)
    for question in range(50):
        assert found[question] == pytest.approx(np.polyfit(doublings, values[:, question], 1)[0])
    assert found.mean() == pytest.approx(np.polyfit(doublings, values.mean(axis=1), 1)[0])


def test_a_measure_that_loses_a_hundredth_a_doubling():
    start = np.random.default_rng(1).uniform(0.3, 1, 50)
    values = start - 0.01 * np.log2(np.asarray(SIZES) / SIZES[0])[:, None]
    said = gr_vs_dr_growth.with_interval(gr_vs_dr_growth.slopes(evaluations(values)), "slope")
    assert [said[name] for name in ("slope", "slope low", "slope high")] == pytest.approx([-0.01] * 3)


def test_the_interval_of_a_difference_is_over_questions():
    random = np.random.default_rng(2)
    one, other = (evaluations(random.uniform(size=(4, 50))) for _ in range(2))
    said = gr_vs_dr_growth.difference(one, other)
    each = gr_vs_dr_growth.slopes(one) - gr_vs_dr_growth.slopes(other)
    drawn = [np.mean(each[random.integers(0, 50, 50)]) for _ in range(4000)]
    name = "RR@10 a doubling, above"
    assert said[name] == pytest.approx(each.mean())
    np.testing.assert_allclose(
        [said[f"{name} low"], said[f"{name} high"]], np.percentile(drawn, [2.5, 97.5]), atol=0.002
    )


def test_seeds_of_a_slope():
    """Its ends are means over seeds, and beside it stand the least and the greatest of them."""
    random = np.random.default_rng(3)
    single = [evaluations(random.uniform(size=(4, 50))) for _ in range(3)]
    said = gr_vs_dr_growth.of_slopes(single[0], single)
    each = [gr_vs_dr_growth.slopes(one).mean() for one in single]
    assert said["RR@10 a doubling"] == pytest.approx(each[0])
    assert (
        said["RR@10 a doubling of the ends, least of a seed"],
        said["RR@10 a doubling of the ends, greatest of a seed"],
    ) == pytest.approx((min(each), max(each)))


def test_all_systems_have_one_protocol():
    """Pairs and steps are the same, and looks of those that look; trainings of a system differ in their seeds alone."""
    for name in grown.SYSTEMS:
        made = [gr_vs_dr_growth.runs(seed)[name].configs()[0]["settings"] for seed in gr_vs_dr_growth.SEEDS]
        assert [one["training"]["seed"] for one in made] == [0, 1, 2]
        assert all({**one, "training": {**one["training"], "seed": 0}} == made[0] for one in made)
        training, pairs = made[0]["training"], made[0]["pseudo_queries"]
        looks = training["evaluate_every"], training["dev_queries"], training["keep_best"]
        assert looks == ((100, None, None) if name == "GR-text" else (100, 400, "dev/RR@10")), name
        assert training["steps"] == 300, name
        rates = {kind: rate for kind, rate in training["rates"].items() if rate}
        assert rates == {"query": 0.8, "pseudo": 0.2} and pairs["kinds"] == gr_vs_dr_growth.KINDS, name
        assert training["batch_size"] == (32 if name in gr_vs_dr_growth.DENSE else 16)
        if name in gr_vs_dr_growth.DENSE:
            assert made[0]["encoders"]["document_length"] == 64 and made[0]["frozen_documents"]
            assert training["negatives"] == 31 and not training["in_batch"]
    codebook = gr_vs_dr_growth.runs()["GR-codebook"].configs()[0]["settings"]
    assert codebook["vectors"]["max_length"] == 64 and codebook["identifiers"]["duplicates"] == "reserved"


def test_end_points_have_three_seeds_and_sizes_between_one():
    seeds = {row.name: (row.seeds, len(row.runs)) for row in gr_vs_dr_growth.rows()}
    for system in grown.SYSTEMS:
        assert [seeds[f"growth: {system}, {size}"] for size in ("10,000", "32,000", "100,000", "178,775")] == [
            ((0, 1, 2), 3), ((0,), 1), ((0,), 1), ((0, 1, 2), 3),
        ]  # fmt: skip
    assert seeds["growth: GR-text above DR, a doubling"] == ((0, 1, 2), 6)

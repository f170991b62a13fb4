"""The slopes of the study of growth, against fits of single lines, and their intervals."""

import numpy as np
import pytest

from benchmarks import gr_vs_dr_growth
from gr_jax.evaluation import Evaluation

SIZES = (10_000, 32_000, 100_000, 178_775)
IDS = tuple(f"q{number}" for number in range(50))


def evaluations(values: np.ndarray) -> dict[int, Evaluation]:
    """Of values [sizes, questions]."""
    return {
        size: Evaluation({"RR@10": float(row.mean())}, IDS, {"RR@10": row})
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
    one, other = (gr_vs_dr_growth.slopes(evaluations(random.uniform(size=(4, 50)))) for _ in range(2))
    said = gr_vs_dr_growth.with_interval(one - other, "above")
    drawn = [np.mean((one - other)[random.integers(0, 50, 50)]) for _ in range(4000)]
    assert said["above"] == pytest.approx(one.mean() - other.mean())
    np.testing.assert_allclose([said["above low"], said["above high"]], np.percentile(drawn, [2.5, 97.5]), atol=0.002)


def test_all_systems_read_as_much_of_a_document():
    for name, run in gr_vs_dr_growth.runs().items():
        settings = run.configs()[0]["settings"]
        if "encoders" in settings:
            assert settings["encoders"]["document_length"] == 64 and settings["frozen_documents"]
            assert settings["training"]["negatives"] == 31 and not settings["training"]["in_batch"]
        elif name == "GR-codebook":
            assert settings["vectors"]["max_length"] == 64 and settings["identifiers"]["duplicates"] == "reserved"

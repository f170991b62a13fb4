"""End points of the study of growth: what three trainings make together, and that they differ in their seeds alone."""

import numpy as np
import pytest

from benchmarks import gr_vs_dr_growth_seeds as ends
from benchmarks import gr_vs_dr_matched, grown
from gr_jax.evaluation import Evaluation

IDS = tuple(f"q{number}" for number in range(60))
SIZES = (10_000, 40_000)  # two doublings
MODES = ("distractors", gr_vs_dr_matched.MODE)


@pytest.fixture
def losses(monkeypatch) -> dict[tuple[str, int], np.ndarray]:
    """(system, seed) → what each question loses with a doubling."""
    random = np.random.default_rng(4)
    lost = {(system, seed): random.uniform(0, 0.2, len(IDS)) for system in grown.SYSTEMS for seed in ends.SEEDS}

    def of_seed(mode: str, system: str, seed: int) -> ends.Found:
        start = np.full(len(IDS), 0.5)
        rows = {SIZES[0]: start, SIZES[1]: start - 2 * lost[system, seed]}
        return {size: Evaluation({"RR@10": float(row.mean())}, IDS, {"RR@10": row}) for size, row in rows.items()}

    monkeypatch.setattr(ends, "of_seed", of_seed)
    return lost


@pytest.mark.parametrize("mode", MODES)
def test_a_slope_is_the_mean_of_those_of_seeds(losses, mode):
    said = ends.reached(mode, "DR")
    of_seeds = [-losses["DR", seed].mean() for seed in ends.SEEDS]
    assert said["RR@10 a doubling"] == pytest.approx(np.mean(of_seeds))
    assert (said["least of a seed"], said["greatest of a seed"]) == pytest.approx((min(of_seeds), max(of_seeds)))
    assert said["RR@10, 10,000"] == pytest.approx(0.5)
    assert said["RR@10, 40,000"] == pytest.approx(0.5 + 2 * np.mean(of_seeds))
    assert said["RR@10 a doubling low"] < said["RR@10 a doubling"] < said["RR@10 a doubling high"]


def test_a_difference_is_of_means_over_seeds(losses):
    said = ends.above("distractors", "GR-text", "DR")
    own, theirs = (np.mean([losses[one, seed] for seed in ends.SEEDS], axis=0) for one in ("GR-text", "DR"))
    assert said["RR@10 a doubling, above"] == pytest.approx((theirs - own).mean())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("system", grown.SYSTEMS)
def test_trainings_differ_in_their_seeds_alone(mode, system):
    trainings = ends.runs(mode, system)
    assert len({run.folder for run in trainings}) == len(trainings)
    settings = [run.configs()[0]["settings"] for run in trainings]
    assert {one["training"]["seed"] for one in settings} == set(ends.SEEDS)
    unseeded = [{**one, "training": {**one["training"], "seed": None}} for one in settings]
    assert all(one == unseeded[0] for one in unseeded)


def test_ends_are_the_first_size_and_the_last():
    assert ends.ENDS == ("10k", grown.WHOLE)

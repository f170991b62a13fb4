"""kill −9 at any moment, then the same command again: the same bits as if nothing had happened."""

import json
import random
import time

import numpy as np
import pytest

from gr_jax.training import checkpoints
from gr_jax.training.metric_writers import read_metrics
from tests import forking
from tests.training import killed_run
from tests.training.killed_run import STEPS


def kill_when(folder, reached, wait=0.0):
    """Starts a run, and kills it once it is where it is to be, or a moment later. Returns whether it still ran."""
    output = folder / "output"
    output.write_text("")
    process = forking.start(killed_run.run, folder / "model", 0.02, output=output)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.is_alive() and not reached(output.read_text().count("batch")):
        time.sleep(0.001)
    time.sleep(wait)
    process.kill()
    process.join()
    return process.exitcode < 0


def check(folder, expected):
    """Goes on to the end; the same bits."""
    result = killed_run.run(folder / "model")
    assert set(result) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(result[name], value)
    records = read_metrics(folder / "model" / "metrics.jsonl")
    losses = [record["step"] for record in records if "train/loss" in record]
    assert losses == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    result = killed_run.run(tmp_path_factory.mktemp("whole"))
    assert result["last_step"] == STEPS
    return result


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_killed_at_random_moments(tmp_path, expected, seed):
    chosen, killed = random.Random(seed), 0
    for _ in range(3 if seed else 1):
        # Batches are taken a few ahead of the steps; from one start to the next about a third of the run passes.
        batches = chosen.randint(1, STEPS // 2)
        killed += kill_when(tmp_path, lambda seen, batches=batches: seen >= batches, chosen.uniform(0, 0.1))
    assert killed
    check(tmp_path, expected)


def test_killed_while_a_checkpoint_is_written(tmp_path, expected):
    """As soon as the folder that is being written appears; whole ones before it stay whole."""
    folder = tmp_path / "model" / "checkpoints"

    def writing(seen):
        return list(folder.glob(".*")) and max(checkpoints.steps(folder), default=0) >= 5

    assert kill_when(tmp_path, writing)
    assert checkpoints.steps(folder)
    for step in checkpoints.steps(folder):
        checkpoints.load_params(checkpoints.path_of(folder, step))
        json.loads((checkpoints.path_of(folder, step) / "manifest.json").read_text())
    check(tmp_path, expected)

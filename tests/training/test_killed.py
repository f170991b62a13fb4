"""kill −9 at any moment, then the same command again: the same bits as if nothing had happened."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gr_jax.training import checkpoints
from gr_jax.training.metric_writers import read_metrics
from tests.training.killed_run import STEPS

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def start(folder, seconds):
    command = [sys.executable, "-m", "tests.training.killed_run", folder / "model", folder / "result.npz", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True)


def finish(folder):
    process = start(folder, 0)
    process.communicate()
    assert process.returncode == 0
    return np.load(folder / "result.npz")


def kill_after(process, batches, seconds):
    """Lets it take so many batches, waits a moment, kills. Returns whether it was still running."""
    seen = 0
    for line in process.stdout:
        seen += line.startswith("batch")
        if seen >= batches:
            break
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    return process.wait() == -signal.SIGKILL


def check(folder, expected):
    result = finish(folder)
    assert set(result.files) == set(expected.files)
    for name in expected.files:
        np.testing.assert_array_equal(result[name], expected[name])
    records = read_metrics(folder / "model" / "metrics.jsonl")
    losses = [record["step"] for record in records if "train/loss" in record]
    assert losses == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    result = finish(folder)
    assert int(result["last_step"]) == STEPS
    return result


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_killed_at_random_moments(tmp_path, expected, seed):
    chosen, killed = random.Random(seed), 0
    for _ in range(4):
        # Batches are taken a few ahead of the steps; from one start to the next about a third of the run passes.
        process = start(tmp_path, 0.02)
        killed += kill_after(process, chosen.randint(1, STEPS // 2), chosen.uniform(0, 0.1))
    assert killed
    check(tmp_path, expected)


def test_killed_while_a_checkpoint_is_written(tmp_path, expected):
    """As soon as the folder that is being written appears; whole ones before it stay whole."""
    folder, killed = tmp_path / "model" / "checkpoints", 0
    for wanted in (2, 5):
        process = start(tmp_path, 0.02)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            whole = checkpoints.steps(folder)
            if len(list(folder.glob(".*"))) and max(whole, default=0) >= 5 * (wanted - 1):
                break
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.stdout.close()
        for step in checkpoints.steps(folder):
            checkpoints.load_params(checkpoints.path_of(folder, step))
            json.loads((checkpoints.path_of(folder, step) / "manifest.json").read_text())
    assert killed
    check(tmp_path, expected)

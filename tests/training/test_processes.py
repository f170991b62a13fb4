"""Trainings of one and of two real processes, undisturbed, stopped, killed, and with checkpoints that are damaged."""

import json
import shutil
import time

import numpy as np
import pytest

from gr_jax.training import checkpoints
from gr_jax.training.metric_writers import read_metrics
from tests.bad_input.faults import inflict
from tests.training.on_processes import Run, kill, train

STEPS = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of two processes that nothing disturbs: its folder, and what it ends with."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, Run(folder, look=True).finish()


def check(found, whole):
    assert found.keys() == whole[1].keys()
    for name, value in whole[1].items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def folder_of(run):
    return run.folder / "checkpoints"


def test_one_process_of_two_devices_ends_with_the_same_bits(whole, tmp_path):
    check(train(Run(tmp_path, processes=1, devices=2, look=True)), whole)
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == STEPS
    losses = [line["train/loss"] for line in read_metrics(whole[0] / "metrics.jsonl") if "train/loss" in line]
    assert len(losses) == STEPS and losses == [
        line["train/loss"] for line in read_metrics(tmp_path / "metrics.jsonl") if "train/loss" in line
    ]


def test_every_process_ends_with_the_same_and_has_written_its_part(whole):
    folder, _ = whole
    results = [dict(np.load(folder / f"result_{process}.npz")) for process in (0, 1)]
    check(results[1], whole)
    last = folder / "checkpoints" / f"step_{STEPS:08d}"
    listings = [json.loads((last / f"process_{process:05d}.json").read_text()) for process in (0, 1)]
    bytes_ = [listing["bytes"] for listing in listings]
    assert min(bytes_) > 0.3 * sum(bytes_)
    arrays = json.loads((last / "manifest.json").read_text())["meta"]["arrays"]
    sizes = [
        int(np.prod(shape)) * np.dtype(dtype).itemsize for flat in arrays.values() for shape, dtype in flat.values()
    ]
    assert sum(bytes_) == sum(sizes)


@pytest.mark.slow
def test_two_then_one_then_two_processes(whole, tmp_path):
    """What two wrote one process of two devices reads, and the other way round; one device alone reads it too."""
    Run(tmp_path, steps=8, look=True).finish()
    Run(tmp_path, steps=12, look=True, processes=1, devices=2).finish()
    shutil.copytree(tmp_path, tmp_path.with_name("alone"))
    check(Run(tmp_path, look=True).finish(), whole)
    alone = Run(tmp_path.with_name("alone"), look=True, processes=1).finish()
    for name, value in whole[1].items():
        np.testing.assert_allclose(alone[name], value, rtol=1e-4, atol=1e-6)


def test_sigterm_on_one_of_two_stops_both_at_one_step(whole, tmp_path):
    """And both go on from the checkpoint before it, where one of them cannot read its part of the last one."""
    run = Run(tmp_path, look=True, slow=0.05)
    started = run.start()
    for step in run.steps_of(started[0], 0):
        if step == 6:
            started[1].terminate()
            break
    for one in started:
        one.join(120)
    assert [one.exitcode for one in started] == [143, 143], run.said()
    # A step is shown before it asks whether all are to end: it may be the last one.
    last = max(checkpoints.steps(folder_of(run)))
    assert 6 <= last < STEPS
    inflict(checkpoints.path_of(folder_of(run), last), "process_00001.arrays", "flipped", np.random.default_rng(0))
    check((again := Run(tmp_path, look=True)).finish(), whole)
    said = again.said()
    assert f"The checkpoint of step {last} is passed over: " in said[0] and "passed over" not in said[1]


@pytest.mark.slow
def test_killed_in_the_middle_of_a_save(whole, tmp_path):
    run = Run(tmp_path, look=True, slow=0.05)
    started = run.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(folder_of(run).glob(".step_*")):
        time.sleep(0.002)
    started[1].kill()
    time.sleep(0.1)
    kill(started)
    for step in checkpoints.steps(folder_of(run)):
        checkpoints.load_params(checkpoints.path_of(folder_of(run), step))
    check(Run(tmp_path, look=True).finish(), whole)
    assert not list(folder_of(run).glob(".step_*"))


@pytest.mark.slow
def test_hooks_of_two_processes(tmp_path):
    """What they make is the same on both, and a run that was interrupted while one was due goes on with it."""
    whole = Run(tmp_path / "one", processes=1, devices=2, hooks=True)
    whole.folder.mkdir()
    two = Run(tmp_path / "two", steps=10, hooks=True)
    two.folder.mkdir()
    two.finish()
    check(Run(two.folder, hooks=True).finish(), (whole.folder, whole.finish()))


@pytest.mark.slow
def test_layers_that_are_split_over_the_devices_of_two_processes(tmp_path):
    """Two devices each, layers split over two: what two processes wrote, one of another mesh goes on from."""
    two = Run(tmp_path, steps=10, devices=2, model=2)
    two.finish()
    last = tmp_path / "checkpoints" / "step_00000010"
    listings = [json.loads((last / f"process_0000{process}.json").read_text()) for process in (0, 1)]
    halves = sorted(piece[2] for listing in listings for piece in listing["pieces"] if piece[:2] == ["params", "wi"])
    assert len(halves) == 2 and halves[0] != halves[1]
    one = Run(tmp_path, processes=1, devices=2, model=2).finish()
    alone = tmp_path / "alone"
    alone.mkdir()
    expected = Run(alone, processes=1).finish()
    for name, value in expected.items():
        np.testing.assert_allclose(one[name], value, rtol=1e-3, atol=1e-5)


FILES = [f"process_0000{process}.{kind}" for process in (0, 1) for kind in ("arrays", "json")] + ["manifest.json"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flipped", "truncated", "gone"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_passed_over_by_both(whole, tmp_path, name, how):
    """Even where only one of the processes reads what is damaged."""
    shutil.copytree(whole[0] / "checkpoints", tmp_path / "checkpoints")
    last = tmp_path / "checkpoints" / f"step_{STEPS:08d}"
    inflict(last, name, how, np.random.default_rng(0))
    run = Run(tmp_path, look=True)
    check(run.finish(), whole)
    said = run.said()
    assert f"The checkpoint of step {STEPS} is passed over: " in said[0]
    assert "passed over" not in said[1]
    checkpoints.load_params(last)

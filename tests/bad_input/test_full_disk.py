"""The disk is full in mid-write, wherever that is: the old stays, and the same command goes on when there is space."""

import json
import shutil

import pytest

from tests.bad_input.conftest import content, launch, recipe_flags, refused

# Bytes that a file may have; the system refuses more in the same way as a full disk, with another code.
LIMITS = [1_000, 12_000]


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_a_recipe_on_a_full_disk(finished, tmp_path, limit):
    flags = recipe_flags(finished / "mine", tmp_path / "runs" / "mine")
    done = launch("recipe", *flags, largest_file=limit)
    refused(done, tmp_path / "runs", "Free some space" if limit == LIMITS[-1] else "larger than")
    made = {path for path, kind in content(tmp_path).items() if ".partial" in path}
    assert not made
    if limit == LIMITS[-1]:
        done = launch("recipe", *flags)
        assert done.returncode == 0, done.stdout + done.stderr
        expected = json.loads((finished / "runs" / "mine" / "results" / "metrics.json").read_text())
        assert json.loads((tmp_path / "runs" / "mine" / "results" / "metrics.json").read_text()) == expected


@pytest.mark.slow
def test_a_changed_recipe_on_a_full_disk_leaves_the_old_index(finished, tmp_path):
    runs = shutil.copytree(finished / "runs", tmp_path / "runs")
    before = content(runs / "mine" / "index")
    flags = recipe_flags(finished / "mine", runs / "mine")
    refused(launch("recipe", *flags, "--gin.Training.steps=3", largest_file=30_000), runs, noisy=True)
    assert content(runs / "mine" / "index") == before
    assert launch("search", f"--index={runs / 'mine' / 'index'}", "the red cat").returncode == 0


def test_a_run_and_metrics_on_a_full_disk_leave_the_old(finished, tmp_path):
    output = tmp_path / "run.trec"
    output.write_text("old")
    done = launch(
        "retrieve",
        f"--index={finished / 'runs' / 'mine' / 'index'}",
        f"--queries={finished / 'mine' / 'queries.jsonl'}",
        f"--output={output}",
        largest_file=1_000,
    )
    refused(done, output)
    assert output.read_text() == "old"

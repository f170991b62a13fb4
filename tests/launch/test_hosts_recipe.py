"""A recipe from documents to an index and its results, on one process and on two over loopback."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import small_data
from tests.launch.test_programs import FLAGS
from tests.training.on_processes import free_port

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
SHORT = ("--gin.Training.steps=12", "--gin.Training.evaluate_every=6", "--gin.Training.mesh=(2, 1)")


def recipe(beir, folder, processes, devices, *flags):
    """What each process of a recipe says."""
    port = free_port()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    started = []
    for process in range(processes):
        hosts = (f"--coordinator=127.0.0.1:{port}", f"--processes={processes}", f"--process={process}")
        command = [sys.executable, "-m", "launch.recipe", *FLAGS, *SHORT, *flags]
        command += [f'--gin.CORPUS="{beir}"', f'--gin.MODEL_DIR="{folder / "run"}"', "--hosts=bare", *hosts]
        started.append(
            subprocess.Popen(
                command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    said = [one.communicate(timeout=500) for one in started]
    assert [one.returncode for one in started] == [0] * processes, said
    return said


@pytest.mark.slow
def test_one_and_two_processes_end_in_the_same_runs(tmp_path):
    beir = small_data.write_beir(tmp_path / "beir")
    one = recipe(beir, tmp_path / "one", 1, 2)
    two = recipe(beir, tmp_path / "two", 2, 1)
    runs = {file.name: file.read_bytes() for file in (tmp_path / "one").rglob("*.trec")}
    assert runs and runs == {file.name: file.read_bytes() for file in (tmp_path / "two").rglob("*.trec")}
    # One of them says what is made, shows bars and writes; of the other nothing is left.
    assert "✓ model" in two[0][0] and "✓" not in two[1][0] and "Training" not in two[1][1]
    for folder in ("one", "two"):
        assert not list((tmp_path / folder).rglob(".process_*"))
    one_, two_ = ({p.relative_to(tmp_path / f).as_posix() for p in (tmp_path / f).rglob("*")} for f in ("one", "two"))
    assert {name for name in two_ if "process_00001" not in name} == one_
    assert "✓ model" in one[0][0]
    again = recipe(beir, tmp_path / "two", 2, 1)
    assert again[0][0].count("already made") >= 5

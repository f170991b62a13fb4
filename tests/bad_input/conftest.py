"""The programs, as a person starts them but for the imports, on a small run that is finished."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from tests import shared, small_data

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
# The smallest network there is, hardly trained: what it answers does not matter here.
SMALLEST = (
    "--gin_file=gin_configs/systems/dsi.gin",
    "--gin_file=gin_configs/models/tiny.gin",
    '--gin.Vectors.encoder="lsa"',
    '--gin.Network.vocabulary="byte"',
    "--gin.Network.width=32",
    "--gin.Network.heads=2",
    "--gin.Network.mlp_width=32",
    "--gin.Network.encoder_layers=1",
    "--gin.Network.decoder_layers=1",
    "--gin.Training.steps=2",
    "--gin.Training.warmup_steps=0",
    "--gin.Training.batch_size=8",
    "--gin.Training.dev_queries=None",
)


def _environment() -> dict[str, str]:
    return {**os.environ, "XLA_FLAGS": "", "COLUMNS": "200"}


@functools.cache
def _forks() -> subprocess.Popen:
    """A process that has imported everything, from which programs are forked: most of their time would be imports."""
    command = [sys.executable, "-m", "tests.bad_input.forks"]
    started = subprocess.Popen(
        command, cwd=CHECKOUT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(started.communicate)
    return started


def launch(program: str, *flags: str, largest_file: int | None = None) -> subprocess.CompletedProcess:
    """Does what `python -m launch.PROGRAM FLAGS` does; `largest_file` bytes is all that it may write into one file."""
    arguments = list(map(str, flags))
    if largest_file is not None:  # a process of its own: libraries that write in threads say it otherwise in a fork
        code = (
            "import resource, runpy\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, {largest_file}))\n"
            f"runpy.run_module('launch.{program}', run_name='__main__', alter_sys=True)"
        )
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, cwd=CHECKOUT, env=_environment(), capture_output=True, text=True)
    forks = _forks()
    with tempfile.TemporaryDirectory() as folder:
        forks.stdin.write(json.dumps({"program": program, "flags": arguments, "folder": folder}) + "\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        stdout, stderr = ((pathlib.Path(folder) / name).read_text() for name in ("stdout", "stderr"))
    return subprocess.CompletedProcess([f"launch.{program}", *flags], code, stdout, stderr)


def recipe_flags(corpus: pathlib.Path, model_dir: pathlib.Path) -> tuple[str, ...]:
    return (*SMALLEST, f'--gin.CORPUS="{corpus}"', f'--gin.MODEL_DIR="{model_dir}"')


def refused(done: subprocess.CompletedProcess, *wanted: object, noisy: bool = False) -> str:
    """Asserts that a program ended with one sentence that has the wanted words, and no traceback; returns it.

    Args:
      noisy: threads of other libraries may have said more before.
    """
    assert done.returncode == 2, done.stdout + done.stderr
    if noisy:
        last = done.stderr[done.stderr.rindex("error: ") :].strip()
    else:
        assert "Traceback" not in done.stderr, done.stderr
        last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: "), done.stderr
    for word in wanted:
        assert str(word) in last, (word, last)
    return last


def content(folder: pathlib.Path) -> dict[str, str]:
    """Path → checksum of every file under a folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> pathlib.Path:
    """A folder with the documents `mine` and everything the system made of them under `runs/mine`.

    Made once; every worker has a copy of its own.
    """
    with shared.folder(tmp_path_factory, "finished") as made:
        if not (made / "mine").exists():
            small_data.write_beir(made / "mine", count=24)
        done = launch("recipe", *recipe_flags(made / "mine", made / "runs" / "mine"))
        assert done.returncode == 0, done.stdout + done.stderr
        root = tmp_path_factory.mktemp("finished")
        return shutil.copytree(made, root, dirs_exist_ok=True)

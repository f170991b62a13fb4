"""Where a reader of the pages stands: a checkout without its owner's runs, with documents, an index and `python`."""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest

from tests import small_data
from tests.end_to_end.readme import Block

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_PREPARE = """
from gr_jax import systems
systems.DSI(
    vectors=systems.Vectors(encoder="lsa"), training=systems.Training(steps=2, warmup_steps=0, batch_size=8),
    network=systems.Network(
        encoder="t5", vocabulary="byte", width=32, heads=2, mlp_width=64,
        encoder_layers=1, decoder_layers=1, outputs="random",
    ),
).run("my_beir_folder", "prepared/run", until="index", say=lambda line: None)
"""


def checkout(folder: pathlib.Path) -> pathlib.Path:
    """The checkout as a reader sees it, without what its owner has made in it; returns `folder`."""
    folder.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True)
    names = {line.split("/")[0] for line in listed.stdout.splitlines()} or {p.name for p in CHECKOUT.iterdir()}
    for name in names - {"runs", ".git"}:
        (folder / name).symlink_to(CHECKOUT / name)
    small_data.write_beir(folder / "my_beir_folder")
    return folder


def environment() -> dict[str, str]:
    """A reader's: this interpreter is `python`, this checkout is `gr-jax`, the devices are the machine's own."""
    found = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    found["PATH"] = os.pathsep.join([_commands(), str(pathlib.Path(sys.executable).parent), found["PATH"]])
    return found


@functools.cache
def _commands() -> str:
    """A folder with this checkout's `gr-jax`: the environment may have that of another, or none."""
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    here, python = shlex.quote(str(CHECKOUT)), shlex.quote(sys.executable)
    (folder / "gr-jax").write_text(f'#!/bin/sh\nPYTHONPATH={here} exec {python} -m launch.main "$@"\n')
    (folder / "gr-jax").chmod(0o755)
    return str(folder)


def prepared(folder: pathlib.Path) -> pathlib.Path:
    """An index that stands for the quickstart's, where a reader has that and a test does not."""
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE], cwd=folder, env=environment(), capture_output=True, text=True
    )
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
    return folder / "prepared" / "run"


def run(block: Block, page: str, folder: pathlib.Path, prepared_run: pathlib.Path) -> None:
    """Runs a block in `folder`; fails where it does, and where it shows nothing."""
    commands = [["bash", "-euo", "pipefail", "-c", command] for command in block.first]
    commands.append([{"bash": "bash", "python": sys.executable}[block.language], "-c", block.code])
    if block.language == "bash":
        commands[-1][1:1] = ["-euo", "pipefail"]
    variables = environment() | {"PREPARED_RUN": str(prepared_run)}
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
        if done.returncode:
            pytest.fail(f"{page}:{block.line}\n{command[-1]}\n{done.stdout}\n{done.stderr}", pytrace=False)
    assert done.stdout, f"{page} line {block.line} shows nothing"

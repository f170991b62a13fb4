"""Processes that tests start and end: forked from one that has imported everything and has computed nothing."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tests.models.encoding_run", "tests.training.killed_run", "tests.training.on_processes"]
)


def start(program: Callable[..., None], *arguments: Any, output: pathlib.Path, **environment: str) -> BaseProcess:
    """A process that runs a module's function; what it prints goes to `output`, behind what is there."""
    process = _CONTEXT.Process(target=_run, args=(program, arguments, str(output), environment))
    process.start()
    return process


def _run(program: Callable[..., None], arguments: tuple, output: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # before JAX reads it
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    program(*arguments)

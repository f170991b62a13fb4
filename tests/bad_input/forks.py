"""Forks a program for every line of stdin, and writes its exit status: everything is imported, nothing computed yet.

`conftest.launch` writes the lines.
"""

import json
import os
import pathlib
import runpy
import sys

import gr_jax.systems  # noqa: F401
import launch.program
import launch.show  # noqa: F401


def _next_program() -> dict | None:
    """In a new process what it has to run; in this one None, at the end of stdin."""
    for line in sys.stdin:
        if os.fork() == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
    return None


asked = _next_program()
if asked is not None:
    streams = [open(os.devnull), *(open(pathlib.Path(asked["folder"]) / name, "w") for name in ("stdout", "stderr"))]
    for number, file in enumerate(streams):
        os.dup2(file.fileno(), number)
    sys.argv[1:] = asked["flags"]
    runpy.run_module(f"launch.{asked['program']}", run_name="__main__", alter_sys=True)

"""Forks a program for every line of stdin, and writes its exit status: everything is imported, nothing computed yet.

`conftest.launch` writes the lines.
"""

import gc
import json
import os
import pathlib
import runpy
import sys
import traceback

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


def _run(program: str) -> int:
    """Runs it, and returns the exit code that Python would end with."""
    try:
        runpy.run_module(f"launch.{program}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


gc.freeze()  # a collection in a child would copy every page of this process
asked = _next_program()
if asked is not None:
    streams = [open(os.devnull), *(open(pathlib.Path(asked["folder"]) / name, "w") for name in ("stdout", "stderr"))]
    for number, file in enumerate(streams):
        os.dup2(file.fileno(), number)
    sys.argv[1:] = asked["flags"]
    code = _run(asked["program"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take all modules apart costs .8 seconds

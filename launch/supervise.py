r"""Starts one process of a run, watches all of them, and starts it again after a fault: one supervisor on each host.

  gr-jax supervise --hosts=slurm --watch=runs/mine/watch -- recipe FLAGS

FLAGS are those of the program, here recipe. Each process gives signs of life into the folder --watch, which all hosts
see. Where one gives none, or gives them while its work stands still for long, every supervisor names it and its host,
ends its own process, and all start again together. What was finished stays, and training goes on from its latest
checkpoint.
--restarts of --within minutes end it for good. Bad input and a request to stop are no faults.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from gr_jax import storage
from gr_jax.errors import InputError

from . import hosts, program, signs
from .main import PROGRAMS

_WATCH = flags.DEFINE_string("watch", None, "Folder for signs of life, which all hosts see.")
_RESTARTS = flags.DEFINE_integer("restarts", 3, "How many starts may fail within --within.", lower_bound=0)
_WITHIN = flags.DEFINE_float("within", 60.0, "Minutes; faults before that are forgotten.", lower_bound=0)
_SILENT = flags.DEFINE_float("silent", 12.0, "Seconds without a sign of life that are a fault.", lower_bound=5)
_STILL = flags.DEFINE_float("still", 1800.0, "Seconds without progress that are a fault.", lower_bound=5)
flags.adopt_module_key_flags(hosts)

_LOOK_S = 0.5
_GRACE_S = 40.0  # for a process to keep a checkpoint when it is asked to stop
_GATHER_S = 60.0  # for the supervisors to have ended their processes, and for processes to give their first sign
_SOON_S = 3.0
_FOR_GOOD = (2, 130)  # bad input, interrupted: none of the processes need start again
_NO_FAULT = (0, 143, *_FOR_GOOD)  # finished, asked to stop
_OVER = "over"


@dataclasses.dataclass
class _Seen:
    """What was last read of one process, and when it changed."""

    said: Mapping[str, Any]
    beat_at: float
    moved_at: float


class Watch:
    """Reads the signs of all processes. Times are those of this host's own clock, at which a change was seen.

    Args:
      folder: of the signs.
      processes: how many.
      silent, still: seconds that are a fault.
      now: a clock.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        processes: int,
        silent: float,
        still: float,
        now: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._silent, self._still, self._now = folder, silent, still, now
        self._seen = [_Seen({}, now(), now()) for _ in range(processes)]

    def fault(self) -> str:
        """What is wrong with one of them; "" where nothing is."""
        now = self._now()
        idle = self._waiting()
        for process, seen in enumerate(self._seen):
            said = _read(file_of(self._folder, process))
            if said is not None:
                if said.get("beat") != seen.said.get("beat"):
                    seen.beat_at = now
                if said.get("advances") != seen.said.get("advances"):
                    seen.moved_at = now
                seen.said = said
            if ended_file(self._folder, process).exists():
                continue
            where = f"process {process}"
            if seen.said:
                work = seen.said.get("note") or "no work yet"
                where += f" on {seen.said.get('host')} (pid {seen.said.get('pid')}, at {work})"
            allowed = self._silent if seen.said else _GATHER_S + self._silent
            if now - seen.beat_at > allowed:
                state = "it does not run: it is stopped, or its host is" if seen.said else "it did not start"
                return f"{where} has given no sign of life for {now - seen.beat_at:.0f} s: {state}"
            if seen.said and process not in idle and now - seen.moved_at > self._still:
                return f"{where} is alive, and its work has stood still for {now - seen.moved_at:.0f} s"
        return ""

    def _waiting(self) -> set[int]:
        """Those that wait for another process, whose work it is that may stand still; nobody where all do."""
        left = [n for n in range(len(self._seen)) if not ended_file(self._folder, n).exists()]
        waiting = {n for n in left if self._seen[n].said.get("waits")}
        return set() if len(waiting) == len(left) else waiting


def file_of(folder: pathlib.Path, process: int) -> pathlib.Path:
    """Where a process gives its signs."""
    return folder / f"process_{process:05d}.json"


def ended_file(folder: pathlib.Path, process: int) -> pathlib.Path:
    """What says that a process has ended without a fault."""
    return folder / f"ended_{process:05d}"


class Supervisor:
    """One process of a run.

    Args:
      command: starts it.
      watch: the folder that all supervisors see.
      process, processes: which it is, of how many.
      restarts, within: faults within so many seconds that are too many.
      silent, still: see `Watch`.
      say: receives a line per event.
    """

    def __init__(
        self, command: Sequence[str], watch: pathlib.Path, process: int, processes: int, *,
        restarts: int, within: float, silent: float, still: float, say: Callable[[str], None],
    ):  # fmt: skip
        self._command, self._watch, self._process, self._processes = list(command), watch, process, processes
        self._restarts, self._within, self._silent, self._still = restarts, within, silent, still
        self._say, self._asked = say, False

    def run(self) -> int:
        """Until it has ended without a fault, or too often with one; returns its exit code."""
        signal.signal(signal.SIGTERM, self._ask)
        attempt = self._first_attempt()
        while True:
            folder = self._watch / f"attempt_{attempt:05d}"
            self._gather(folder)
            code = self._attempt(folder)
            if code in _NO_FAULT or self._asked:
                return code
            why = (_read(folder / "fault.json") or {}).get("why", "unknown")
            self._say(f"Attempt {attempt} ended: {why}.")
            if (often := self._faults()) > self._restarts:
                self._say(f"{often} starts have failed within {self._within / 60:.0f} minutes: that is the end of it.")
                return code or 1
            attempt += 1

    def _first_attempt(self) -> int:
        """The latest there is; where this supervisor was part of it, that has failed, and the next."""
        there = sorted(self._watch.glob("attempt_*"))
        if not there:
            return 1
        attempt = int(there[-1].name.rpartition("_")[2])
        last = there[-1]
        if (last / f"ready_{self._process:05d}").exists():
            if not ended_file(last, self._process).exists() and not (last / _OVER).exists():
                self._blame(last, f"the supervisor of process {self._process} was started again")
            attempt += 1
        return attempt

    def _gather(self, folder: pathlib.Path) -> None:
        """Waits until every supervisor is ready: none of their processes of an earlier attempt runs any more."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"ready_{self._process:05d}").touch()
        deadline = time.monotonic() + _GATHER_S
        while time.monotonic() < deadline and not self._asked:
            if len(list(folder.glob("ready_*"))) >= self._processes:
                return
            time.sleep(_LOOK_S / 2)

    def _attempt(self, folder: pathlib.Path) -> int:
        watch = Watch(folder, self._processes, self._silent, self._still)
        environment = {**os.environ, signs.FILE: str(file_of(folder, self._process))}
        child = subprocess.Popen(self._command, env=environment)
        asked_at = None
        while True:
            code = child.poll()
            if code is not None:
                code = code if code >= 0 else 128 - code
                if code in _FOR_GOOD:
                    (folder / _OVER).touch()
                elif code not in _NO_FAULT and self._is_over(folder):
                    return _FOR_GOOD[0]
                if code in _NO_FAULT:
                    ended_file(folder, self._process).touch()
                else:
                    self._blame(folder, f"process {self._process} ended with code {code}", wait=watch)
                return code
            if self._asked and asked_at is None:
                asked_at = time.monotonic()
                child.send_signal(signal.SIGTERM)
            if asked_at is not None and time.monotonic() - asked_at > _GRACE_S:
                ended_file(folder, self._process).touch()
                return self._end(child, 143)
            if (folder / _OVER).exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_SOON_S)  # it may be about to say the same
                return self._end(child, _FOR_GOOD[0])
            if (folder / "fault.json").exists():
                return self._end(child, 1)
            if why := watch.fault():
                self._blame(folder, why)
                return self._end(child, 1)
            time.sleep(_LOOK_S)

    def _is_over(self, folder: pathlib.Path) -> bool:
        """Whether another process has ended for good, of which JAX may have told this one first."""
        deadline = time.monotonic() + _SOON_S
        while time.monotonic() < deadline:
            if (folder / _OVER).exists():
                return True
            time.sleep(_LOOK_S / 2)
        return False

    def _end(self, child: subprocess.Popen, code: int) -> int:
        child.kill()  # works on one that is stopped, too
        child.wait()
        return code

    def _blame(self, folder: pathlib.Path, why: str, wait: Watch | None = None) -> None:
        """Says to all why this attempt has failed; the first reason stays. A process that JAX ended because another was
        silent waits for what the supervisors say of that other one."""
        deadline = time.monotonic() + self._silent
        while wait is not None and "code 134" in why and time.monotonic() < deadline:
            if found := wait.fault():
                why = found if f"process {self._process} " not in found else why
                break
            if (folder / "fault.json").exists():
                return
            time.sleep(_LOOK_S)
        beside = folder / f"fault_{self._process:05d}.json"
        beside.write_text(json.dumps({"why": why, "at": time.time(), "by": self._process}), "utf-8")
        with contextlib.suppress(FileExistsError):
            _publish(beside, folder / "fault.json")
            self._say(f"Fault: {why}.")

    def _faults(self) -> int:
        said = [_read(path) for path in self._watch.glob("attempt_*/fault.json")]
        return sum(time.time() - float((one or {}).get("at", 0)) < self._within for one in said)

    def _ask(self, *_: Any) -> None:
        self._asked = True


def _publish(written: pathlib.Path, path: pathlib.Path) -> None:
    """Gives a file its name, whole: who sees half of it counts a fault too few.

    Raises:
      FileExistsError: there is one of this name.
    """
    try:
        os.link(written, path)
    except FileExistsError:
        raise
    except OSError:  # a disk without links; the last of several reasons stays there
        os.replace(written, path)


def _read(path: pathlib.Path) -> dict[str, Any] | None:
    found = storage.read_note(path)
    return found if isinstance(found, dict) else None


def main(words: Sequence[str]) -> None:
    missing = [
        *([] if words and words[0] in PROGRAMS else ["a program such as recipe, after --"]),
        *([] if _WATCH.value else ["--watch"]),
        *([] if hosts.HOSTS.value else ["--hosts"]),
    ]
    if missing:
        raise InputError(
            f"missing: {', '.join(missing)}", "Write --hosts=slurm --watch=FOLDER -- recipe ….",
            value=" ".join(words),
        )  # fmt: skip
    assert _WATCH.value and hosts.HOSTS.value
    hosts.refuse_unused()
    cluster = hosts.found(hosts.HOSTS.value, os.environ)
    told = [f"--hosts={hosts.HOSTS.value}"]
    if hosts.HOSTS.value == "bare":
        told += [f"--coordinator={cluster.coordinator}", f"--processes={cluster.processes}"]
        told += [f"--process={cluster.process}"]

    def say(line: str) -> None:
        print(f"supervisor {cluster.process}: {line}", file=sys.stderr, flush=True)

    supervisor = Supervisor(
        [sys.executable, "-m", program.module(words[0]), *told, *words[1:]],
        pathlib.Path(_WATCH.value), cluster.process, cluster.processes, restarts=_RESTARTS.value,
        within=60 * _WITHIN.value, silent=_SILENT.value, still=_STILL.value, say=say,
    )  # fmt: skip
    sys.exit(supervisor.run())


main.takes_words = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    program.run(main)

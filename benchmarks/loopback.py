"""Several processes of one program over loopback, which stand for several hosts, and what they leave behind."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import harness

_PATIENCE_S, _ASKED_S = 1800, 90
# Dates and times are in these.
_DATED = ("manifest.json", "metrics.jsonl", "config.gin", "report.md", "report.html")


class Processes:
    """A program of `launch` on several processes.

    Args:
      program: such as "recipe".
      flags: of the program.
      logs: folder of a log of each process, begun anew.
      count, devices: processes, and devices of each.
      watch: folder for signs of life; each process then has a supervisor.
      largest_file: bytes; more is refused as by a disk that is full.
    """

    def __init__(
        self,
        program: str,
        flags: Sequence[str],
        logs: pathlib.Path,
        *,
        count: int = 2,
        devices: int = 1,
        watch: pathlib.Path | None = None,
        largest_file: int | None = None,
    ):
        logs.mkdir(parents=True, exist_ok=True)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        # What is started a hundred times compiles once.
        environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(harness.CHECKOUT / "runs" / "compiled"))
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        self._supervised = watch is not None
        self._logs = [logs / f"process_{process}.log" for process in range(count)]
        self.processes = []
        for process, log in enumerate(self._logs):
            own = [f"--coordinator=127.0.0.1:{port}", f"--processes={count}", f"--process={process}"]
            hosts = ["--hosts=bare", *own] if count > 1 else []
            command = [f"launch.{program}", *hosts, *flags]
            if watch is not None:
                command = ["launch.supervise", *hosts, f"--watch={watch}", "--", program, *flags]
            with open(log, "w", encoding="utf-8") as file:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", *command],
                        cwd=harness.CHECKOUT,
                        env=environment,
                        stdout=file,
                        stderr=file,
                    )
                )
            if largest_file is not None:
                resource.prlimit(self.processes[-1].pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def running(self) -> bool:
        """Whether all run."""
        return all(process.poll() is None for process in self.processes)

    def said(self, process: int = 0) -> str:
        """What a process has said so far."""
        return self._logs[process].read_text("utf-8", errors="replace")

    def codes(self) -> list[int]:
        """Waits for all; how each ended.

        Raises:
          RuntimeError: one is still there after half an hour; all are killed.
        """
        deadline = time.monotonic() + _PATIENCE_S
        try:
            return [process.wait(timeout=max(1.0, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            self.end()
            raise RuntimeError(f"processes did not end: {self.said()[-2000:]}") from None

    def finish(self) -> None:
        """Waits for all.

        Raises:
          RuntimeError: one has failed.
        """
        codes = self.codes()
        if any(codes):
            said = "\n".join(self.said(process)[-2000:] for process, code in enumerate(codes) if code)
            raise RuntimeError(f"processes ended with {codes}: {said}")

    def end(self) -> None:
        """Kills what is left. Supervisors are asked to, as they have processes of their own."""
        if self._supervised:
            for process in self.processes:
                process.terminate()
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_ASKED_S)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def wait(until: Callable[[], bool], processes: Processes, seconds: float = 600) -> bool:
    """Whether something came true while all ran."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and processes.running():
        if until():
            return True
        time.sleep(0.02)
    return False


def ends_of(folder: pathlib.Path) -> dict[str, str]:
    """File of a finished stage of a run, in `folder`/run and `folder`/shared, → its digest, but for files of dates and
    times."""
    found = [*(folder / "run").rglob("*"), *(folder / "shared").rglob("*")]
    files = {file.relative_to(folder): file for file in found if file.is_file() and file.name not in _DATED}
    return {
        str(name): hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in files.items()
        if not {"work", ".locks"} & {*name.parts}
    }


def last_step(folder: pathlib.Path) -> int:
    """Of the checkpoints of a run in `folder`/run; 0 where there is none."""
    steps = folder.glob("run/work/model-*/checkpoints/step_????????")
    return max((int(path.name[5:]) for path in steps), default=0)


def write_documents(folder: pathlib.Path, count: int = 64) -> pathlib.Path:
    """A BEIR folder of short documents with a question each, always the same."""
    words = ["river", "stone", "harbour", "lantern", "meadow", "copper", "winter", "bridge"]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    titles = [f"{words[n % 8]} {words[n // 8 % 8]}" for n in range(count)]
    texts = [f"The {title} is number {n} of the {words[n % 5]}s." for n, title in enumerate(titles)]
    rows = [{"_id": f"d{n}", "title": titles[n], "text": texts[n]} for n in range(count)]
    asked = [{"_id": f"q{n}", "text": f"where is the {titles[n // 2]}"} for n in range(2 * count)]
    for name, lines in (("corpus", rows), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for split, numbers in {
        "train": range(0, 2 * count, 2),
        "dev": range(1, count, 2),
        "test": range(count + 1, 2 * count, 2),
    }.items():
        judged = "".join(f"q{n}\td{n // 2}\t1\n" for n in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


class Notes:
    """Lines of a file, each of one finished part, so that an interruption costs one part. A line that an interruption
    cut short is left out."""

    def __init__(self, file: pathlib.Path):
        self._file = file
        self.lines = list(_read(file))

    def add(self, **said: object) -> None:
        """Appends a line."""
        self.lines.append(said)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")


def _read(file: pathlib.Path) -> Iterator[dict]:
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            yield json.loads(line)

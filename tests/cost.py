"""What the tests cost, by file: seconds, programs that XLA compiled, and the memory of a worker.

  python -m tests.cost                     runs the default suite, and writes tests/cost.json
  python -m tests.cost --show              prints what that file says
  python -m tests.cost tests/dense --slow  runs some of it; nothing is written

Seconds of two workers beside each other depend on the machine; seconds of CPU and compilations hardly do. Processes
that a test starts are in its seconds, and not in its compilations.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping

import pytest

FILE = pathlib.Path(__file__).with_suffix(".json")
CHECKOUT = FILE.parent.parent
# JAX's names: a program that is compiled or read from the cache, and the latter alone.
_PROGRAM, _READ = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"
_COLUMNS = ("seconds", "cpu_seconds", "tests", "programs", "compiled", "worker_mib")


class Measuring:
    """The plugin that counts; a worker hands its counts on with each report."""

    def __init__(self) -> None:
        self.programs, self.read = 0, 0
        self.files: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        self.started = time.monotonic()

    def listen(self) -> None:
        """Counts from now on what this process compiles."""
        import jax

        def duration(event: str, _: float, **__: object) -> None:
            self.programs += event == _PROGRAM

        def happened(event: str, **__: object) -> None:
            self.read += event == _READ

        jax.monitoring.register_event_duration_secs_listener(duration)
        jax.monitoring.register_event_listener(happened)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._now()
        self._before = before
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report = yield
        now = self._now()
        spent = {name: now[name] - self._before[name] for name in now}
        spent["worker_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._before = now
        report.cost = spent
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        counts, spent = self.files[report.nodeid.partition("::")[0]], getattr(report, "cost", None)
        if spent is None:
            return
        most = max(counts["worker_mib"], spent["worker_mib"])
        counts.update(spent)
        counts["worker_mib"] = most
        counts["tests"] += report.when == "call"

    def _now(self) -> dict[str, float]:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        compiled = self.programs - self.read
        return {"seconds": time.monotonic(), "cpu_seconds": cpu, "programs": self.programs, "compiled": compiled}


def pytest_configure(config: pytest.Config) -> None:
    """Loaded by `-p tests.cost`, in each worker too."""
    plugin = Measuring()
    config.pluginmanager.register(plugin, "measured-cost")
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        plugin.listen()


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput"):
        return
    plugin = config.pluginmanager.get_plugin("measured-cost")
    files = {name: {key: round(counts[key], 1) for key in _COLUMNS} for name, counts in sorted(plugin.files.items())}
    config.stash[_FOUND] = {"wall_seconds": round(time.monotonic() - plugin.started, 1), "files": files}
    if config.getoption("--cost-file", None):
        pathlib.Path(config.getoption("--cost-file")).write_text(json.dumps(config.stash[_FOUND], indent=1) + "\n")
    print(f"\n{table(config.stash[_FOUND])}")


_FOUND = pytest.StashKey[dict]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cost-file", help="where the table is written, as JSON")


def table(found: Mapping) -> str:
    """The dearest files first, with what all of them cost."""
    files = sorted(found["files"].items(), key=lambda one: -one[1]["seconds"])
    width = max((len(name) for name, _ in files), default=4)
    lines = [f"{'file':{width}} " + " ".join(f"{name:>11}" for name in _COLUMNS)]
    lines += [f"{name:{width}} " + " ".join(f"{counts[key]:11,.0f}" for key in _COLUMNS) for name, counts in files]
    total = {key: sum(counts[key] for _, counts in files) for key in _COLUMNS[:-1]}
    total["worker_mib"] = max((counts["worker_mib"] for _, counts in files), default=0)
    lines.append(f"{'all':{width}} " + " ".join(f"{total[key]:11,.0f}" for key in _COLUMNS))
    return "\n".join([*lines, f"{found['wall_seconds']:,.0f} seconds from the first import to the last test"])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print what was recorded")
    chosen, rest = parser.parse_known_args(arguments)
    if chosen.show:
        print(table(json.loads(FILE.read_text("utf-8"))))
        return 0
    flags = ["-q", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "tests.cost"]
    return int(pytest.main([*flags, *(rest or [f"--cost-file={FILE}"])]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

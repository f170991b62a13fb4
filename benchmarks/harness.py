"""Measures the rows of a benchmark one by one, records each at once, and judges what is recorded.

    python -m benchmarks.NAME                       measure what is missing or stale, print the table
    python -m benchmarks.NAME --rows='dsi*' --again measure these rows again
    python -m benchmarks.NAME --check [--measure]   judge the recorded rows; measure nothing unless told to

A benchmark is a list of `Row`s and `harness.main("NAME", rows)`. A row that was recorded under the present
configuration is not measured again, so hours of training survive an interruption.

Rows of speed are of a kind of machine (`machine.kind`) and kept for each. `--check` judges those of the kind that it
runs on, and says which have been measured on other kinds alone; without `--check` these are measured.

Judging takes seconds: it goes by what is recorded and by the present settings and versions of stages. Documents are
looked at only where rows are measured; a row that was recorded on others is then measured again.
"""

from __future__ import annotations

import argparse
import datetime
import difflib
import fnmatch
import math
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from benchmarks import machine, records
from benchmarks.records import Record
from benchmarks.rows import Row as Row
from benchmarks.rows import ShareOf as ShareOf
from benchmarks.rows import holds, resolve
from benchmarks.states import ELSEWHERE
from benchmarks.states import current_values as current_values
from benchmarks.states import state as state
from benchmarks.tables import show
from gr_jax.errors import InputError
from gr_jax.evaluation import provenance

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results"


def data_folder(name: str) -> pathlib.Path:
    """The folder of a real data set: in GR_JAX_SHARED_DATA, or in shared/data beside the checkout.

    Raises:
      InputError: it is not there.
    """
    folder = pathlib.Path(os.environ.get("GR_JAX_SHARED_DATA") or CHECKOUT.parent / "shared" / "data") / name
    if not folder.is_dir():
        raise InputError(
            "this benchmark's data is not there",
            "Name the folder of the data sets in the environment variable GR_JAX_SHARED_DATA.",
            file=folder,
        )
    return folder


def two_threads(name: str) -> None:
    """Raises InputError unless this process computes on 2 CPU cores, as rows beside a peer on 2 threads do."""
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores != 2 or jax.default_backend() != "cpu":
        raise InputError(
            f"these rows are of 2 CPU threads, this process has {cores} cores and runs on {jax.default_backend()}",
            f"Run JAX_PLATFORMS=cpu taskset -c 0,1 python -m benchmarks.{name}.",
        )


def main(
    name: str,
    rows: Sequence[Row],
    argv: Sequence[str] | None = None,
    results: pathlib.Path = RESULTS,
    draw: Callable[[], None] | None = None,
) -> int:
    """The whole command line of a benchmark.

    Args:
      name: the module's: rows are recorded in `results`/name.json.
      rows: the table, in the order in which it is measured and printed.
      argv: arguments; None takes the process's.
      results: folder of the records.
      draw: makes pictures of what is recorded, where rows were to be measured.

    Returns:
      The exit status: 0; 1 where a row failed, is short, missing or stale; 2 where the arguments are wrong; 130 where
      it was interrupted.
    """
    arguments = _parse(name, argv)
    file = results / f"{name}.json"
    try:
        chosen = _choose(rows, arguments.rows)
        status = 0
        if not arguments.check or arguments.measure:
            status = _measure_rows(chosen, file, again=arguments.again)
            if draw is not None:
                draw()
        here = machine.kind() if any(row.speed for row in rows) else ""
        recorded = records.read(file, here)
        show(name, chosen, recorded, every=rows, markdown=arguments.markdown)
        for remark in elsewhere(chosen, file, here):
            print(remark)
        if arguments.check and status != 130:
            problems = judge(chosen, recorded, every=rows)
            for problem in problems:
                print(problem, file=sys.stderr)
            print(f"{name}: {len(problems)} problems in {len(chosen)} rows" if problems else f"{name}: all rows pass")
            none = sum(state(row, recorded).startswith(ELSEWHERE) for row in chosen)
            if none:
                print(f"{name}: {none} rows of speed are not judged: there are none of this kind of machine ({here})")
            status = max(status, int(bool(problems)))
        return status
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def main_of_parts(
    parts: Mapping[str, Callable[[], Sequence[Row]]],
    argv: Sequence[str] | None = None,
    draws: Mapping[str, Callable[[], None]] | None = None,
) -> int:
    """The command line of several benchmarks, one after the other; with --rows those that have such rows.

    Args:
      parts: module's name → its rows.
      argv: arguments; None takes the process's.
      draws: module's name → what makes its pictures, of modules that have some.

    Returns:
      The worst exit status. An interruption ends all.
    """
    told, status = _parse("…", argv), 0
    flags = [f"--{name}" for name in ("again", "check", "measure", "markdown") if getattr(told, name)]
    tables = {name: rows() for name, rows in parts.items()}
    try:
        wanted = _patterns([row.name for table in tables.values() for row in table], told.rows)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for name, table in tables.items():
        here = [pattern for pattern in wanted if any(_matches(row.name, pattern) for row in table)]
        if wanted and not here:
            continue
        told_here = [*flags, *([f"--rows={','.join(here)}"] if here else [])]
        status = max(status, main(name, table, told_here, draw=(draws or {}).get(name)))
        if status == 130:
            break
    return status


def judge(rows: Sequence[Row], recorded: Mapping[str, Record], *, every: Sequence[Row] | None = None) -> list[str]:
    """One line for each thing that is wrong: a row that is missing, stale, of older stages, or short of a bound.

    A row of speed that was measured on other kinds of machines alone is not judged.

    Args:
      rows: the rows to judge.
      recorded: what was measured.
      every: all rows of the benchmark, which shares may refer to; None where `rows` are all.
    """
    current = current_values(every or rows, recorded)
    problems = []
    for row in rows:
        wrong = state(row, recorded)
        if wrong:
            problems += [] if wrong.startswith(ELSEWHERE) else [f"{row.name}: {wrong}"]
            continue
        for measure, bounds in row.bounds().items():
            value = current[row.name].get(measure)
            for bound, is_floor in bounds:
                limit = resolve(bound, measure, current)
                if value is None:
                    problems.append(f"{row.name}: {measure} was not measured")
                elif limit is None:
                    other = bound.row if isinstance(bound, ShareOf) else ""
                    problems.append(f"{row.name}: {measure} is judged by {other!r}, which is missing or stale")
                elif not holds(value, limit, is_floor):
                    word = "short: at least" if is_floor else "over: at most"
                    problems.append(f"{row.name}: {measure} {value:.4g} is {word} {limit:.4g} is claimed")
    return problems


def elsewhere(rows: Sequence[Row], file: pathlib.Path, here: str) -> list[str]:
    """A line for each row of speed and each other kind of machine that it was measured on, with its values there."""
    lines = []
    for kind in records.machines(file):
        recorded = records.read(file, kind)
        for row in rows:
            record = recorded.get(row.name)
            if row.speed and kind != here and record is not None and record.machine == kind:
                values = ", ".join(f"{measure} {value:.4g}" for measure, value in record.values.items())
                changed = "" if record.key == row.key(record.corpus) else "; settings were others"
                lines.append(f"{row.name}, on {kind}: {values}{changed}")
    return lines


def _measure_rows(rows: Sequence[Row], file: pathlib.Path, *, again: bool) -> int:
    """Measures what is not recorded yet; returns the exit status."""
    recorded = records.read(file, machine.kind() if any(row.speed for row in rows) else "")
    wanted = [(row, state(row, recorded, corpora=True)) for row in rows]
    wanted = [(row, why or "again") for row, why in wanted if why or again]
    failed = 0
    for place, (row, why) in enumerate(wanted):
        print(f"measuring {row.name} ({why}), row {place + 1} of {len(wanted)}", file=sys.stderr, flush=True)
        start = time.monotonic()
        # Taken before: a checkout that changes meanwhile is not what was measured.
        corpus, runs, versions = row.fingerprint(), row.configs(), row.versions()
        key, commit = row.key(corpus), provenance.commit(ignore=["benchmarks/results"])
        try:
            values = {measure: float(value) for measure, value in row.measure().items()}
            if not all(map(math.isfinite, values.values())):
                raise InputError("a measured value is no finite number", "Correct what is measured.", value=values)
        except KeyboardInterrupt:
            left = ", ".join(row.name for row, _ in wanted[place:])
            print(f"interrupted; what was finished is in {file}; left: {left}", file=sys.stderr)
            return 130
        except Exception as error:  # one broken row must not cost the others
            failed += 1
            print(error, file=sys.stderr) if isinstance(error, InputError) else traceback.print_exc()
            print(f"{row.name} failed; going on", file=sys.stderr)
            continue
        record = Record(
            values=values,
            key=key,
            config=dict(row.config),
            corpus=corpus,
            seeds=tuple(row.seeds),
            commit=commit,
            hardware=machine.line(),
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - start, 1),
            runs=runs,
            versions=versions,
            digest=records.digest(versions) if versions else "",
            machine=machine.kind() if row.speed else "",
        )
        records.write(file, row.name, record)
    return int(failed > 0)


def _choose(rows: Sequence[Row], patterns: str) -> list[Row]:
    names = [row.name for row in rows]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError("two rows have the same name", "Name every row differently.", value=min(twice))
    for row in rows:
        for bounds in row.bounds().values():
            for bound, _ in bounds:
                if isinstance(bound, ShareOf) and bound.row not in names:
                    raise InputError(
                        f"{row.name!r} is judged by a row that is not there", "Correct it.", value=bound.row
                    )
    if not patterns:
        return list(rows)
    wanted = _patterns(names, patterns)
    return [row for row in rows if any(_matches(row.name, pattern) for pattern in wanted)]


def _patterns(names: Sequence[str], patterns: str) -> list[str]:
    """The patterns that commas separate. Names may hold commas too: as many parts as make a name are one pattern, or
    else as few as match one."""
    parts, wanted = [part for part in patterns.split(",") if part.strip()], []
    while parts:
        ends = range(1, len(parts) + 1)
        joined = {end: ",".join(parts[:end]).strip() for end in ends}
        exact = [end for end in ends if joined[end] in names]
        matching = [end for end in ends if any(_matches(name, joined[end]) for name in names)]
        if not matching:
            whole = joined[len(parts)]
            near = difflib.get_close_matches(whole, names, n=3, cutoff=0.3)
            known = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Choose among {', '.join(names)}."
            raise InputError("no such row", known, value=whole)
        end = exact[-1] if exact else matching[0]
        wanted.append(joined[end])
        del parts[:end]
    return wanted


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _parse(name: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", allow_abbrev=False)
    parser.add_argument(
        "--rows", default="", help="rows by name, separated by commas, which names may hold; * matches anything"
    )
    parser.add_argument("--again", action="store_true", help="measure them even where they are recorded")
    parser.add_argument("--check", action="store_true", help="judge the recorded rows; exit status 1 if one fails")
    parser.add_argument("--measure", action="store_true", help="with --check: first measure missing and stale rows")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return parser.parse_args(argv)

"""Golden runs: every system before and after the middle of the library was rebuilt, bit for bit.

    python -m benchmarks.golden --make --side=new --checkout=DIR --output=DIR [--only=a,b] [--kill] [--again]
    python -m benchmarks.golden --compare OLD NEW [--only=a,b]
    python -m benchmarks.golden [--check]

The first runs the table of `golden_systems` with the code of a checkout; with --kill every training is killed once on
the way. The second compares two such folders, records a row a system, and ends with 1 where anything differs: in final
parameters, in other arrays of final artefacts, in TREC runs and measures. The third prints or judges what is recorded.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import golden_runs, golden_systems, harness, records
from benchmarks.golden_systems import SYSTEMS, System
from gr_jax.errors import InputError

RUNS = harness.CHECKOUT / "runs" / "golden"
OLD, NEW = (RUNS / side for side in golden_systems.SIDES)
# What remains of a difference may come from the compiled program alone.
LARGEST = 1e-6
_SHOWN = 8

Array = Mapping[str, Any]  # of `golden_runs.collect`


@dataclasses.dataclass
class Share:
    """How many of something are equal."""

    equal: int = 0
    all: int = 0

    def add(self, equal: bool) -> None:
        self.equal, self.all = self.equal + equal, self.all + 1

    @property
    def value(self) -> float:
        return self.equal / self.all if self.all else 1.0


@dataclasses.dataclass
class Comparison:
    """What two runs of a system have in common.

    Attributes:
      parameters, others: arrays of the old run: parameters, and those of its other artefacts.
      runs: TREC runs and measures.
      largest: largest absolute difference of arrays that are not equal and can be subtracted.
      elsewhere: equal arrays that stand under another name now.
      extra: arrays that the new run alone has.
      problems: a line for each difference.
      notes: a line for what is not judged: other files that differ, and tables that training mined and did not keep.
    """

    parameters: Share = dataclasses.field(default_factory=Share)
    others: Share = dataclasses.field(default_factory=Share)
    runs: Share = dataclasses.field(default_factory=Share)
    largest: float = 0.0
    elsewhere: int = 0
    extra: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def values(self) -> dict[str, float]:
        """Of a row."""
        return {
            "parameters": self.parameters.all,
            "parameters equal": self.parameters.value,
            "other arrays": self.others.all,
            "other arrays equal": self.others.value,
            "runs": self.runs.all,
            "runs equal": self.runs.value,
            "largest difference": self.largest,
        }


def compare(
    old: Mapping[str, Any], new: Mapping[str, Any], difference: Callable[[Array, Array], float | None]
) -> Comparison:
    """Compares what `golden_runs.collect` found of two runs.

    An array is looked for under its stage and name; where the new run has none of that name, among all that it has.

    Args:
      old, new: what was found.
      difference: largest absolute difference of two arrays; None where they cannot be subtracted.
    """
    found = Comparison()
    olds, news = _by_name(old["arrays"]), _by_name(new["arrays"])
    contents = {array["sha256"] for array in new["arrays"]}
    for name, arrays in olds.items():
        here = news.get(name, [])
        unmatched = _without(here, arrays)
        changed = _without(arrays, here)
        for array in arrays:
            is_parameter = array["file"].endswith(".safetensors") or array["name"].startswith("checkpoint:")
            share = found.parameters if is_parameter else found.others
            title = f"{array['stage']}/{array['name']}"
            equal = not any(array is other for other in changed)
            if not equal and not here and array["sha256"] in contents:
                equal = True
                found.elsewhere += 1
            elif not equal and unmatched:
                off = difference(array, unmatched.pop(0))
                found.largest = max(found.largest, off or 0.0)
                found.problems.append(f"{title} differs" + ("" if off is None else f" by {off:.3g}"))
            elif not equal and golden_runs.MINED in array["stage"]:
                found.notes.append(f"{title} is not kept")
                continue
            elif not equal:
                found.problems.append(f"{title} is missing")
            share.add(equal)
    found.extra = sum(len(arrays) for name, arrays in news.items() if name not in olds)
    for name, digest in old["runs"].items():
        other = new["runs"].get(name)
        if other is None and name.endswith(" on dev") and digest in new["runs"].values():
            other, found.elsewhere = digest, found.elsewhere + 1
        found.runs.add(other == digest)
        if other != digest:
            found.problems.append(f"{name} {'is missing' if other is None else 'differs'}")
    before, after = (_files(side["artefacts"]) for side in (old, new))
    found.notes += [
        f"{stage}/{name} differs" for (stage, name), digests in before.items() if after[stage, name] != digests
    ]
    return found


def largest_difference(folders: Sequence[pathlib.Path], old: Array, new: Array) -> float | None:
    """Of two arrays of runs in these folders; None where their shapes differ, or they hold no numbers."""
    one, other = (golden_runs.load(folder, array) for folder, array in zip(folders, (old, new), strict=True))
    if one.shape != other.shape or not all(np.issubdtype(array.dtype, np.number) for array in (one, other)):
        return None
    if not one.size:
        return None
    off = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
    return off if np.isfinite(off) else None


def measure(system: System, old: pathlib.Path, new: pathlib.Path) -> dict[str, float]:
    """Compares the finished runs of one system, and prints what differs.

    Raises:
      InputError: a run is not there, or cannot be compared with the other: other documents, another command.
    """
    before, after = _read(system, "old", old), _read(system, "new", new)
    if before["corpus"] != after["corpus"]:
        raise InputError(
            "the two sides searched other documents",
            "Make both beside one folder `corpus`.",
            value=(before["corpus"], after["corpus"]),
        )
    found = compare(before, after, functools.partial(largest_difference, [old / system.name, new / system.name]))
    lines = list(found.problems)
    if found.problems:  # which may be why
        told, tells = before["environment"], after["environment"]
        lines += [
            f"{name} was {told.get(name)}" for name in sorted({*told, *tells}) if told.get(name) != tells.get(name)
        ]
    lines += [f"not judged: {note}" for note in found.notes]
    if found.elsewhere or found.extra:
        lines.append(f"{found.elsewhere} arrays stand under another name, {found.extra} are new")
    for line in [*lines[:_SHOWN], *([f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]:
        print(f"  {system.name}: {line}", file=sys.stderr)
    return {**found.values(), "killed": len(after["kills"])}


def rows(old: pathlib.Path = OLD, new: pathlib.Path = NEW) -> list[harness.Row]:
    """The table. Which commits were compared is read from the runs, or where there are none, from what is recorded."""
    recorded = records.read(harness.RESULTS / "golden.json")
    return [_row(system, old, new, recorded) for system in SYSTEMS]


def _row(system: System, old: pathlib.Path, new: pathlib.Path, recorded: Mapping[str, records.Record]) -> harness.Row:
    sides = [folder / f"{system.name}.json" for folder in (old, new)]
    compared: Mapping[str, Any] = {}
    if all(file.exists() for file in sides):
        before, after = (json.loads(file.read_text(encoding="utf-8")) for file in sides)
        kills = [f"{kill['stage']} behind step {max(kill['steps'])}" for kill in after["kills"]]
        compared = {"old": before["commit"], "new": after["commit"], "corpus": before["corpus"], "killed": kills}
    elif system.name in recorded:
        compared = {name: value for name, value in recorded[system.name].config.items() if name != "commands"}
    killed = ", ".join(compared.get("killed", ())) or "not killed"
    return harness.Row(
        name=system.name,
        config={"commands": system.digest(), **compared},
        measure=functools.partial(measure, system, old, new),
        at_least={
            "parameters equal": 1.0,
            "other arrays equal": 1.0,
            "runs equal": 1.0,
            **({"parameters": 1, "killed": 1} if system.trains else {}),
        },
        at_most={"largest difference": LARGEST},
        note=f"{compared['old']}, {compared['new']}; {killed}" if compared else "",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if "--make" in arguments:
            return _make(arguments)
        if "--compare" in arguments:
            return _compare(arguments)
        return harness.main("golden", rows(), arguments)
    except InputError as error:
        print(f"golden: {error}", file=sys.stderr)
        return 2


def _make(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", allow_abbrev=False)
    parser.add_argument("--make", action="store_true", required=True, help="run the systems")
    parser.add_argument("--side", choices=golden_systems.SIDES, required=True, help="whose commands")
    parser.add_argument("--checkout", type=pathlib.Path, default=harness.CHECKOUT, help="whose code")
    parser.add_argument("--output", type=pathlib.Path, help="runs/golden/SIDE of this checkout where it is not given")
    parser.add_argument("--only", default="", help="systems by name, separated by commas, and what they read")
    parser.add_argument("--kill", action="store_true", help="kill every training once")
    parser.add_argument("--again", action="store_true", help="also what is made already")
    told = parser.parse_args(argv)
    output = told.output or RUNS / told.side
    failed = golden_runs.make(_chosen(told.only), told.side, told.checkout, output, kill=told.kill, again=told.again)
    if failed:
        print(f"golden: failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _compare(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", allow_abbrev=False)
    parser.add_argument("--compare", nargs=2, type=pathlib.Path, metavar=("OLD", "NEW"), required=True)
    parser.add_argument("--only", default="", help="systems by name, separated by commas")
    told = parser.parse_args(argv)
    names = ",".join(system.name for system in _chosen(told.only, with_read=False))
    return harness.main("golden", rows(*told.compare), ["--check", "--measure", "--again", f"--rows={names}"])


def _chosen(names: str, *, with_read: bool = True) -> list[System]:
    """Systems in the order of the table, by name; with those whose folders they read.

    Raises:
      InputError: there is no such system.
    """
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - {system.name for system in SYSTEMS}
    if unknown:
        raise InputError("no such system", f"Choose among {', '.join(s.name for s in SYSTEMS)}.", value=min(unknown))
    if with_read:
        wanted |= {name for system in SYSTEMS if system.name in wanted for name in system.after}
    return [system for system in SYSTEMS if not names or system.name in wanted]


def _read(system: System, side: str, folder: pathlib.Path) -> dict[str, Any]:
    file = folder / f"{system.name}.json"
    if not file.exists():
        raise InputError("no such run", f"Make it: --make --side={side} --only={system.name}.", file=file)
    found = json.loads(file.read_text(encoding="utf-8"))
    if found["side"] != side or found["command"] != system.arguments(side):
        raise InputError(
            f"not the run of the {side} side that the table has now", "Make it again.", file=file, value=found["side"]
        )
    return found


def _by_name(arrays: Sequence[Array]) -> dict[tuple[str, str], list[Array]]:
    """Several artefacts may be of one stage."""
    found: dict[tuple[str, str], list[Array]] = {}
    for array in arrays:
        found.setdefault((array["stage"], array["name"]), []).append(array)
    return found


def _without(arrays: Sequence[Array], others: Sequence[Array]) -> list[Array]:
    """Those that have no equal among the others, each of which counts once."""
    left = collections.Counter(array["sha256"] for array in others)
    found = []
    for array in arrays:
        if left[array["sha256"]]:
            left[array["sha256"]] -= 1
        else:
            found.append(array)
    return found


def _files(artefacts: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """(stage, name) → digests of the files of artefacts that are no arrays."""
    found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for artefact in artefacts:
        for name, digest in artefact["files"].items():
            found[artefact["stage"], name].append(digest)
    return collections.defaultdict(list, {name: sorted(digests) for name, digests in found.items()})


if __name__ == "__main__":
    sys.exit(main())

"""Gives recorded rows the keys that are made now, once: `python -m benchmarks.rekey --before=FILE --golden=FILE`.

Rows were recorded under hashes of gin files; they are now under resolved settings, with the versions of the stages that
they ran. A row is re-keyed where all of this holds, and is named where it does not:

* it counted under its old key, in the checkout of then, which wrote FILE: see `benchmarks.rekey_old`;
* field by field the settings of then are those of now;
* every comparison of `benchmarks.golden` of the systems that it ran found parameters, other arrays and runs equal.

The commit that measured it stays; `rekeyed` says which commit was compared. Without --write nothing is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import harness, records, resolved
from benchmarks.recipe_runs import RecipeRun
from benchmarks.records import Record
from gr_jax.errors import InputError

_EQUAL = ("parameters equal", "other arrays equal", "runs equal")
# What was called otherwise.
_NAMES = {"mined": "mining", "encoder_mined": "encoder_mining"}
# What was 0 or "" where it was off, and is None now.
_OFF = frozenset(
    """rdrop document_length most_sentences projection pawa_layers dev_documents held_out patience keep_best generated
    file margin_mse teacher_kl clusters refresh_every evaluate_every dev_queries checkpoint_every codes trained
    augmentation first
    """.split()
)
# Trainings of 0 steps are None now. What a network started from was drawn by their seed, and is now by seed 0.
_TRAININGS, _FIRST = ("training", "encoder_training", "query_training", "joint"), ("training", "encoder_training")
_ORDERED = ("kinds", "made")  # mappings whose order counts
# What was so whatever was bound, and is a setting now: BM25 beside DSI, and how docT5query's generator was trained.
_ADDED: Mapping[str, Any] = {
    "lexical": {"k1": 0.9, "b": 0.4, "analyzer": "english"},
    "generator.optimizer": "adamw",
    "generator.schedule": "linear",
    "generator.keep_best": "dev/loss",
    "generator.mesh": [0, 1],
}


def differences(old: Mapping[str, Any], run: RecipeRun) -> list[str]:
    """The settings that are not those of then, a line each.

    Args:
      old: of the run, by `rekey_old`.
      run: as it is now.
    """
    before, now = dict(old["settings"]), _json(dataclasses.asdict(run.resolved()))  # type: ignore[call-overload]
    before = {_NAMES.get(name, name): value for name, value in before.items()}
    if run.encoder is not None:  # and there is no training of one
        for name in ("encoder_training", "encoder_mining"):
            del before[name], now[name]
    if run.queries is not None:  # whose folder no settings have yet
        now["pseudo_queries"]["generated"] = None
    found = _unequal(before, now)
    if now.get("query_training") and now["training"] is None:  # which then had the examples of the other
        for name in ("held_out", "seed", "document_length"):
            if before["training"][name] != now["query_training"][name]:
                found.append(f"{name} of the examples: {before['training'][name]} → {now['query_training'][name]}")
    about = {
        "data": (old["data"], run.data),
        "subset": (old["subset"], run.subset),
        "encoder": (old.get("encoder"), _name(run.encoder)),
        "queries": (old.get("queries"), _name(run.queries)),
        "source": (_without_place(old["source"]), _without_place(run.configs()[0]["source"])),
    }
    return found + [f"{name}: {one} → {other}" for name, (one, other) in about.items() if one != other]


def _unequal(before: Any, now: Any, path: str = "") -> list[str]:
    name = path.rpartition(".")[2]
    if now is None and (before is None or (name in _OFF and not before)):
        return []
    if now is None and name in _TRAININGS and before["steps"] == 0:
        return [f"{path}.seed: {before['seed']} → 0"] if name in _FIRST and before["seed"] else []
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return [] if before == now else [f"{path}: {before!r} → {now!r}"]
    if name in _ORDERED and list(before) != list(now):
        return [f"{path}: {before} → {now}"]
    found = []
    for one in dict.fromkeys([*before, *now]):
        whole = f"{path}.{one}".removeprefix(".")
        found += _unequal(before.get(one, _ADDED.get(whole)), now.get(one), whole)
    return found


def _without_place(source: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name not in ("folder", "subset")}


def _name(run: RecipeRun | None) -> str | None:
    return None if run is None else f"{run.group}/{run.folder.name}"


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _with_taken(run: RecipeRun) -> Iterator[RecipeRun]:
    yield run
    for other in (run.encoder, run.queries):
        if other is not None:
            yield from _with_taken(other)


def why_not(
    row: harness.Row, record: Record, was: Mapping[str, str], runs: Mapping[str, Any], equal: Mapping[str, str]
) -> list[str]:
    """What speaks against a new key, a line each.

    Args:
      row: of a benchmark, which runs systems.
      record: what is recorded of it.
      was: its "key" and "state" before.
      runs: the settings of then, by run.
      equal: system → the commit at which all of its comparisons were equal.
    """
    if was["state"] or was["key"] != record.key:
        return [f"did not count before: {was['state'] or 'another record'}"]
    found = []
    for run in dict.fromkeys(one for ran in row.runs for one in _with_taken(ran)):  # type: ignore[arg-type]
        name, system = str(_name(run)), type(run.resolved()).__name__
        lines = differences(runs[name], run) if name in runs else ["not run before"]
        lines += [] if system in equal else [f"{system} was not shown to be equal"]
        found += [f"{name}: {line}" for line in lines]
    return found


def rekeyed(row: harness.Row, record: Record, equal: Mapping[str, str]) -> Record:
    """The record under its new key."""
    systems = sorted({config["system"] for config in row.configs()})
    commits = sorted({equal[system] for system in systems})
    versions = row.versions()
    return dataclasses.replace(
        record,
        key=row.key(record.corpus),
        config=_json(row.config),
        runs=row.configs(),
        versions=versions,
        digest=records.digest(versions),
        rekeyed={"commit": ", ".join(commits), "systems": systems},
    )


def shown_equal(golden: pathlib.Path) -> dict[str, str]:
    """System → the commit at which all of its comparisons were equal; systems of which one was not are left out.

    Raises:
      InputError: there are no comparisons.
    """
    from benchmarks import golden_systems

    recorded = records.read(golden)
    if not recorded:
        raise InputError("no comparisons are recorded", "Run python -m benchmarks.golden.", file=golden)
    commits: dict[str, set[str]] = {}
    for one in golden_systems.SYSTEMS:
        system, _ = resolved.resolve((f"gin_configs/{one.new[0]}.gin",), ('CORPUS=""', 'MODEL_DIR=""'))
        record = recorded.get(one.name)
        passed = record is not None and all(record.values[name] == 1.0 for name in _EQUAL)
        commit = str(record.config.get("new", "")) if record is not None and passed else ""
        if not commit or "+" in commit:  # with changes that no commit has
            print(f"{one.name}: not shown to be equal", file=sys.stderr)
            commit = ""
        commits.setdefault(type(system).__name__, set()).add(commit)
    return {system: ", ".join(sorted(found)) for system, found in commits.items() if "" not in found}


def rekey(
    name: str, rows: Sequence[harness.Row], file: pathlib.Path, before: Mapping[str, Any], equal: Mapping[str, str]
) -> tuple[dict[str, Record], list[str]]:
    """The records that get new keys, and a line for each row that does not, although it would need one."""
    recorded, new, refused = records.read(file), dict[str, Record](), list[str]()
    for row in rows:
        record = recorded.get(row.name)
        if record is None or not harness.state(row, recorded):
            continue
        was = before["rows"][name].get(row.name, {"key": "", "state": "not there"})
        against = why_not(row, record, was, before["runs"], equal) if row.runs else [harness.state(row, recorded)]
        if against:
            refused.append(f"{row.name}: {'; '.join(against)}")
        else:
            new[row.name] = rekeyed(row, record, equal)
    return new, refused


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rekey", allow_abbrev=False)
    parser.add_argument("--before", type=pathlib.Path, required=True, help="what benchmarks/rekey_old.py printed")
    parser.add_argument("--golden", type=pathlib.Path, default=harness.RESULTS / "golden.json", help="comparisons")
    parser.add_argument("--write", action="store_true", help="write the new keys")
    told = parser.parse_args(argv)
    try:
        before, equal, status = json.loads(told.before.read_text(encoding="utf-8")), shown_equal(told.golden), 0
        for name in before["rows"]:
            file = harness.RESULTS / f"{name}.json"
            rows = importlib.import_module(f"benchmarks.{name}").rows()
            new, refused = rekey(name, rows, file, before, equal)
            if told.write and new:
                records.write_all(file, new)
            print(f"{name}: {len(new)} of {len(rows)} rows get new keys, {len(refused)} are refused")
            print(*(f"  {line}" for line in refused), sep="\n", end="\n" if refused else "")
            status = max(status, int(bool(refused)))
        return status
    except (InputError, OSError) as error:
        print(f"rekey: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    file margin_mse teacher_kl clusters refresh_every evaluate_every dev_queries checkpoint_every codes trained""".split()
)
# Trainings of 0 steps are None now. What a network started from was drawn by their seed, and is now by seed 0.
_TRAININGS, _FIRST = ("training", "encoder_training", "query_training", "joint"), ("training", "encoder_training")
_ORDERED = ("kinds",)  # mappings whose order counts
# BM25 that a system's reports had beside it, whatever was bound, and that it can be told now.
_LEXICAL = {"k1": 0.9, "b": 0.4, "analyzer": "english"}


def differences(old: Mapping[str, Any], run: RecipeRun) -> list[str]:
    """The settings that are not those of then, a line each.

    Args:
      old: of the run, by `rekey_old`.
      run: as it is now.
    """
    before, now = dict(old["settings"]), _json(dataclasses.asdict(run.resolved()))
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
        "source": ({**old["source"], "folder": "", "subset": ""}, {**run.configs()[0]["source"], "folder": "", "subset": ""}),
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
    added = {"lexical": _LEXICAL} if not path else {}
    pairs = [(one, before.get(one, added.get(one)), now.get(one)) for one in dict.fromkeys([*before, *now])]
    return [line for one, was, becomes in pairs for line in _unequal(was, becomes, f"{path}.{one}".removeprefix("."))]


def _name(run: RecipeRun | None) -> str | None:
    return None if run is None else f"{run.group}/{run.folder.name}"


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _with_taken(run: RecipeRun) -> Iterator[RecipeRun]:
    yield run
    for other in (run.encoder, run.queries):
        if other is not None:
            yield from _with_taken(other)

"""What rows and runs were under keys as they were made before: a program for that checkout, for `benchmarks.rekey`.

    cd OLD && PYTHONPATH=. python NEW/benchmarks/rekey_old.py bm25 dense_quality … > before.json

Prints JSON: benchmark → row → its key, and why it does not count ("" where it does); and every run's resolved settings.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any


def main(names: list[str]) -> None:
    """Of these benchmarks."""
    import gin

    import launch.show  # noqa: F401  gin files name it
    from benchmarks import harness, main_job, recipe_runs, records

    gin.add_config_file_search_path(str(harness.CHECKOUT))
    tables, states = [], {}
    for name in names:
        tables.append(importlib.import_module(f"benchmarks.{name}").rows())
        recorded = records.read(harness.RESULTS / f"{name}.json")
        state: Any = harness._state  # type: ignore[attr-defined]
        states[name] = {
            row.name: {"state": state(row, recorded), "key": getattr(recorded.get(row.name), "key", "")}
            for row in tables[-1]
        }
        count = sum(bool(one["state"]) for one in states[name].values())
        print(f"{name}: {count} of {len(states[name])} rows do not count", file=sys.stderr)
    # Whatever the rows hold; the main job had none.
    runs = [one for one in gc.get_objects() if isinstance(one, recipe_runs.RecipeRun)]
    make: Any = recipe_runs.RecipeRun
    runs += [make("main_job", data, recipe) for data, recipe, *_ in main_job.SYSTEMS]
    runs.append(make("main_job", "wiki_intro_179k", "dsi_large", subset="100k"))
    found: dict[str, Any] = {}
    for run in runs:
        name, about = f"{run.group}/{run.folder.name}", _about(run)
        assert found.setdefault(name, about) == about, name
    print(json.dumps({"rows": states, "runs": found}))


def _about(run: Any) -> dict[str, Any]:
    import gin

    macros = ['MODEL_DIR=""', *([] if run.data == "python_docs" else ['CORPUS=""'])]
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config_files_and_bindings(run.gin_files, [*macros, *run.flags])
        recipe = gin.get_bindings("gr_jax.recipes.run", resolve_references=True)["recipe"]
        bound = gin.get_bindings(f"gr_jax.recipes.{recipe.__name__}", resolve_references=True)
        gin.clear_config()
    defaults = {name: one.default for name, one in inspect.signature(inspect.unwrap(recipe)).parameters.items()}
    settings = {name: _plain(value) for name, value in {**defaults, **bound}.items() if name not in _NO_SETTINGS}
    taken = {name: f"{one.group}/{one.folder.name}" for name in ("encoder", "queries") if (one := getattr(run, name))}
    source = {"class": type(bound["source"]).__name__, **_plain(bound["source"])}
    about = {"recipe": recipe.__name__, "data": run.data, "subset": run.subset, "source": source, **taken}
    return {**about, "settings": settings}


_NO_SETTINGS = ("source", "model_dir", "shared_dir", "until", "say")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main(sys.argv[1:])

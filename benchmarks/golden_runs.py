"""Runs of `benchmarks.golden`: the corpus, one process a system, killed on the way where that is asked for, and what
the finished run left, as one JSON file.

All processes compute on one core with the same flags, so that a difference is one of the code.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from benchmarks import golden_systems, harness
from benchmarks.golden_systems import System
from gr_jax import storage
from gr_jax.errors import InputError
from gr_jax.evaluation import provenance
from gr_jax.training import checkpoints as checkpoint_files
from gr_jax.training.train_state import flatten

DATA, DOCUMENTS = "squad_dev", 240
QUERIES = {"train": 200, "dev": 32, "test": 32, "test_unseen": 32}
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "bm25s", "numba", "sentencepiece", "tokenizers")
# What the code of a checkout is, as far as a run goes.
_LIBRARY = ("gr_jax", "launch", "gin_configs")
_KEY = re.compile(r"-[0-9a-f]{8,}$")
# Files that say when, where and by which commit they were made.
_DATED = re.compile(r"(^|/)(manifest\.json|metrics\.jsonl|report\..*)$|\.(html|svg|png)$")
MINED = ", mined at "  # in the stage of tables that training made on the way
_POLL = 0.01  # seconds
# `python -m launch.recipe` on the first of the cores that there are.
_ON_ONE_CORE = """
import os, runpy
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
runpy.run_module("launch.recipe", run_name="__main__", alter_sys=True)
"""


def write_corpus(folder: pathlib.Path) -> str:
    """The corpus in BEIR layout, made where it is not there; returns a digest of its files."""
    if not folder.exists():
        data, new = harness.data_folder(DATA), folder.with_name(f"{folder.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        (new / "qrels").mkdir(parents=True)
        documents = list(_lines(data / "corpus.jsonl.gz"))[:DOCUMENTS]
        known = {json.loads(line)["_id"] for line in documents}
        wanted: set[str] = set()
        for split, most in QUERIES.items():
            header, *rows = (data / "qrels" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
            answers: dict[str, list[str]] = {}
            for row in rows:
                answers.setdefault(row.split("\t")[0], []).append(row)
            inside = [q for q, judged in answers.items() if {row.split("\t")[1] for row in judged} <= known]
            chosen = [inside[place] for place in np.linspace(0, len(inside) - 1, min(most, len(inside))).astype(int)]
            wanted |= set(chosen)
            judged = [row for query in chosen for row in answers[query]]
            (new / "qrels" / f"{split}.tsv").write_text("\n".join([header, *judged]) + "\n", encoding="utf-8")
        queries = [line for line in _lines(data / "queries.jsonl.gz") if json.loads(line)["_id"] in wanted]
        for name, lines in (("corpus", documents), ("queries", queries)):
            (new / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        new.rename(folder)
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(folder)} {_sha256(file.read_bytes())}\n".encode())
    return digest.hexdigest()[:16]


def make(
    systems: Sequence[System], side: str, checkout: pathlib.Path, output: pathlib.Path, *, kill: bool, again: bool
) -> list[str]:
    """Runs systems one after the other; each leaves `output/NAME/` and `output/NAME.json`.

    Args:
      systems: which; those that they read come before them.
      side: "old" or "new": which commands.
      checkout: whose code is run.
      output: outside of it.
      kill: every training is killed once, when its second checkpoint is there, and the command started again.
      again: also what is there of the same commit and command.

    Returns:
      The names of those that failed.
    """
    checkout, output = checkout.resolve(), output.resolve()
    if not (checkout / "launch" / "recipe.py").is_file():
        raise InputError("this is no checkout", "Name the folder that has launch/recipe.py.", file=checkout)
    output.mkdir(parents=True, exist_ok=True)
    corpus = output.parent / "corpus"
    fingerprint, commit = write_corpus(corpus), commit_of(checkout)
    failed = []
    for system in systems:
        about = {"commit": commit, "command": system.arguments(side), "corpus": fingerprint, "kill": kill}
        record = output / f"{system.name}.json"
        if not again and record.exists():
            before = json.loads(record.read_text(encoding="utf-8"))
            if all(before[name] == value for name, value in about.items()):
                print(f"{system.name}: already made", flush=True)
                continue
        record.unlink(missing_ok=True)
        folder = output / system.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        paths = {
            golden_systems.CORPUS: corpus,
            golden_systems.MODEL_DIR: folder / "run",
            golden_systems.OUTPUT: output,
        }
        arguments = [_with_paths(argument, paths) for argument in system.arguments(side)]
        started, core_started = time.monotonic(), _children_seconds()
        try:
            kills = run(arguments, checkout, folder, kill=kill)
        except InputError as error:
            print(f"{system.name}: {error}", file=sys.stderr, flush=True)
            failed.append(system.name)
            continue
        seconds = round(time.monotonic() - started, 1)
        core_seconds = round(_children_seconds() - core_started, 1)
        told = {
            "system": system.name,
            "side": side,
            "seconds": seconds,
            "core_seconds": core_seconds,
            "kills": kills,
            "environment": environment(),
        }
        storage.write_json(record, {**told, **about, **collect(folder)})
        for checkpoints, _ in _checkpoints(folder):  # gigabytes
            shutil.rmtree(checkpoints)
        where = "; ".join(f"killed in {one['stage']} behind step {max(one['steps'])}" for one in kills)
        print(
            f"{system.name}: {seconds:.0f} s, of a core {core_seconds:.0f} s{'; ' if where else ''}{where}", flush=True
        )
    return failed


def commit_of(checkout: pathlib.Path) -> str:
    """The commit of a checkout, twelve digits; "+changes" where files of the library differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", *_LIBRARY) else "")


def environment() -> dict[str, Any]:
    """What a run's bits may depend on beside its code."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"hardware": provenance.hardware_line(), "python": sys.version.split()[0], **versions, **ENVIRONMENT}


def collect(folder: pathlib.Path) -> dict[str, Any]:
    """What a finished run left.

    Args:
      folder: with MODEL_DIR and what it shares with nobody else.

    Returns:
      "artefacts": of each its stage, its key, and the digest of its files that are neither arrays nor dated;
      "arrays": stage, name, digest, shape and file of each, tables of negatives that training mined and the parameters
      of its last checkpoint included;
      "runs": name → digest of TREC runs, of measures, and of what each training saw on dev.
    """
    artefacts, arrays, runs = [], [], {}
    for stage, root in _artefacts(folder):
        files = {}
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            name = file.relative_to(root).as_posix()
            found = _digests(file)
            arrays += [
                {"stage": stage, "name": f"{name}{suffix}", "file": file.relative_to(folder).as_posix(), **about}
                for suffix, about in found.items()
            ]
            if file.suffix == ".trec" or file.name == "metrics.json":
                runs[name] = _sha256(file.read_bytes())
            elif file.name == "metrics.jsonl":
                runs[f"{stage} on dev"] = _sha256(_looks(file))
            elif not found and not _DATED.search(name):
                files[name] = _sha256(file.read_bytes())
        manifest = root / "manifest.json"
        key = json.loads(manifest.read_text(encoding="utf-8")).get("made_from", "") if manifest.exists() else ""
        artefacts.append({"stage": stage, "key": key, "files": files})
    arrays += _kept_by_hooks(folder)
    for checkpoints, steps in _checkpoints(folder):
        stage = f"{_KEY.sub('', checkpoints.parent.name)}, step {max(steps)}"
        newest = checkpoint_files.path_of(checkpoints, max(steps))
        for name, array in _parameters(newest).items():
            where = newest.relative_to(folder).as_posix()
            arrays.append({"stage": stage, "name": f"checkpoint:{name}", "file": where, **_about(array)})
    return {"artefacts": artefacts, "arrays": arrays, "runs": runs}


def load(folder: pathlib.Path, array: Mapping[str, Any]) -> np.ndarray:
    """One of the arrays that `collect` found under the folder."""
    file = folder / array["file"]
    if file.suffix == ".npy":
        return np.load(file, allow_pickle=False)
    if file.is_dir():
        return _parameters(file)[array["name"].rpartition(":")[2]]
    return safetensors.numpy.load_file(file)[array["name"].rpartition(":")[2]]


def _parameters(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Of a checkpoint: those of the last step, whichever the finished stage kept."""
    whole = folder.parent if folder.name == "state" else folder  # as earlier versions' records name it
    return flatten(checkpoint_files.load_params(whole))


def _artefacts(folder: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Stage and folder of whatever has a manifest, and of tables that training left beside its checkpoints."""
    manifests = sorted(folder.rglob("manifest.json"), key=lambda path: (len(path.parts), path))
    seen: set[pathlib.Path] = set()
    for manifest in manifests:
        root, parts = manifest.parent, manifest.relative_to(folder).parts
        if seen & set(root.parents):  # part of an artefact
            continue
        if "work" in parts:
            if "negatives" not in parts:
                continue
            stage = f"{_KEY.sub('', parts[parts.index('work') + 1])}{MINED}{root.name}"
        else:
            stage = _KEY.sub("", root.name)
        seen.add(root)
        yield stage, root


def _kept_by_hooks(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Arrays of the checkpoints that are left, where training has hooks: its tables are in there."""
    for checkpoints, steps in _checkpoints(folder):
        for step in steps:
            path = checkpoint_files.path_of(checkpoints, step)
            try:
                found = checkpoint_files.load_hooks(path)[1]
            except InputError:  # of the code before there were hooks
                continue
            for name, array in found.items():
                stage = f"{_KEY.sub('', checkpoints.parent.name)}, hooks of {path.name}"
                yield {"stage": stage, "name": name, "file": path.relative_to(folder).as_posix(), **_about(array)}


def _digests(file: pathlib.Path) -> dict[str, dict[str, Any]]:
    """What to add to the file's name → digest and shape, of the arrays in a file; none where it holds none."""
    if file.suffix == ".npy":
        arrays = {"": np.load(file, allow_pickle=False)}
    elif file.suffix == ".safetensors":
        arrays = {f":{name}": array for name, array in safetensors.numpy.load_file(file).items()}
    else:
        return {}
    return {name: _about(array) for name, array in arrays.items()}


def _looks(file: pathlib.Path) -> bytes:
    """Steps and measures on dev, less what says how fast training was."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    kept = [{name: value for name, value in one.items() if name == "step" or name[:3] == "dev"} for one in records]
    return json.dumps([one for one in kept if len(one) > 1], sort_keys=True).encode()


def _about(array: np.ndarray) -> dict[str, Any]:
    content = f"{array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes()
    return {"sha256": _sha256(content), "shape": list(array.shape), "dtype": str(array.dtype)}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _children_seconds() -> float:
    """That all processes that were waited for computed."""
    used = os.times()
    return used.children_user + used.children_system


def _lines(file: pathlib.Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from lines


def _with_paths(argument: str, paths: Mapping[str, pathlib.Path]) -> str:
    for name, path in paths.items():
        argument = argument.replace(name, str(path))
    return argument


def run(arguments: Sequence[str], checkout: pathlib.Path, folder: pathlib.Path, *, kill: bool) -> list[dict[str, Any]]:
    """The command, started again after each kill; returns stage and checkpoints' steps at each.

    Raises:
      InputError: it failed; what it printed is in `log.txt`.
    """
    known = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHONPATH"))}
    kills: list[dict[str, Any]] = []
    while True:
        with open(folder / "log.txt", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _ON_ONE_CORE, *arguments],
                cwd=checkout,
                env={**known, **ENVIRONMENT},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                found = _wait(process, folder, {one["stage"] for one in kills} if kill else None)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        if found is not None:
            kills.append(found)
        elif process.returncode:
            raise InputError(
                f"launch.recipe ended with status {process.returncode}", "See what it printed.", file=folder / "log.txt"
            )
        else:
            return kills


def _wait(process: subprocess.Popen, folder: pathlib.Path, killed: set[str] | None) -> dict[str, Any] | None:
    """Until the process ends (None), or a training that was not killed yet has two checkpoints and is killed."""
    if killed is None:
        process.wait()
        return None
    while process.poll() is None:
        for checkpoints, steps in _checkpoints(folder):
            work = checkpoints.parent
            stage = _KEY.sub("", work.name)
            finished = [folder / "shared" / work.name / "manifest.json", work.parents[1] / stage / "manifest.json"]
            on_the_way = len(steps) > 1 and max(steps) > 0 and not any(file.exists() for file in finished)
            if on_the_way and stage not in killed:
                process.kill()
                process.wait()
                return {"stage": stage, "steps": steps}
        time.sleep(_POLL)
    return None


def _checkpoints(folder: pathlib.Path) -> list[tuple[pathlib.Path, list[int]]]:
    """Folders of checkpoints, and the steps of which there is a whole one."""
    found = []
    for checkpoints in folder.glob("*/work/*/checkpoints"):
        with contextlib.suppress(FileNotFoundError):
            matches = [re.fullmatch(r"step_(\d+)", path.name) for path in checkpoints.iterdir()]
            found.append((checkpoints, sorted(int(match[1]) for match in matches if match)))
    return found

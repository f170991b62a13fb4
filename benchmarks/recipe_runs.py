"""Recipes run as a user runs them, for the rows of benchmarks: each in a process of its own, into `runs/`.

An interrupted run goes on where it was, and a finished one is only read: rows that need the same run share it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness
from gr_jax import storage
from gr_jax.corpus import Qrels, Run, read_beir
from gr_jax.errors import InputError
from gr_jax.evaluation import Evaluation, evaluate

CORES = 2
MEASURES = ("Success@1", "Success@10", "R@100", "RR@10")


@dataclasses.dataclass(frozen=True)
class RecipeRun:
    """A recipe on a data set.

    Attributes:
      group: folder under `runs/`; runs in one share their stages.
      data: name of the data set.
      recipe: of `gin_configs/recipes/`.
      label: tells apart runs of one recipe on the same data.
      subset: of the documents, by name; "" takes all.
      budget: of `gin_configs/budgets/`; "" leaves the recipe's own.
      ablation: of `gin_configs/ablations/`, read last; "" is none.
      flags: gin bindings, over all of these.
      trained: the run whose model this one's is, by the same settings; it is not trained again.
      encoder: the run of `dpr` whose encoder this one takes for its documents.
      queries: the run of `bm25_doct5query` whose generated queries this one is trained with.
    """

    group: str
    data: str
    recipe: str
    label: str = ""
    subset: str = ""
    budget: str = ""
    ablation: str = ""
    flags: tuple[str, ...] = ()
    trained: RecipeRun | None = None
    encoder: RecipeRun | None = None
    queries: RecipeRun | None = None

    @property
    def folder(self) -> pathlib.Path:
        """Its MODEL_DIR."""
        name = "-".join(filter(None, (self.data, self.subset, self.recipe, self.label)))
        return harness.CHECKOUT / "runs" / self.group / name

    @property
    def gin_files(self) -> list[str]:
        """In the order in which they are read."""
        after = {"budgets": self.budget, "ablations": self.ablation}
        named = [f"gin_configs/{folder}/{name}.gin" for folder, name in after.items() if name]
        return [f"gin_configs/recipes/{self.recipe}.gin", *named]

    @functools.cache  # noqa: B019 - a process that measures lives for its rows
    def make(self) -> None:
        """Runs what is not made yet; once in a process.

        Raises:
          InputError: the process failed.
        """
        if self.trained is not None:
            self.trained.make()
            for stage in ("model", "embeddings", "query_model"):
                copy_stage(self.trained.folder / stage, self.folder / stage)
        taken = []
        if self.encoder is not None:
            self.encoder.make()
            taken = [f'--gin.{self.recipe.partition("_")[0]}.trained="{self.encoder.folder}"']
        if self.queries is not None:
            self.queries.make()
            taken.append(f'--gin.PseudoQueries.generated="{self.queries.folder / "generated" / "pseudo_queries"}"')
        folder = harness.data_folder(self.data)
        flags = [f"--gin_file={file}" for file in self.gin_files]
        flags += [f'--gin.MODEL_DIR="{self.folder}"', f'--gin.CORPUS="{folder}"']
        if self.subset:
            flags.append(f'--gin.BeirFolder.subset="{folder}/subsets/{self.subset}.ids.gz"')
        launch("recipe", *flags, *taken, *(f"--gin.{flag}" for flag in self.flags))

    def config(self) -> dict[str, Any]:
        """What decides its results, for a row's configuration."""
        return {
            "data": self.data,
            "recipe": self.recipe,
            "settings": settings_hash(self.gin_files),
            **({"subset": self.subset} if self.subset else {}),
            **({"flags": list(self.flags)} if self.flags else {}),
            **{
                name: other.config()
                for name, other in (("encoder", self.encoder), ("queries", self.queries))
                if other is not None
            },
        }

    def fingerprint(self) -> str:
        """The corpus' fingerprint."""
        return fingerprint(self.data, self.subset)

    def evaluation(self, split: str, system: str) -> Evaluation:
        """What one of the run's systems reached on a split, once it is made."""
        results = self.folder / "results"
        run = Run.load(results / "runs" / f"{'_'.join(system.split())}.{split}.trec")
        return evaluate(run, Qrels.load(results / "qrels" / f"{split}.tsv"), MEASURES)

    def training(self) -> Mapping[str, Any]:
        """What the model's folder says of its training, once it is made."""
        return json.loads((self.folder / "model" / "manifest.json").read_text(encoding="utf-8"))["meta"]

    def input_folder(self, stage: str, name: str) -> pathlib.Path:
        """The shared folder of an input of one of its own stages."""
        meta = json.loads((self.folder / stage / "manifest.json").read_text(encoding="utf-8"))["meta"]
        return self.folder.parent / "shared" / f"{name}-{meta['inputs'][name]}"

    def core_minutes(self, stages: Sequence[str] = ("model", "query_model", "joint_model")) -> float:
        """Of its stages and its encoder's, all cores together; after an interruption, of the time that they took."""
        spent = 0.0
        for stage in stages:
            manifest = self.folder / stage / "manifest.json"
            if manifest.exists():
                trained = json.loads(manifest.read_text(encoding="utf-8"))["meta"]
                spent += float(trained.get("core_seconds", CORES * trained["seconds"]))
        return spent / 60 + (0.0 if self.encoder is None else self.encoder.core_minutes())


def copy_stage(made: pathlib.Path, to: pathlib.Path) -> None:
    """Puts a finished stage in the place of one that was made otherwise, or of none; whole or not at all."""
    if not (made / "manifest.json").exists():
        return
    with contextlib.suppress(InputError):
        if storage.read_folder(to, verify=False).made_from == storage.read_folder(made, verify=False).made_from:
            return
    beside = to.with_name(f"{to.name}.copied")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.copytree(made, beside)
    shutil.rmtree(to, ignore_errors=True)
    beside.rename(to)


def launch(program: str, *arguments: str) -> float:
    """Runs an entry point in a process of its own; returns the most memory it held, in GiB.

    Raises:
      InputError: it failed.
    """
    process = subprocess.Popen([sys.executable, "-m", f"launch.{program}", *arguments], cwd=harness.CHECKOUT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise InputError(f"launch.{program} ended with status {os.waitstatus_to_exitcode(status)}", "See above.")
    return usage.ru_maxrss / 2**20  # KiB on Linux


@functools.cache
def fingerprint(data: str, subset: str = "") -> str:
    """The corpus' fingerprint."""
    folder = harness.data_folder(data)
    return read_beir(folder, subset=folder / "subsets" / f"{subset}.ids.gz" if subset else None).corpus.fingerprint


def settings_hash(gin_files: Sequence[str]) -> str:
    """A hash of configuration files and what they include, comments aside: an edit makes their rows stale."""
    digest = hashlib.sha256()
    waiting = list(gin_files)
    while waiting:
        text = (harness.CHECKOUT / waiting.pop(0)).read_text(encoding="utf-8")
        waiting += re.findall(r'^include "(.*)"', text, re.MULTILINE)
        digest.update(re.sub(r"(?m)^#.*\n|^\s*\n", "", text).encode())
    return digest.hexdigest()[:16]


def mean_over_seeds(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Every query's mean over runs that differ in their seeds."""
    first = evaluations[0]
    assert all(one.query_ids == first.query_ids for one in evaluations)
    per_query = {name: np.mean([one.per_query[name] for one in evaluations], axis=0) for name in first.per_query}
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, first.query_ids, per_query)

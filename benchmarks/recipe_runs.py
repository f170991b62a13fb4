"""Systems run as a user runs them, for the rows of benchmarks: each in a process of its own, into `runs/`.

An interrupted run goes on where it was, and a finished one is only read: rows that need the same run share it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import derived_data, harness, resolved
from gr_jax import storage
from gr_jax.corpus import Qrels, Run, python_docs, read_beir
from gr_jax.errors import InputError
from gr_jax.evaluation import Evaluation, evaluate

if TYPE_CHECKING:
    from gr_jax.stages.graph import Stage
    from gr_jax.systems import System

CORES = 2
MEASURES = ("Success@1", "Success@10", "R@100", "RR@10")
PYTHON_DOCS = "python_docs"  # no folder: the documentation of what is installed
PYTHON_DOCS_GIN = "gin_configs/data/python_docs.gin"  # of which a system of its own says so itself
# What settings have in the place of folders of other runs.
_ENCODER, _QUERIES, _TEACHER = "encoder", "queries", "teacher"
# What is taken of a run that is trained already → what it is called here. Most take the model. MINDER and DSI-QG take
# the queries that were generated. LTRGR and DGR take both, and the model is their student.
_TAKEN = {"model": "model", "query_model": "query_model"}
_GENERATED = {"generator": "generator", "generated": "generated"}
_STUDENTS = {**_GENERATED, "model": "student"}
_TAKEN_BY = {
    "minder": _GENERATED, "dsi_qg": _GENERATED, "ltrgr": _STUDENTS, "dgr": _STUDENTS, "dgr_dsi": {"model": "student"}
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RecipeRun:
    """A system on a data set.

    Attributes:
      group: folder under `runs/`; runs in one share their stages.
      data: name of the data set.
      system: of `gin_configs/systems/`.
      model: of `gin_configs/models/`; "" leaves the system's own.
      label: tells apart runs of one system on the same data.
      subset: of the documents, by name; "" takes all.
      questions: so many of the training questions are all there are, for training, dev and test alike, among four
        times as many documents; 0 takes the data as it is.
      labels: so many of the training questions keep their judgements; with 0 no question of any split has one. None
        takes the data as it is.
      every_document: some of the documents, by name, each of which has a training question of its own words beside the
        data's; "" takes the data as it is.
      budget: of `gin_configs/budgets/`; "" leaves the system's own.
      ablation: of `gin_configs/ablations/`, read last; "" is none.
      flags: gin bindings, over all of these.
      trained: the run whose model this one's is, by the same settings, or its student's, or of `minder` and `dsi_qg`
        its generated queries; it is not trained again.
      encoder: the run of `dpr` whose encoder this one takes for its documents.
      queries: the run of `bm25_doct5query` whose generated queries this one is trained with.
      teacher: the run that teaches this one, of `dgr` or `dgr_dsi`.
      taught_by: which of its indices: "hybrid", the combination with BM25, or "" for its own.
    """

    group: str
    data: str
    system: str
    label: str = ""
    subset: str = ""
    budget: str = ""
    ablation: str = ""
    flags: tuple[str, ...] = ()
    trained: RecipeRun | None = None
    encoder: RecipeRun | None = None
    queries: RecipeRun | None = None
    model: str = ""
    teacher: RecipeRun | None = None
    taught_by: str = "hybrid"
    questions: int = 0
    labels: int | None = None
    every_document: str = ""

    def __post_init__(self):
        if bool(self.subset) + bool(self.questions) + (self.labels is not None) + bool(self.every_document) > 1:
            raise InputError(
                "parts of the data of several kinds",
                "Give one of subset, questions, labels and every_document.",
                value=(self.subset, self.questions, self.labels, self.every_document),
            )

    @property
    def folder(self) -> pathlib.Path:
        """Its MODEL_DIR."""
        part = self.subset or (f"{self.questions}_questions" if self.questions else "")
        part = part if self.labels is None else f"{self.labels}_labels"
        part = f"{self.every_document}_every_document" if self.every_document else part
        name = "-".join(filter(None, (self.data, part, self.system, self.label)))
        return harness.CHECKOUT / "runs" / self.group / name

    @property
    def source(self) -> pathlib.Path:
        """The folder of its data.

        Raises:
          InputError: it is not there.
        """
        folder = harness.data_folder(self.data)
        if self.questions:
            return derived_data.with_questions(folder, self.questions)
        if self.every_document:
            return derived_data.with_every_document(folder, self.every_document)
        return folder if self.labels is None else derived_data.with_labels(folder, self.labels)

    @property
    def teacher_index(self) -> pathlib.Path:
        """The folder of the index that teaches it."""
        from gr_jax.stages.teaching import Teacher

        assert self.teacher is not None
        return Teacher(str(self.teacher.folder / self.taught_by)).index

    @property
    def gin_files(self) -> tuple[str, ...]:
        """In the order in which they are read."""
        named = {
            "systems": self.system, "models": self.model, "budgets": self.budget, "ablations": self.ablation
        }  # fmt: skip
        files = [f"gin_configs/{folder}/{name}.gin" for folder, name in named.items() if name]
        return tuple([*files, *([PYTHON_DOCS_GIN] if self.data == PYTHON_DOCS else [])])

    def arguments(self) -> list[str]:
        """Of an entry point that runs it.

        Raises:
          InputError: its data is not there.
        """
        bindings = [f'MODEL_DIR="{self.folder}"']
        if self.data != PYTHON_DOCS:
            bindings.append(f'CORPUS="{self.source}"')
            if self.subset:
                bindings.append(f'BeirFolder.subset="{derived_data.subset(self.source, self.subset)}"')
        if self.encoder is not None:
            bindings.append(f'{type(self.resolved()).__name__}.trained="{self.encoder.folder}"')
        if self.queries is not None:
            bindings.append(f'PseudoQueries.generated="{self.queries.folder / "generated" / "pseudo_queries"}"')
        if self.teacher is not None:
            bindings += _teachers(self.teacher.folder / self.taught_by)
        files = [f"--gin_file={file}" for file in self.gin_files]
        return [*files, *(f"--gin.{binding}" for binding in (*bindings, *self.flags))]

    @functools.cache  # noqa: B019 - a process that measures lives for its rows
    def make(self) -> None:
        """Runs what is not made yet; once in a process.

        Raises:
          InputError: the process failed.
        """
        self._launch("recipe")

    @functools.cache  # noqa: B019
    def train(self) -> None:
        """Runs what is not trained yet, and makes no index of it.

        Raises:
          InputError: the process failed.
        """
        self._launch("train")

    @functools.cache  # noqa: B019
    def index(self) -> None:
        """Runs what is not made yet, up to its index.

        Raises:
          InputError: the process failed.
        """
        self._launch("index")

    def _launch(self, program: str) -> None:
        self._take()
        launch(program, *self.arguments())

    def _take(self) -> None:
        for other in (self.encoder, self.queries, self.teacher):
            if other is not None:
                other.make()
        if self.trained is not None:
            # What it reached is a matter of its own rows. docT5query trains before it writes the queries.
            self.trained.make() if self.trained.system == "bm25_doct5query" else self.trained.train()
            for stage, name in _TAKEN_BY.get(self.system, _TAKEN).items():
                copy_stage(self.trained.folder / stage, self.folder / name)

    def resolved(self) -> System:
        """Its settings; nothing is read for them but gin files. Where it takes another run's encoder, there is no
        training of one."""
        return self._resolved()[0]

    @functools.cache  # noqa: B019
    def _resolved(self) -> tuple[System, Mapping[str, Any]]:
        bindings = ['MODEL_DIR=""', 'CORPUS=""', *self.flags]
        if self.queries is not None:
            bindings.append(f'PseudoQueries.generated="{_QUERIES}"')
        if self.teacher is not None:
            bindings += _teachers(_TEACHER)
        if self.encoder is not None:
            bindings += [f"{name}.encoder_training=None" for name in ("GDR", "NCI", "DSIClusters")]
        return resolved.resolve(self.gin_files, tuple(bindings))

    def stages(self) -> dict[str, Stage]:
        """name → stage, over its documents.

        Raises:
          InputError: its data is not there, or is no folder.
        """
        from gr_jax.stages import documents
        from gr_jax.stages.graph import in_order
        from gr_jax.stages.sources import BeirFolder

        folder = self.source
        source = BeirFolder(str(folder), subset=str(derived_data.subset(folder, self.subset)) if self.subset else "")
        return {stage.name: stage for stage in in_order(self.resolved().stages(documents.corpus(source)))}

    @functools.cache  # noqa: B019
    def configs(self) -> tuple[Mapping[str, Any], ...]:
        """What decides its results, for a row: its settings and data, then those of the runs that it takes from."""
        from gr_jax.stages.keys import digest

        system, source = self._resolved()
        settings = resolved.plain(system)
        others = ((_ENCODER, self.encoder), (_QUERIES, self.queries), (_TEACHER, self.teacher))
        taken = {name: run for name, run in others if run is not None}
        if _ENCODER in taken:
            settings |= {"trained": _ENCODER}
            del settings["encoder_training"], settings["encoder_mining"]
        own = {
            "system": type(system).__name__,
            "data": self.data,
            "source": source,
            "settings": settings,
            "settings_digest": digest(settings),  # of mappings in their order, too
            **({"subset": self.subset} if self.subset else {}),
            **({"questions": self.questions} if self.questions else {}),
            **({"labels": self.labels} if self.labels is not None else {}),
            **({"every_document": [self.every_document, derived_data.OWN_KIND]} if self.every_document else {}),
            **({"takes": list(taken)} if taken else {}),
            **({"taught_by": self.taught_by} if self.taught_by != "hybrid" else {}),
        }
        return (own, *(config for run in taken.values() for config in run.configs()))

    @functools.cache  # noqa: B019
    def versions(self) -> Mapping[str, int]:
        """ "SYSTEM.KIND" → version of its stages, and of those of the runs that it takes from."""
        from gr_jax.stages import document_encoder

        instead = {} if self.encoder is None else {document_encoder.NAME: document_encoder.taken}
        found = resolved.versions(self.resolved(), instead)
        for run in (self.encoder, self.queries, self.teacher):
            found |= run.versions() if run is not None else {}
        return found

    def fingerprint(self) -> str:
        """The corpus' fingerprint."""
        if self.questions or self.labels is not None or self.every_document:
            return read_beir(self.source).corpus.fingerprint
        return fingerprint(self.data, self.subset)

    def evaluation(self, split: str, system: str, measures: Sequence[str] = MEASURES) -> Evaluation:
        """What one of the run's systems reached on a split, once it is made."""
        from gr_jax.stages.results import run_file

        results = self.folder / "results"
        run = Run.load(run_file(results, system, split))
        return evaluate(run, Qrels.load(results / "qrels" / f"{split}.tsv"), measures)

    def training(self) -> Mapping[str, Any]:
        """What the model's folder says of its training, once it is made."""
        return json.loads((self.folder / "model" / "manifest.json").read_text(encoding="utf-8"))["meta"]

    def looks(self, stage: str = "model") -> Mapping[int, Mapping[str, float]]:
        """Step → what the training of a stage measured on dev, once it is trained."""
        lines = (self.folder / stage / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if any(name.startswith("dev/") for name in record)]
        return {int(record["step"]): record for record in records}

    def input_folder(self, stage: str | pathlib.Path, name: str) -> pathlib.Path:
        """The folder of an input of a stage, where runs share it.

        Args:
          stage: one of its own, by name, or the folder of any.
          name: of the input.

        Raises:
          InputError: there is none.
        """
        meta = json.loads((self.folder / stage / "manifest.json").read_text(encoding="utf-8"))["meta"]
        shared = self.folder.parent / "shared"
        found = list(shared.glob(f"*-{meta['inputs'][name]}"))
        if len(found) != 1:
            raise InputError(f"the stage {name} that {stage} read is not there", "Make the run again.", file=shared)
        return found[0]

    def core_minutes(self, stages: Sequence[str] = ("student", "model", "query_model", "joint_model")) -> float:
        """Of its stages and its encoder's, all cores together; after an interruption, of the time that they took."""
        spent = 0.0
        for stage in stages:
            manifest = self.folder / stage / "manifest.json"
            if manifest.exists():
                trained = json.loads(manifest.read_text(encoding="utf-8"))["meta"]
                spent += float(trained.get("core_seconds", CORES * trained["seconds"]))
        return spent / 60 + (0.0 if self.encoder is None else self.encoder.core_minutes())


def _teachers(folder: object) -> list[str]:
    """Bindings of a teacher, of whichever system has one."""
    return [f'{system}.teacher="{folder}"' for system in ("DGR", "DSIDGR")]


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
    if data == PYTHON_DOCS:
        return python_docs().corpus.fingerprint
    folder = harness.data_folder(data)
    return read_beir(folder, subset=derived_data.subset(folder, subset) if subset else None).corpus.fingerprint


def mean_over_seeds(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Every query's mean over runs that differ in their seeds."""
    first = evaluations[0]
    assert all(one.query_ids == first.query_ids for one in evaluations)
    per_query = {name: np.mean([one.per_query[name] for one in evaluations], axis=0) for name in first.per_query}
    return Evaluation({name: float(values.mean()) for name, values in per_query.items()}, first.query_ids, per_query)

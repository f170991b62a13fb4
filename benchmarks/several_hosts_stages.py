"""DSI and GDR from documents to results on one, two and four processes, stage by stage.

Rows of `benchmarks.several_hosts`. Layouts with as many devices are to end in the same bytes, all the way from the
documents. Others add up in another order: each trains on what one process with one device made before training, and
answers from its index.
"""

from __future__ import annotations

import functools
import json
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks import derived_data, harness, records
from benchmarks.loopback import Processes, ends_of
from gr_jax.corpus import read_beir

QUESTIONS, STEPS = 64, 300
_TRAINING = (
    f"steps={STEPS}", "batch_size=8", "warmup_steps=20", "evaluate_every=150", "checkpoint_every=100", "dev_queries=8",
    "keep_best=None",
)  # fmt: skip
SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "DSI": ("--gin_file=gin_configs/systems/dsi.gin", *(f"--gin.Training.{one}" for one in _TRAINING)),
    "GDR": (
        "--gin_file=gin_configs/systems/gdr.gin", "--gin.GDR.encoder_training=None",
        *(f"--gin.ContrastiveTraining.{one}" for one in _TRAINING),
    ),
}  # fmt: skip
FOLDER = harness.CHECKOUT / "runs" / "several_hosts_stages" / records.digest(SYSTEMS)
Layout = tuple[int, int]  # processes, and devices of each
ALONE: Layout = (1, 1)
_AFTER_TRAINING = ("index", "hybrid", "results")


def documents() -> pathlib.Path:
    """The questions and documents: squad_dev's first."""
    return derived_data.with_questions(harness.data_folder("squad_dev"), QUESTIONS)


def _fingerprint() -> str:
    return read_beir(documents()).corpus.fingerprint


def whole(system: str, layout: Layout) -> pathlib.Path:
    """A run from documents to results on a layout."""
    return _made(system, layout, FOLDER / system / _named(layout) / "whole")


def trained(system: str, layout: Layout) -> pathlib.Path:
    """One whose training alone is of the layout; all before it is of one device."""
    return _continued(system, layout, "trained", ("model", "work", *_AFTER_TRAINING))


def answered(system: str, layout: Layout) -> pathlib.Path:
    """One whose results alone are of the layout."""
    return _continued(system, layout, "answered", ("hybrid", "results"))


def _named(layout: Layout) -> str:
    return "{}_of_{}".format(*layout)


def _continued(system: str, layout: Layout, name: str, without: Sequence[str]) -> pathlib.Path:
    folder, begun = FOLDER / system / _named(layout) / name, whole(system, ALONE)
    if not folder.exists():
        beside = folder.with_name(f".{name}")
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(begun, beside)
        for one in without:
            shutil.rmtree(beside / "run" / one)
        (beside / "made").unlink()
        beside.rename(folder)
    return _made(system, layout, folder)


def _made(system: str, layout: Layout, folder: pathlib.Path) -> pathlib.Path:
    if not (folder / "made").exists():
        flags = [*SYSTEMS[system], f'--gin.CORPUS="{documents()}"', f'--gin.MODEL_DIR="{folder / "run"}"']
        Processes("recipe", flags, folder, count=layout[0], devices=layout[1]).finish()
        (folder / "made").touch()
    return folder


def same_bytes(system: str, first: Layout, second: Layout) -> Mapping[str, float]:
    """Of all files of all stages of two runs: of DSI from the documents, of GDR from documents' vectors. Two devices of
    one process encode other batches than one device of each of two."""
    made = whole if system == "DSI" else trained
    folders = [made(system, layout) for layout in (first, second)]
    one, other = map(ends_of, folders)
    return {
        "files": float(len(one)),
        "files identical": float(np.mean([one.get(name) == other.get(name) for name in {*one, *other}])),
        "loss difference": float(np.abs(_losses(folders[0]) - _losses(folders[1])).max()),
    }


def beside_one_device(system: str, layout: Layout) -> Mapping[str, float]:
    """Training on the same inputs, and answers from the same index."""
    alone, made = whole(system, ALONE), trained(system, layout)
    losses = np.abs(_losses(alone) - _losses(made))
    parameters = [load_file(folder / "run" / "model" / "parameters.safetensors") for folder in (alone, made)]
    return {
        "steps": float(STEPS),
        "loss difference": float(losses.max()),
        "parameter difference": max(
            float(np.abs(value - parameters[1][name]).max()) for name, value in parameters[0].items()
        ),
        "same run file": float(_runs(alone) == _runs(answered(system, layout))),
    }  # fmt: skip


def _losses(folder: pathlib.Path) -> np.ndarray:
    lines = (folder / "run" / "model" / "metrics.jsonl").read_text("utf-8").splitlines()
    return np.array([line["train/loss"] for line in map(json.loads, lines) if "train/loss" in line])


def _runs(folder: pathlib.Path) -> dict[str, str]:
    found = {name: digest for name, digest in ends_of(folder).items() if name.endswith(".trec")}
    assert found  # two runs without one would be equal
    return found


def rows() -> Sequence[harness.Row]:
    """The table."""
    found = []
    shared: Mapping[str, Any]
    for system, flags in SYSTEMS.items():
        shared = {"config": {"flags": flags, "questions": QUESTIONS, "steps": STEPS}, "corpus": _fingerprint}
        found.append(
            harness.Row(
                name=f"{system}, two processes beside one of two devices",
                **shared,
                measure=functools.partial(same_bytes, system, (2, 1), (1, 2)),
                at_least={"files identical": 1.0},
                at_most={"loss difference": 0.0},
                seeds=(0,),
            )
        )
        for layout in ((2, 1), (4, 1)):
            found.append(
                harness.Row(
                    name=f"{system}, {layout[0]} processes beside one",
                    **shared,
                    measure=functools.partial(beside_one_device, system, layout),
                    at_least={"same run file": 1.0},
                    at_most={"loss difference": 1e-5, "parameter difference": 1e-5},
                    seeds=(0,),
                )
            )
    return found

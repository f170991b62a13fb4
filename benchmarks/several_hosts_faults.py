"""Two processes of one run over loopback, which are killed at random, stopped, and whose checkpoints are damaged.

Rows of `benchmarks.several_hosts`. Kills and damage are noted one by one under runs/several_hosts_faults, so that an
interruption costs one of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import harness, records
from benchmarks.loopback import Notes, Processes, ends_of, last_step, wait, write_documents

KILLS, IN_A_SAVE, OUTSIDE = 100, 25, 25  # the rest while it trains
WAITED_FOR = 10  # every so many kills the survivor is left to end by itself
STEPS, SAVED = 200, 5
FLAGS = (
    "--gin_file=gin_configs/systems/dsi.gin", "--gin_file=gin_configs/models/tiny.gin", '--gin.Vectors.encoder="lsa"',
    '--gin.Network.vocabulary="byte"', "--gin.Network.width=16", "--gin.Network.heads=2", "--gin.Network.mlp_width=16",
    "--gin.Network.encoder_layers=1", "--gin.Network.decoder_layers=1", f"--gin.Training.steps={STEPS}",
    "--gin.Training.warmup_steps=5", "--gin.Training.batch_size=8", f"--gin.Training.checkpoint_every={SAVED}",
    "--gin.Training.keep_best=None", "--gin.Training.evaluate_every=100", "--gin.Training.dev_queries=4",
    "--gin.Training.mesh=(2, 1)",
)  # fmt: skip
_AFTER = ("index",)  # what is made of the model
CONFIG = {"flags": FLAGS, "documents": 64, "processes": 2}
FOLDER = harness.CHECKOUT / "runs" / "several_hosts_faults" / records.digest(FLAGS)


def _start(folder: pathlib.Path, program: str = "index", **how) -> Processes:
    """The run in a folder, begun or gone on with."""
    flags = [*FLAGS, f'--gin.CORPUS="{FOLDER / "documents"}"', f'--gin.MODEL_DIR="{folder / "run"}"']
    return Processes(program, flags, folder, **how)


def _undisturbed() -> tuple[pathlib.Path, dict[str, str]]:
    """A run that nobody disturbs, and what it ends with."""
    whole = FOLDER / "whole"
    if not (whole / "run" / "index").exists():
        write_documents(FOLDER / "documents")
        _start(whole).finish()
    ends = ends_of(whole)
    assert "run/model/parameters.safetensors" in ends  # two runs that end with nothing would be equal
    return whole, ends


def kills() -> Mapping[str, float]:
    """Kills processes until `KILLS` are noted. After each the same command goes on. Where nothing is left that could be
    killed so, it is left to end, and compared with a run that nobody disturbed."""
    _, expected = _undisturbed()
    work, notes = FOLDER / "killed", Notes(FOLDER / "kills.jsonl")
    plan = ["save"] * IN_A_SAVE + ["outside"] * OUTSIDE + ["training"] * (KILLS - IN_A_SAVE - OUTSIDE)
    random.Random(0).shuffle(plan)

    def compare(pair: Processes) -> None:
        pair.finish()
        notes.add(kind="end", identical=ends_of(work) == expected)
        shutil.rmtree(work)

    while (done := sum(one["kind"] != "end" for one in notes.lines)) < KILLS:
        chosen = random.Random(len(notes.lines))
        kind, victim = plan[done], chosen.randint(0, 1)
        if _is_past(work, kind):
            compare(_start(work))
        pair = _start(work)
        if not _wait_for(pair, kind, work, chosen):
            compare(pair)
            continue
        pair.processes[victim].send_signal(signal.SIGKILL)
        begun, waited = time.monotonic(), 0.0
        if done % WAITED_FOR == 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pair.processes[1 - victim].wait(timeout=90)
            waited = time.monotonic() - begun
        pair.end()
        notes.add(kind=kind, process=victim, step=last_step(work), survivor_s=waited)
    if work.exists():
        compare(_start(work))
    kinds = [note["kind"] for note in notes.lines]
    ends = [note["identical"] for note in notes.lines if note["kind"] == "end"]
    return {
        "killed": float(len(kinds) - len(ends)),
        "killed_save": float(kinds.count("save")),
        "killed_outside": float(kinds.count("outside")),
        "ends": float(len(ends)),
        "identical": sum(ends) / max(len(ends), 1),
        "survivor_ends_within_s": max(note.get("survivor_s", 0.0) for note in notes.lines),
    }


def _is_past(work: pathlib.Path, kind: str) -> bool:
    """Whether a run is behind what a kill of this kind is to meet."""
    if kind == "outside":
        return bool(list(work.glob("run/work/model-*/checkpoints")))
    nearly = kind == "training" and last_step(work) >= STEPS - SAVED
    return nearly or (work / "run" / "model").exists()


def _wait_for(pair: Processes, kind: str, work: pathlib.Path, chosen: random.Random) -> bool:
    """Until the moment for a kill of this kind; False where the run ended before."""
    stage = chosen.choice(["corpus", "pseudo_queries", "vectors", "docids", "examples"])
    delay, steps = chosen.uniform(0, 1.0), chosen.randrange(SAVED, STEPS // 2, SAVED)
    folders = functools.partial(work.glob, "run/work/model-*/checkpoints")
    before = last_step(work)

    def saves() -> set[pathlib.Path]:
        return {path for folder in folders() for path in folder.glob(".step_*")}

    left = saves()  # of kills before
    while pair.running():
        if kind == "save" and saves() - left:
            time.sleep(delay / 100)
            return pair.running()
        if kind == "outside" and f"✓ {stage}" in pair.said():
            time.sleep(delay)
            return pair.running() and not list(folders())
        if kind == "training" and last_step(work) >= min(before + steps, STEPS - SAVED):
            time.sleep(delay / 10)
            return pair.running()
        time.sleep(0.002)
    return False


def damage() -> Mapping[str, float]:
    """Every file of the last checkpoint flipped in one bit, cut short and removed: whether it is said, and how
    training ends."""
    whole, expected = _undisturbed()
    notes = Notes(FOLDER / "damage.jsonl")
    last = max((whole / "run" / "work").glob("model-*/checkpoints/step_*"))
    for file in sorted(path.name for path in last.iterdir()):
        for how in ("flipped", "truncated", "gone"):
            if any((note["file"], note["how"]) == (file, how) for note in notes.lines):
                continue
            work = _copy(whole, "damaged", "model", *_AFTER)
            _inflict(work / last.relative_to(whole) / file, how)
            pair = _start(work)
            pair.finish()
            said = "is passed over: " in pair.said()
            notes.add(file=file, how=how, said=said, identical=ends_of(work) == expected)
    return {
        "files": float(len({note["file"] for note in notes.lines})),
        "said": statistics.mean(note["said"] for note in notes.lines),
        "identical": statistics.mean(note["identical"] for note in notes.lines),
    }


def _copy(whole: pathlib.Path, name: str, *without: str) -> pathlib.Path:
    work = FOLDER / name
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(whole, work)
    for folder in without:
        shutil.rmtree(work / "run" / folder)
    return work


def _inflict(file: pathlib.Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content if how == "flipped" else content[: len(content) // 2])
    if how == "gone":
        file.unlink()


def _before_training(name: str) -> tuple[pathlib.Path, dict[str, str]]:
    """A run whose model is still to be trained, and what it is to end with."""
    whole, expected = _undisturbed()
    return _copy(whole, name, "model", "work", *_AFTER), expected


def _wait_for_step(work: pathlib.Path, step: int, processes: Processes) -> None:
    if not wait(lambda: last_step(work) >= step, processes):
        raise RuntimeError(f"it did not train: {processes.said()[-2000:]}")


def asked_to_stop() -> Mapping[str, float]:
    """SIGTERM on one of the two, in the middle of training; then the same command."""
    work, expected = _before_training("asked_to_stop")
    with _start(work) as pair:
        _wait_for_step(work, SAVED, pair)
        begun = time.monotonic()
        pair.processes[1].send_signal(signal.SIGTERM)
        codes, seconds = pair.codes(), time.monotonic() - begun
    stopped = last_step(work)
    _start(work).finish()
    return {
        "both end with 143": float(codes == [143, 143]),
        "a checkpoint before the end": float(SAVED <= stopped < STEPS),
        "ended within s": seconds,
        "identical": float(ends_of(work) == expected),
    }


def halted() -> Mapping[str, float]:
    """SIGSTOP on one of the two, in the middle of training, each under a supervisor, which goes on by itself."""
    work, expected = _before_training("halted")
    watch = work / "watch"
    with _start(work, watch=watch) as pair:
        _wait_for_step(work, SAVED, pair)
        pids = [_sign(watch, process)["pid"] for process in (0, 1)]
        begun = time.monotonic()
        os.kill(pids[1], signal.SIGSTOP)
        named = wait(lambda: f"process 1 on {_sign(watch, 1)['host']} (pid {pids[1]}" in pair.said(), pair, 120)
        named_s = time.monotonic() - begun
        wait(lambda: not any(map(_lives, pids)), pair, 120)
        ended_s = time.monotonic() - begun
        pair.finish()
    return {
        "named": float(named),
        "named within s": named_s,
        "all ended within s": ended_s,
        "identical": float(ends_of(work) == expected),
    }


def _sign(watch: pathlib.Path, process: int) -> Mapping[str, Any]:
    return json.loads((watch / "attempt_00001" / f"process_{process:05d}.json").read_text("utf-8"))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def two_one_two() -> Mapping[str, float]:
    """Two processes, killed; one of two devices goes on, killed; and two to the end."""
    work, expected = _before_training("two_one_two")
    reached = []
    for count, devices, step in ((2, 1, STEPS // 4), (1, 2, STEPS // 2)):
        with _start(work, count=count, devices=devices) as started:
            _wait_for_step(work, step, started)
        reached.append(last_step(work))
    _start(work).finish()
    return {
        "went on": float(reached[0] < reached[1] < STEPS),
        "identical": float(ends_of(work) == expected),
    }


def full_disk() -> Mapping[str, float]:
    """The disk takes nothing of a checkpoint's size any more; then the same command with space."""
    work, expected = _before_training("full_disk")
    whole = FOLDER / "whole"
    sizes = [file.stat().st_size for file in whole.glob("run/work/model-*/checkpoints/step_*/*.arrays")]
    pair = _start(work, largest_file=min(sizes) // 2)
    codes = pair.codes()
    said = pair.said(0) + pair.said(1)
    _start(work).finish()
    return {
        "both end": float(0 not in codes),
        "said": float("larger than the file system allows" in said),
        "identical": float(ends_of(work) == expected),
    }


def rows() -> Sequence[harness.Row]:
    """The table."""
    found = [
        harness.Row(
            name=f"two processes, {KILLS} kills",
            config={**CONFIG, "kills": KILLS, "in_a_save": IN_A_SAVE, "outside": OUTSIDE},
            measure=kills,
            at_least={"killed": KILLS, "killed_save": 20.0, "killed_outside": 20.0, "identical": 1.0, "ends": 1.0},
            at_most={"survivor_ends_within_s": 60.0},
            note="kill -9 of a random process; files of those that end are compared",
        ),
        harness.Row(
            name="two processes, a damaged checkpoint",
            config={**CONFIG, "how": ["flipped", "truncated", "gone"]},
            measure=damage,
            at_least={"files": 5.0, "said": 1.0, "identical": 1.0},
            note="each file of the last checkpoint",
        ),
    ]
    for name, measure, at_least, at_most in (
        ("SIGTERM on one", asked_to_stop, ("both end with 143", "a checkpoint before the end"), {"ended within s": 60}),
        ("SIGSTOP on one", halted, ("named",), {"named within s": 20, "all ended within s": 60}),
        ("then one, then two", two_one_two, ("went on",), {}),
        ("a full disk", full_disk, ("both end", "said"), {}),
    ):
        found.append(
            harness.Row(
                name=f"two processes, {name}",
                config=CONFIG,
                measure=measure,
                at_least={**dict.fromkeys(at_least, 1.0), "identical": 1.0},
                at_most=at_most,
            )
        )
    return found

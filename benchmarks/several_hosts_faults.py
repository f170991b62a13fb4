"""Two processes of one run over loopback: killed at random, their checkpoints damaged; and what a save costs.

Rows of `benchmarks.several_hosts`. Kills and damage are noted one by one under runs/several_hosts_faults, so that an
interruption costs one of them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks import harness

KILLS, IN_A_SAVE, OUTSIDE = 100, 25, 25  # the rest while it trains
WAITED_FOR = 10  # every so many kills the survivor is left to end by itself
STEPS = 24
GIGABYTE = 1 << 30
REPEATS = 7
FLAGS = (
    "--gin_file=gin_configs/systems/dsi.gin", "--gin_file=gin_configs/models/tiny.gin", '--gin.Vectors.encoder="lsa"',
    '--gin.Network.vocabulary="byte"', "--gin.Network.width=16", "--gin.Network.heads=2", "--gin.Network.mlp_width=16",
    "--gin.Network.encoder_layers=1", "--gin.Network.decoder_layers=1", f"--gin.Training.steps={STEPS}",
    "--gin.Training.warmup_steps=5", "--gin.Training.batch_size=8", "--gin.Training.checkpoint_every=2",
    "--gin.Training.evaluate_every=8", "--gin.Training.dev_queries=4", "--gin.Training.mesh=(2, 1)",
)  # fmt: skip
CONFIG = {"flags": FLAGS, "documents": 64, "processes": 2}
FOLDER = harness.CHECKOUT / "runs" / "several_hosts_faults"


def write_documents(folder: pathlib.Path, count: int = 64) -> pathlib.Path:
    """A BEIR folder of short documents with a question each, always the same."""
    words = ["river", "stone", "harbour", "lantern", "meadow", "copper", "winter", "bridge"]
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    titles = [f"{words[n % 8]} {words[n // 8 % 8]}" for n in range(count)]
    texts = [f"The {title} is number {n} of the {words[n % 5]}s." for n, title in enumerate(titles)]
    rows = [{"_id": f"d{n}", "title": titles[n], "text": texts[n]} for n in range(count)]
    asked = [{"_id": f"q{n}", "text": f"where is the {titles[n // 2]}"} for n in range(2 * count)]
    for name, lines in (("corpus", rows), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for split, numbers in {
        "train": range(0, 2 * count, 2),
        "dev": range(1, count, 2),
        "test": range(count + 1, 2 * count, 2),
    }.items():
        judged = "".join(f"q{n}\td{n // 2}\t1\n" for n in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


class Pair:
    """A recipe on two processes.

    Args:
      documents: a BEIR folder.
      folder: of the run, and of both logs.
    """

    def __init__(self, documents: pathlib.Path, folder: pathlib.Path, program: str = "recipe"):
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        flags = [*FLAGS, f'--gin.CORPUS="{documents}"', f'--gin.MODEL_DIR="{folder / "run"}"', "--hosts=bare"]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        self.logs = [folder / f"process_{process}.log" for process in (0, 1)]
        self.processes = []
        for process, log in enumerate(self.logs):
            own = [f"--coordinator=127.0.0.1:{port}", "--processes=2", f"--process={process}"]
            with open(log, "w", encoding="utf-8") as file:
                command = [sys.executable, "-m", f"launch.{program}", *flags, *own]
                self.processes.append(
                    subprocess.Popen(command, cwd=harness.CHECKOUT, env=environment, stdout=file, stderr=file)
                )

    def running(self) -> bool:
        """Whether both run."""
        return all(process.poll() is None for process in self.processes)

    def said(self) -> str:
        """What process 0 has said so far."""
        return self.logs[0].read_text("utf-8", errors="replace")

    def end(self) -> None:
        """Kills what is left."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()

    def finish(self) -> None:
        """Waits for both.

        Raises:
          RuntimeError: one has failed.
        """
        codes = [process.wait(timeout=900) for process in self.processes]
        if codes != [0, 0]:
            raise RuntimeError(f"processes ended with {codes}: {self.said()[-2000:]}")


def runs_of(folder: pathlib.Path) -> dict[str, str]:
    """Run file → its digest."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.rglob("*.trec"))}


def kills() -> Mapping[str, float]:
    """Kills processes until `KILLS` are noted. After each the same command goes on. Where nothing is left that could be
    killed so, it is left to end, and compared with a run that nobody disturbed."""
    documents, expected = _undisturbed()
    notes = FOLDER / "kills.jsonl"
    work = FOLDER / "killed"
    noted = _noted(notes)
    plan = ["save"] * IN_A_SAVE + ["outside"] * OUTSIDE + ["training"] * (KILLS - IN_A_SAVE - OUTSIDE)
    random.Random(0).shuffle(plan)

    def note(**said: object) -> None:
        noted.append({"killed": False, "kind": "", "survivor_s": 0.0, "identical": None, **said})
        with open(notes, "a", encoding="utf-8") as file:
            file.write(json.dumps(noted[-1]) + "\n")

    def compare(pair: Pair) -> None:
        pair.finish()
        note(identical=runs_of(work) == expected)
        shutil.rmtree(work)

    while (done := sum(one["killed"] for one in noted)) < KILLS:
        chosen = random.Random(len(noted))
        kind, victim = plan[done], chosen.randint(0, 1)
        if _is_past(work, kind):
            compare(Pair(documents, work))
        pair = Pair(documents, work)
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
        note(killed=True, kind=kind, process=victim, survivor_s=waited)
    if work.exists():
        compare(Pair(documents, work))
    ends = [note["identical"] for note in noted if note["identical"] is not None]
    found = {
        f"killed_{kind}": float(sum(n["killed"] and n["kind"] == kind for n in noted)) for kind in ("save", "outside")
    }
    return {
        "killed": float(sum(note["killed"] for note in noted)),
        **found,
        "ends": float(len(ends)),
        "identical": sum(ends) / max(len(ends), 1),
        "survivor_ends_within_s": max(note["survivor_s"] for note in noted),
    }


def _is_past(work: pathlib.Path, kind: str) -> bool:
    """Whether a run is behind what a kill of this kind is to meet."""
    if kind == "outside":
        return bool(list(work.glob("run/work/model-*/checkpoints")))
    return (work / "run" / "model").exists()


def _wait_for(pair: Pair, kind: str, work: pathlib.Path, chosen: random.Random) -> bool:
    """Until the moment for a kill of this kind; False where the run ended before."""
    stage = chosen.choice(["corpus", "pseudo_queries", "vectors", "docids", "examples"])
    delay, steps = chosen.uniform(0, 1.0), chosen.randrange(2, STEPS // 2, 2)
    folders = functools.partial(work.glob, "run/work/model-*/checkpoints")
    before = _last_step(folders())
    while pair.running():
        if kind == "save" and any(list(folder.glob(".step_*")) for folder in folders()):
            time.sleep(delay / 100)
            return pair.running()
        if kind == "outside" and f"✓ {stage}" in pair.said():
            time.sleep(delay)
            return pair.running() and not list(folders())
        if kind == "training" and _last_step(folders()) >= before + steps:
            time.sleep(delay / 10)
            return pair.running()
        time.sleep(0.002)
    return False


def _last_step(folders: Iterable[pathlib.Path]) -> int:
    return max((int(path.name[5:]) for folder in folders for path in folder.glob("step_????????")), default=0)


def damage() -> Mapping[str, float]:
    """Every file of the last checkpoint flipped in one bit, cut short and removed: whether it is said, and how
    training ends."""
    documents, _ = _undisturbed()
    whole = FOLDER / "whole"
    parameters = (whole / "run" / "model" / "parameters.safetensors").read_bytes()
    notes = FOLDER / "damage.jsonl"
    noted = {(note["file"], note["how"]): note for note in _noted(notes)}
    last = max((whole / "run" / "work").glob("model-*/checkpoints/step_*"))
    for file in sorted(path.name for path in last.iterdir()):
        for how in ("flipped", "truncated", "gone"):
            if (file, how) in noted:
                continue
            work = FOLDER / "damaged"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(whole, work)
            shutil.rmtree(work / "run" / "model")
            _inflict(work / last.relative_to(whole) / file, how)
            pair = Pair(documents, work, "train")
            pair.finish()
            said = "is passed over: " in pair.said()
            same = (work / "run" / "model" / "parameters.safetensors").read_bytes() == parameters
            noted[file, how] = {"file": file, "how": how, "said": said, "identical": same}
            with open(notes, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(noted[file, how]) + "\n")
    return {
        "files": float(len({file for file, _ in noted})),
        "said": statistics.mean(note["said"] for note in noted.values()),
        "identical": statistics.mean(note["identical"] for note in noted.values()),
    }


def _inflict(file: pathlib.Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content if how == "flipped" else content[: len(content) // 2])
    if how == "gone":
        file.unlink()


def _undisturbed() -> tuple[pathlib.Path, dict[str, str]]:
    """The documents, and the run files of a run that nobody disturbs."""
    documents = write_documents(FOLDER / "documents")
    whole = FOLDER / "whole"
    if not runs_of(whole):
        Pair(documents, whole).finish()
    return documents, runs_of(whole)


def _noted(file: pathlib.Path) -> list[dict]:
    """The lines of a file of notes; one that an interruption cut short is left out."""
    found = []
    for line in file.read_text("utf-8").splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def saving(size: int = GIGABYTE) -> Mapping[str, float]:
    """What checksums add to the time of writing, and how much training waits for a save and is slowed by it."""
    from gr_jax.training import checkpoint_arrays
    from gr_jax.training.checkpoints import Checkpoints, Snapshot

    piece = np.random.default_rng(0).integers(0, 255, size // 16, np.uint8)
    arrays = {"params": {f"layer_{n}": np.roll(piece, n).view(np.float32) for n in range(16)}}
    pieces = checkpoint_arrays.own_pieces(arrays)
    with tempfile.TemporaryDirectory(dir=_disk()) as name:
        root = pathlib.Path(name)
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(REPEATS):
            for summed in (True, False):
                with _checksums(summed):
                    times[summed].append(_seconds(lambda: checkpoint_arrays.write(root, pieces)))
        store = Checkpoints(root / "checkpoints", {}, keep=1)
        alone = statistics.median(_seconds(_work) for _ in range(20))
        blocked = _seconds(lambda: store.save(Snapshot(1, {}, {}), arrays))
        begun, beside = time.monotonic(), []
        while store._writing is not None and not store._writing.done():
            beside.append(_seconds(_work))
        written = time.monotonic() - begun
        store.close()
    return {
        "write_s": statistics.median(times[True]),
        "without_checksums_s": statistics.median(times[False]),
        "checksums_add": min(times[True]) / min(times[False]) - 1,  # of the fastest: others use the disk too
        "training_waits_s": blocked,
        "written_in_s": written,
        "steps_meanwhile": float(len(beside)),
        "step_takes_times": statistics.median(beside) / alone if beside else float("inf"),
    }


def _disk() -> pathlib.Path:
    FOLDER.mkdir(parents=True, exist_ok=True)
    return FOLDER


def _seconds(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


@functools.cache
def _matrix() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1200, 1200)).astype(np.float32)


def _work() -> None:
    """As much as a small step of training."""
    _matrix() @ _matrix()


@contextlib.contextmanager
def _checksums(summed: bool) -> Iterator[None]:
    """Without them where `summed` is False."""
    from gr_jax.training import checkpoint_arrays

    before = checkpoint_arrays.CHECKSUMS
    if not summed:
        checkpoint_arrays.CHECKSUMS = dict.fromkeys(before, lambda data: 0)  # type: ignore[assignment]
    try:
        yield
    finally:
        checkpoint_arrays.CHECKSUMS = before  # type: ignore[assignment]


def rows() -> Sequence[harness.Row]:
    """The table."""
    return [
        harness.Row(
            name=f"two processes, {KILLS} kills",
            config={**CONFIG, "kills": KILLS, "in_a_save": IN_A_SAVE, "outside": OUTSIDE},
            measure=kills,
            at_least={"killed": KILLS, "killed_save": 20.0, "killed_outside": 20.0, "identical": 1.0, "ends": 1.0},
            at_most={"survivor_ends_within_s": 60.0},
            note="kill -9 of a random process; the run files of those that end are compared",
        ),
        harness.Row(
            name="two processes, a damaged checkpoint",
            config={**CONFIG, "how": ["flipped", "truncated", "gone"]},
            measure=damage,
            at_least={"files": 5.0, "said": 1.0, "identical": 1.0},
            note="each file of the last checkpoint",
        ),
        harness.Row(
            name="saving 1 GB",
            config={"bytes": GIGABYTE, "repeats": REPEATS},
            measure=saving,
            at_least={"steps_meanwhile": 1.0},
            at_most={"checksums_add": 0.03},
            note="a checkpoint in the background",
            speed=True,
        ),
    ]

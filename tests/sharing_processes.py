"""What several processes share out, as processes that a test starts: `python -m tests.sharing_processes '{…}'`.

Each prints one line of JSON: what it made itself, and what all have.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import threading
import types
from typing import Any

from tests.training.on_processes import CHECKOUT, free_port

PARTS = 5


def run(count: int, folder: pathlib.Path) -> list[dict[str, Any]]:
    """What each process prints: of each kind of work, one after the other."""
    port, started = free_port(), []
    for process in range(count):
        told = {"port": port, "processes": count, "process": process, "folder": str(folder)}
        command = [sys.executable, "-m", "tests.sharing_processes", json.dumps(told)]
        started.append(
            subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [one.communicate(timeout=300) for one in started]
    finally:
        for one in started:
            one.kill()
    assert all(one.returncode == 0 for one in started), said
    return [json.loads(out.strip().splitlines()[-1]) for out, _ in said]


def shared(folder: pathlib.Path) -> dict[str, Any]:
    """All that is shared out: parts, also in a thread; blocks of files; an encoding; answers."""
    import numpy as np

    from gr_jax import processes, sharing
    from gr_jax.models import encode_corpus
    from gr_jax.retrievers import Ranking, retrieve_all
    from gr_jax.stages.blocks import in_blocks

    own: list[int] = []

    def work(part: int) -> dict[str, np.ndarray]:
        own.append(part)
        assert processes.share() == (0, 1)  # nothing is shared within a part
        return {"numbers": np.arange(part) / 7, "name": np.array([f"part {part}"])}

    def make(block: range, advance: Any) -> np.ndarray:
        advance(len(block))
        return np.array([*block, processes.index()])

    class Toy:
        """Encodes a text, and answers a question, by its length."""

        dimension, fingerprint = 2, "a toy"

        def encode(self, texts: Any, *, advance: Any, **_: Any) -> np.ndarray:
            return np.array([[len(text), processes.index()] for text in texts], np.float32)

        def retrieve(self, queries: Any, k: int) -> Ranking:
            found = np.tile(np.array([[len(query)] for query in queries], np.int32), k)
            return Ranking(found, found.astype(np.float32) + processes.index())

    def gathered() -> list[Any]:
        return [[part["numbers"].tolist(), *part["name"].tolist()] for part in sharing.in_parts("a", PARTS, work)]

    found: dict[str, Any] = {}

    def aside() -> None:
        with processes.together("beside"):
            found["beside"] = gathered()

    thread = threading.Thread(target=aside)
    with processes.together("a test"):
        thread.start()
        found["parts"] = gathered()
        files = in_blocks(folder, "block", 7, 3, make, title="Making blocks", progress=False)
        found["blocks"] = [np.load(file).tolist() for file in files]
        place = folder / f"encoded_{processes.index()}"
        texts = ["a" * length for length in range(5)]
        encode_corpus(Toy(), texts, place, work=folder / "shards", shard_size=2)
        found["encoded"] = np.load(place / "vectors.npy").tolist() if place.exists() else None
        asked = types.SimpleNamespace(ids=[*"abcde"], texts=texts)
        found["answers"] = retrieve_all(Toy(), asked, 1, batch_size=2).score.ravel().tolist()
        found["first"] = processes.by_first("one", lambda: [processes.index(), list(processes.share())])
        found["all"] = processes.by_all("all", lambda: list(processes.share()))
    thread.join()
    found["alone"] = [list(processes.share()), len(gathered())]
    return {**found, "own": own}


def _failing() -> dict[str, Any]:
    """Process 1 fails, within a part, before, or behind the last: all say it."""
    from gr_jax import processes, sharing
    from gr_jax.errors import InputError

    said = []

    def fail(now: str, when: str) -> None:
        if processes.index() == 1 and now == when:
            raise InputError(f"{when} is bad", "Mend it.")

    def work(part: int) -> dict[str, Any]:
        fail("within", when)
        return {}

    for when in ("within", "before", "behind"):
        try:
            with processes.together("a test"):
                fail("before", when)
                list(sharing.in_parts("a", PARTS, work))
                fail("behind", when)
                processes.gather("the end", None)
        except InputError as error:
            said.append(str(error))
    return {"said": said}


def _stage(folder: pathlib.Path) -> dict[str, Any]:
    """A stage that all work at: process 0 writes what all have found, or fails at the end of it."""
    import numpy as np

    from gr_jax import processes, sharing
    from gr_jax.errors import InputError
    from gr_jax.stages.graph import Place, stage
    from gr_jax.stages.runner import Runner

    @stage(together=True)
    def toy(place: Place, *, fails: bool) -> None:
        parts = list(sharing.in_parts("a", PARTS, lambda part: {"number": np.array(part)}))
        place.notes["processes"] = processes.share()[1]
        if fails and processes.first():
            raise InputError("the end is bad", "Mend it.")
        (place.folder / "found.txt").write_text(f"{len(parts)} by {processes.index()}")

    said = []
    for fails in (True, False):
        try:
            Runner(folder / "run").run([toy(fails=fails)])
        except InputError as error:
            said.append(str(error))
    return {"said": said, "left": sorted(path.name for path in (folder / "run").rglob(".*process_*"))}


def _main(told: dict[str, Any]) -> None:
    from gr_jax import processes
    from launch import hosts

    if told["processes"] > 1:
        hosts.start(hosts.Cluster(f"127.0.0.1:{told['port']}", told["processes"], told["process"]))
    folder = pathlib.Path(told["folder"])
    print(json.dumps({"shared": shared(folder), "failing": _failing(), "stage": _stage(folder)}))
    processes.gather("the end", None)  # JAX ends whoever leaves long before the others


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

"""Encoding a large corpus in a process that is killed: `python -m benchmarks.corpus_encoding`.

MiniLM over 100,000 introductions of wiki_intro_179k, 32 tokens of each, in a process of its own: once in peace, once
killed with SIGKILL three times at random moments and started again by the same command. About 20 minutes on 2 cores.
"""

from __future__ import annotations

import collections
import functools
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness
from gr_jax.corpus import Corpus, read_beir

DATA, SUBSET = "wiki_intro_179k", "100k"
ENCODER, MAX_LENGTH, SHARD_SIZE, BATCH_SIZE = "minilm", 32, 4096, 64
KILLS, SEED = 3, 0


class Logged:
    """MiniLM that notes, before it begins, which documents it was asked for; a line for each shard."""

    def __init__(self, texts: Sequence[str], shard_size: int, log: pathlib.Path):
        from gr_jax.interop import huggingface
        from gr_jax.stages.pretrained import pretrained_folder

        self._encoder = huggingface.load_sentence_encoder(pretrained_folder(ENCODER))
        self._texts, self._log, self._next, self._size = texts, log, 0, shard_size
        self.dimension, self.fingerprint = self._encoder.dimension, self._encoder.fingerprint

    def encode(self, texts: Sequence[str], **settings: Any) -> np.ndarray:
        while self._texts[self._next] != texts[0]:  # shards are asked for in their order
            self._next += self._size
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(f"{self._next} {len(texts)}\n")
        self._next += self._size
        return self._encoder.encode(texts, **settings)


def work(folder: str, corpus: str, shard_size: int) -> None:
    """What the process does that is killed."""
    from gr_jax.models import encode_corpus

    texts = Corpus.load(corpus).contents
    with open(pathlib.Path(folder) / "log", "a", encoding="utf-8") as log:
        log.write("start\n")
    encode_corpus(
        Logged(texts, shard_size, pathlib.Path(folder) / "log"),
        texts,
        pathlib.Path(folder) / "embeddings",
        shard_size=shard_size,
        batch_size=BATCH_SIZE,
        max_length=MAX_LENGTH,
        process=(0, 1),
        progress=True,
    )


def measure(documents: int, shard_size: int) -> Mapping[str, float]:
    """Encodes twice, in peace and killed, and compares bytes and counts.

    Returns:
      identical: 1 where both arrays are the same bytes; killed: how often the process was; documents_per_second: in
      peace, the start of the process included; done_twice: documents that were begun more than once;
      done_twice_elsewhere: those among them that did not belong to the last shard before a kill.
    """
    from gr_jax.models import load_embeddings

    with tempfile.TemporaryDirectory() as name:
        peace, war = pathlib.Path(name) / "peace", pathlib.Path(name) / "war"
        peace.mkdir()
        war.mkdir()
        _corpus().subset(range(documents)).save(pathlib.Path(name) / "corpus")
        started = time.monotonic()
        _finish(_start(peace, shard_size))
        seconds = time.monotonic() - started
        chosen, killed = random.Random(SEED), 0
        for kill in range(KILLS):
            process = _start(war, shard_size)
            # Somewhere in its share of the corpus, and then at any moment of a shard.
            share = (kill + chosen.random()) / (KILLS + 1)
            while process.poll() is None and _begun(war) < share * documents:
                time.sleep(0.2)
            time.sleep(chosen.uniform(0, seconds / documents * shard_size))
            process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
        _finish(_start(war, shard_size))
        identical = np.array_equal(load_embeddings(peace / "embeddings"), load_embeddings(war / "embeddings"))
        twice, elsewhere = _repeated((war / "log").read_text(encoding="utf-8"))
    return {
        "identical": float(identical),
        "killed": killed,
        "documents_per_second": documents / seconds,
        "done_twice": twice,
        "done_twice_elsewhere": elsewhere,
    }


def _start(folder: pathlib.Path, shard_size: int) -> subprocess.Popen:
    arguments = f"{os.fspath(folder)!r}, {os.fspath(folder.parent / 'corpus')!r}, {shard_size}"
    program = f"from benchmarks.corpus_encoding import work; work({arguments})"
    environment = {**os.environ, "PYTHONPATH": os.fspath(harness.CHECKOUT)}
    return subprocess.Popen([sys.executable, "-c", program], cwd=harness.CHECKOUT, env=environment)


def _finish(process: subprocess.Popen) -> None:
    if process.wait() != 0:
        raise RuntimeError(f"the encoding process ended with status {process.returncode}")


def _begun(folder: pathlib.Path) -> int:
    """The document up to which shards were begun."""
    log = folder / "log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return max((int(line.split()[0]) for line in lines if line != "start"), default=0)


def _repeated(log: str) -> tuple[int, int]:
    """Documents that were begun more than once, and those of them outside of the last shard before a kill."""
    starts = [lines.splitlines() for lines in log.split("start\n")[1:]]
    begun = collections.Counter(line for lines in starts for line in lines)
    last = {lines[-1] for lines in starts if lines}
    sizes = {line: int(line.split()[1]) for line in begun if begun[line] > 1}
    return sum(sizes.values()), sum(size for line, size in sizes.items() if line not in last)


@functools.cache
def _corpus() -> Corpus:
    folder = harness.data_folder(DATA)
    return read_beir(folder, subset=folder / "subsets" / f"{SUBSET}.ids.gz").corpus


def rows(documents: int = 100_000) -> list[harness.Row]:
    """The table."""
    return [
        harness.Row(
            name=f"encoding {documents:,} documents, killed {KILLS} times",
            config={
                "data": DATA,
                "subset": SUBSET,
                "documents": documents,
                "kills": KILLS,
                "encoder": ENCODER,
                "max_length": MAX_LENGTH,
                "shard_size": SHARD_SIZE,
                "batch_size": BATCH_SIZE,
            },  # fmt: skip
            measure=functools.partial(measure, documents, SHARD_SIZE),
            at_least={"identical": 1.0, "killed": float(KILLS)},
            at_most={"done_twice": float(KILLS * SHARD_SIZE), "done_twice_elsewhere": 0.0},
            note="MiniLM, 32 tokens",
            corpus=lambda: _corpus().fingerprint,
            seeds=(SEED,),
        )
    ]


if __name__ == "__main__":
    sys.exit(harness.main("corpus_encoding", rows()))

"""A clustered index of 10 million vectors, built and searched on this machine: `python -m benchmarks.large_index`.

Vectors of 384 numbers are drawn around the centres of 10,000 clusters, written cluster by cluster as int8 codes with
their float32 rows on the disk, and searched through memory maps, a query at a time, in a process of its own. 1% of the
clusters are looked into. Recall is that of the same clusters' exact inner products: which clusters to look into is the
decoder's business. Files that were just written are in the system's cache, as they are where an index is in use.

Corpora on paper: of the same clusters more is in each, so bytes and time grow with the documents, and time with the
share of the clusters that is looked into. What reads the query and writes clusters takes as long whatever the corpus:
it is measured, one query at a time, with the small GDR of `benchmarks.gdr_sensitivity` that has 1,600 clusters, whose
names have two tokens, as those of 10,000 do.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import gdr_sensitivity, harness, records
from benchmarks.recipe_runs import RecipeRun
from gr_jax.corpus import read_beir
from gr_jax.errors import InputError

DOCUMENTS, WIDTH, CLUSTERS, CHOSEN, QUERIES, COMPARED = 10_000_000, 384, 10_000, 100, 64, 16
ON_PAPER = (10_000_000, 100_000_000)
SPREAD, ASKED = 0.7, 0.3  # lengths of the noise on documents, and on the documents that are asked for
FOLDER = harness.CHECKOUT / "runs" / "large_index"
NAME = f"{DOCUMENTS:,} vectors, drawn"


class Drawn:
    """Unit vectors around their clusters' centres, made when they are asked for: the same ones every time."""

    shape = (DOCUMENTS, WIDTH)

    def __init__(self):
        rng = np.random.default_rng(0)
        self.centers = _unit(rng.standard_normal((CLUSTERS, WIDTH), np.float32))
        self.clusters = rng.integers(0, CLUSTERS, DOCUMENTS).astype(np.int32)
        self._noise = rng.standard_normal((1 << 22) + WIDTH, np.float32)

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        starts = (rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(42)).astype(np.int64)
        noise = self._noise[starts[:, None] + np.arange(WIDTH)]
        return _unit(self.centers[self.clusters[rows]] + noise * np.float32(SPREAD / WIDTH**0.5))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def build_and_search(folder: pathlib.Path) -> Mapping[str, float]:
    """What `measure` does in a process of its own."""
    from gr_jax.dense import ClusteredSearch, build_clustered

    drawn, place = Drawn(), folder / "search"
    started = time.perf_counter()
    build_clustered(place, drawn, drawn.clusters, num_clusters=CLUSTERS, codes="row", progress=True)
    built = time.perf_counter() - started
    search = ClusteredSearch.load(place, verify=False)
    rng = np.random.default_rng(1)
    asked = rng.choice(DOCUMENTS, QUERIES, replace=False)
    queries = _unit(drawn[asked] + rng.standard_normal((QUERIES, WIDTH), np.float32) * np.float32(ASKED / WIDTH**0.5))
    chosen = np.argsort(-(queries @ drawn.centers.T), axis=1)[:, :CHOSEN].astype(np.int32)
    search.search_clusters(queries[:2], chosen[:2], 100)  # compiled
    times = []
    for query, its in zip(queries, chosen, strict=True):
        started = time.perf_counter()
        found, _ = search.search_clusters(query[None], its[None], 100)
        times.append(time.perf_counter() - started)
    found, _ = search.search_clusters(queries, chosen, 100)
    exact = []
    for query, its, answer in zip(queries[:COMPARED], chosen, found, strict=False):
        inside = np.flatnonzero(np.isin(drawn.clusters, its))
        best = inside[np.argsort(-(drawn[inside] @ query), kind="stable")[:100]]
        exact.append(len(np.intersect1d(best, answer)) / 100)
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    return {
        "minutes to build": built / 60,
        "GiB on disk": size / 2**30,
        "ms a query": 1000 * statistics.median(times),
        "recall@100 inside the clusters": float(np.mean(exact)),
    }


class Memory:
    """The most memory that this process holds of its own, without mapped files, in GiB, looked at while it is open."""

    def __init__(self):
        self.most, self._end = 0.0, threading.Event()

    def __enter__(self):
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._looking.join()

    def _look(self):
        while not self._end.wait(0.2):
            lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            (held,) = (int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
            self.most = max(self.most, held / 2**20)


@functools.cache
def measure() -> Mapping[str, float]:
    """Builds and searches."""
    harness.two_threads("large_index")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        command = [sys.executable, "-m", "benchmarks.large_index", f"--build_and_search={FOLDER}"]
        process = subprocess.run(command, cwd=harness.CHECKOUT, stdout=subprocess.PIPE, text=True)
        if process.returncode:
            raise InputError(
                "building a large index failed", f"See above; it needs 18 GiB in {FOLDER}.", value=process.returncode
            )
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    return json.loads(process.stdout.splitlines()[-1])


def network_run() -> RecipeRun:
    """The small GDR of 1,600 clusters."""
    return gdr_sensitivity.run_of("budget1600", "Clusters.budget=1600")


@functools.cache
def network_ms() -> float:
    """Of a query that is read and for which clusters are written, the median."""
    from gr_jax.retrievers import index

    harness.two_threads("large_index")
    run = network_run()
    run.make()
    retriever: Any = index.load(run.folder / "index").retriever
    texts = read_beir(harness.data_folder(run.data)).split_queries("dev").texts[: QUERIES + 1]
    times = []
    for text in texts:
        started = time.perf_counter()
        np.asarray(retriever.decode([text]).clusters)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[1:])  # the first one compiled


def on_paper(count: int) -> Mapping[str, float]:
    """From the constants of the index that was built."""
    built, *_ = rows()
    recorded = harness.current_values([built], records.read(harness.RESULTS / "large_index.json"))
    measured = recorded[NAME] if NAME in recorded else measure()
    times = count / DOCUMENTS
    codes = WIDTH + 4 + 4 + 1  # numbers, their scale, the document's number, whether it is there
    search, network = measured["ms a query"] * times, network_ms()
    return {
        "GiB on disk": measured["GiB on disk"] * times,
        "GiB of codes": count * codes / 2**30,
        "ms a query": search,
        "ms, the network's": network,
        "ms, both": search + network,
    }


def rows() -> list[harness.Row]:
    """The table."""
    shape = {"documents": DOCUMENTS, "width": WIDTH, "clusters": CLUSTERS, "chosen": CHOSEN, "codes": "row"}
    shape |= {"queries": QUERIES, "compared": COMPARED, "spread": SPREAD, "asked": ASKED}
    table = [
        harness.Row(
            name=NAME,
            config=shape,
            measure=measure,
            at_most={"GiB of memory": 20.0},
            at_least={"recall@100 inside the clusters": 0.995},
            seeds=(0,),
        )
    ]
    for count in ON_PAPER:
        table.append(
            harness.Row(
                name=f"{count:,} vectors, on paper",
                config={"count": count, **shape},
                measure=functools.partial(on_paper, count),
                corpus=network_run().fingerprint,
                seeds=(0,),
                runs=[network_run()],
            )
        )
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build_and_search")
    known, rest = parser.parse_known_args(argv)
    if known.build_and_search:
        with Memory() as memory:
            values = build_and_search(pathlib.Path(known.build_and_search))
        print(json.dumps({**values, "GiB of memory": memory.most}))
        return 0
    return harness.main("large_index", rows(), rest)


if __name__ == "__main__":
    sys.exit(main())

"""The cost of a search beyond its retrieval, and of a process up to its first search.

`Searcher.search` makes hits, with titles and texts, of what `retrieve` finds; both take turns, query by query. A
process is judged by the seconds of cores that it used from its start to its end, which on an idle machine are about
those of the wall clock; modules are counted at its end. About a minute on 2 cores.
"""

from __future__ import annotations

import functools
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import gr_jax
from benchmarks import harness
from gr_jax.corpus import Dataset, read_beir
from gr_jax.retrievers import BM25, index

DOCUMENTS, QUESTIONS, TURNS, K = 300, 256, 9, 10
STARTS = 7  # of a process; the first fills caches of bytecode and compiled loops, and does not count
IMPORT = "import gr_jax; "
SEARCH = f"{IMPORT}gr_jax.load(sys.argv[1]).search('who wrote the first symphony?', k=10); "
COUNT = "names = {*sys.modules}; print(len(names), sum(n.startswith('gr_jax') for n in names), int('jax' in names))"


@functools.cache
def _dataset() -> Dataset:
    return read_beir(harness.data_folder("squad_dev"))


def _fingerprint() -> str:
    return _dataset().corpus.fingerprint


def search() -> dict[str, float]:
    """Milliseconds of a query: the fastest of its turns, and the median over queries."""
    harness.two_threads("search_overhead")
    corpus = _dataset().corpus.subset(range(DOCUMENTS))
    queries = _dataset().split_queries("test").texts[:QUESTIONS]
    with tempfile.TemporaryDirectory() as folder:
        index.save(pathlib.Path(folder) / "index", BM25(corpus), corpus)
        searcher = gr_jax.load(pathlib.Path(folder) / "index")
        sides = {
            "search ms": lambda query: searcher.search(query, K),
            "retrieve ms": lambda query: searcher.retrieve([query], K),
            "search with evidence ms": lambda query: searcher.search(query, K, explain=True),
        }
        fastest: dict[str, list[float]] = {name: [] for name in sides}
        for query in queries:
            taken: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(TURNS):
                for name, side in sides.items():
                    started = time.perf_counter()
                    side(query)
                    taken[name].append(1000 * (time.perf_counter() - started))
            for name, each in taken.items():
                fastest[name].append(min(each))
    beyond = [one - other for one, other in zip(fastest["search ms"], fastest["retrieve ms"], strict=True)]
    return {**{name: statistics.median(each) for name, each in fastest.items()}, "beyond ms": statistics.median(beyond)}


def process(code: str) -> dict[str, float]:
    """Of a Python process that runs this code: medians of its seconds, and what it has imported."""
    corpus = _dataset().corpus.subset(range(DOCUMENTS))
    with tempfile.TemporaryDirectory() as folder:
        index.save(pathlib.Path(folder) / "index", BM25(corpus), corpus)
        command = [sys.executable, "-c", f"import sys; {code}{COUNT}", f"{folder}/index"]
        seconds, cores, said = [], [], ""
        for _ in range(STARTS):
            started, used = time.perf_counter(), _of_children()
            said = subprocess.run(command, cwd=harness.CHECKOUT, check=True, stdout=subprocess.PIPE, text=True).stdout
            seconds.append(time.perf_counter() - started)
            cores.append(_of_children() - used)
    modules, own, jax = map(float, said.split())
    medians = {"core seconds": statistics.median(cores[1:]), "seconds": statistics.median(seconds[1:])}
    return {**medians, "modules": modules, "of gr_jax": own, "imports JAX": jax}


def _of_children() -> float:
    """Seconds of cores that finished processes of this one used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows() -> list[harness.Row]:
    """The table."""
    of_search = {"data": "squad_dev", "documents": DOCUMENTS, "questions": QUESTIONS, "turns": TURNS, "k": K}
    of_process = {"data": "squad_dev", "documents": DOCUMENTS, "starts": STARTS}
    return [
        harness.Row(
            name=f"BM25 among {DOCUMENTS}, k = {K}",
            config=of_search,
            measure=search,
            at_most={"beyond ms": 0.15},
            note="a query at a time; search without evidence against retrieve",
            corpus=_fingerprint,
            speed=True,
        ),
        *(
            harness.Row(
                name=name,
                config={**of_process, "code": code},
                measure=functools.partial(process, code),
                at_most={"core seconds": limit, "imports JAX": 0},
                note="a whole process, modules that it imports",
                corpus=_fingerprint,
                speed=True,
            )
            for name, code, limit in (
                ("import gr_jax", IMPORT, 0.2),
                (f"load and first search, BM25 among {DOCUMENTS}", SEARCH, 2.0),
            )
        ),
    ]


if __name__ == "__main__":
    sys.exit(harness.main("search_overhead", rows()))

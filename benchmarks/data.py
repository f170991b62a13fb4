"""Raw files of the papers' data: how fast and how exactly they are read. `python -m benchmarks.data`.

Core-seconds stand beside what it costs to unzip the same bytes, to parse their JSON and to pass one regular expression
over their text. Raw files of the published sizes are made up of real text, below `runs/raw`, 6 GB of disk.
What could not be run here is printed at the end, with the reason. About 25 minutes on 2 cores.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unicodedata
import xml.etree.ElementTree
from collections.abc import Mapping

import numpy as np

from benchmarks import harness, mutated_records, raw_records
from gr_jax.corpus import nq320k
from gr_jax.datasets import nq_build

NAME = "data"
RAW = harness.CHECKOUT / "runs" / "raw"
GB = 10**9
NQ_BYTES, PASSAGES, MUTATED, KILLS = 4 * GB, 2_000_000, 100_000, 20
RULES = nq320k.VARIANTS["page"]
SEQIO = ("squad_dev", "nq_boolq_dev", "wiki_intro_179k", "jaquad")
TESTED = {
    "rules for duplicates, 200 crafted records": ("tests/datasets/test_nq.py",),
    "seqio.Evaluator beside launch.evaluate": (
        "tests/tasks/test_datasets.py::test_an_evaluator_says_what_launch_evaluate_says",
    ),
    "fields of real records": (
        "tests/corpus/test_kilt.py",
        "tests/corpus/test_dpr_files.py",
        "tests/corpus/test_ms_marco.py",
    ),
}
NOT_RUN = {
    "Natural Questions, KILT, MS MARCO and DPR whole": "the raw files are not here; counts and checksums that were "
    "published are compared by `launch.data build` and `launch.data verify` where they are",
    "records of dev in Natural Questions' original form": "no real one is here; they are written from the description",
    "a page of KILT's knowledge source": "no real one is here; it is written from the description",
    "KILT's hotpotqa, eli5, wned, cweb, trex, structured_zeroshot and wow": "no real records are here; they have the "
    "form of the four tasks that are",
}
Values = Mapping[str, float]

_BUILD = """
import sys, json, resource
from gr_jax.corpus import nq320k
from gr_jax.datasets import nq_build, workers
workers.return_large_blocks()  # as launch.data does
train, dev, folder, processes = json.loads(sys.argv[1])
rules = nq320k.VARIANTS["page"]
nq_build.build_nq(train, dev, folder, rules, processes=processes, show=False)
peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(max(peaks))
"""
_CONVERT = """
import sys, json
from gr_jax.datasets import convert, dpr, ms_marco
raw, made, kind, processes = json.loads(sys.argv[1])
line = {"dpr": dpr.passage_line, "ms_marco": ms_marco.passage_line}[kind]
print(convert.convert(raw, made, line, version="1", processes=processes, show=False)["made"])
"""
_BASELINE = """
import sys, gzip, json, re
words = re.compile("<[^<]+?>")
for name in sys.argv[1:]:
    with gzip.open(name) as stream:
        for line in stream:
            record = json.loads(line)
            page = record.get("document_text")
            if page is None:
                page = " ".join(one["token"] for one in record["document_tokens"])
            words.sub("", page)
"""


def _run(code: str, *arguments: object) -> tuple[float, float, str]:
    """Seconds on the clock, core-seconds, and output of a process."""
    start, before = time.perf_counter(), _core_seconds()
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True,
        cwd=harness.CHECKOUT,
    )  # fmt: skip
    return time.perf_counter() - start, _core_seconds() - before, done.stdout.strip()


def _core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _digest(folder: pathlib.Path) -> str:
    """Of the contents of a folder's files, by name."""
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(file.relative_to(folder).as_posix().encode())
        with open(file, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _killed(code: str, argument: object, seconds: float, rng: random.Random) -> int:
    """Starts a process and kills it after a random share of what it takes, again and again; returns how often."""
    kills = 0
    for _ in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", code, json.dumps(argument)], cwd=harness.CHECKOUT)
        try:
            process.wait(1 + rng.random() * 2 * seconds / KILLS)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    return kills


def nq_reading() -> Values:
    """A whole build beside the baseline, on one process, over all bytes and over a quarter of them."""
    values: dict[str, float] = {}
    peaks = {}
    for size in (NQ_BYTES // 4, NQ_BYTES):
        train, dev = raw_records.write_nq(RAW / "nq", size)
        with tempfile.TemporaryDirectory(dir=RAW) as folder:
            _, baseline, _ = _run(_BASELINE, *train, *dev)
            seconds, spent, said = _run(_BUILD, json.dumps([list(map(str, train)), list(map(str, dev)), folder, 1]))
        peaks[size] = int(said) / 1024
        values = {"MB/s": size * 1.01 / 1e6 / seconds, "times the baseline": spent / baseline, "MiB": peaks[size]}
    return {**values, "memory beside a quarter's": peaks[NQ_BYTES] / peaks[NQ_BYTES // 4]}


def nq_faults() -> Values:
    """The same folder on one process, on two, and killed again and again; of a quarter of the bytes."""
    train, dev = raw_records.write_nq(RAW / "nq", NQ_BYTES // 4)
    found = {}
    with tempfile.TemporaryDirectory(dir=RAW) as folder:
        given = [list(map(str, train)), list(map(str, dev))]
        seconds = 0.0
        for processes in (1, 2):
            seconds, _, _ = _run(_BUILD, json.dumps([*given, f"{folder}/{processes}", processes]))
            found[processes] = _digest(pathlib.Path(folder, str(processes)))
        killed = [*given, f"{folder}/killed", 2]
        kills = _killed(_BUILD, killed, seconds, random.Random(0))
        _run(_BUILD, json.dumps(killed))
        same = _digest(pathlib.Path(folder, "killed")) == found[1]
    return {"two processes equal": float(found[1] == found[2]), "killed equal": float(same), "kills": float(kills)}


def passage_lines(kind: str) -> Values:
    """Passages a second on two processes; the same bytes on one, and killed again and again."""
    name = {"dpr": "psgs_w100.tsv", "ms_marco": "collection.tsv"}[kind]
    file = raw_records.write_passages(RAW / name, PASSAGES, dpr=kind == "dpr")
    found, seconds = {}, 0.0
    with tempfile.TemporaryDirectory(dir=RAW) as folder:
        for processes in (1, 2):
            seconds, _, said = _run(_CONVERT, json.dumps([str(file), f"{folder}/{processes}", kind, processes]))
            assert int(said) == PASSAGES
            found[processes] = _of_file(pathlib.Path(folder, str(processes)))
            pathlib.Path(folder, str(processes)).unlink()
        killed = [str(file), f"{folder}/killed", kind, 2]
        kills = _killed(_CONVERT, killed, seconds, random.Random(0))
        _run(_CONVERT, json.dumps(killed))
        same = _of_file(pathlib.Path(folder, "killed")) == found[1]
    return {
        "passages/s": PASSAGES / seconds, "two processes equal": float(found[1] == found[2]),
        "killed equal": float(same), "kills": float(kills),
    }  # fmt: skip


def _of_file(file: pathlib.Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def mutated() -> Values:
    """Damaged records of every reader: read, refused with a place, or anything else."""
    each = -(-MUTATED // len(mutated_records.READERS))
    read = refused = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        where = pathlib.Path(folder)
        mutated_records.write_samples(where)
        for name in mutated_records.READERS:
            outcome = mutated_records.try_reader(name, where, range(each))
            read, refused, wrong = read + outcome.read, refused + outcome.refused, wrong + len(outcome.wrong)
    return {"records": float(read + refused), "read": float(read), "refused": float(refused), "wrong": float(wrong)}


def answers() -> Values:
    """How often DPR's match finds what DPR's own regular expression finds, of random texts in several scripts."""
    import regex

    from gr_jax.evaluation.answer_match import has_answer

    words = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.IGNORECASE | regex.UNICODE | regex.MULTILINE)

    def tokens(text: str) -> list[str]:
        return [found.group().lower() for found in words.finditer(unicodedata.normalize("NFD", text))]

    rng, agree, found, count = random.Random(0), 0, 0, 1000
    letters = "abcABC éÉñ漢字かな'\"-.,!?0019\u0301\u200b"
    for _ in range(count):
        text = "".join(rng.choices(letters, k=rng.randrange(1, 60)))
        start = rng.randrange(len(text))
        answer = (
            text[start : start + rng.randrange(1, 12)] if rng.random() < 0.7 else "".join(rng.choices(letters, k=3))
        )
        wanted, there = tokens(answer), tokens(text)
        expected = bool(wanted) and any(there[at : at + len(wanted)] == wanted for at in range(len(there)))
        agree, found = agree + (has_answer(text, [answer]) == expected), found + expected
    return {"agree": agree / count, "found": found / count}


def through_seqio(data: str) -> Values:
    """The tokens of a system's own store, and those of the Task of the same examples."""
    import seqio

    import tasks
    from gr_jax import storage, systems
    from gr_jax.stages.examples import finished_examples
    from gr_jax.training.token_store import TokenStore

    run = harness.CHECKOUT / "runs" / "seqio" / data
    system = systems.DSI(
        vectors=systems.Vectors(encoder="lsa"), pseudo_queries=systems.PseudoQueries(kinds={"title": 1})
    )
    system.run(harness.data_folder(data), run / "dsi", until="examples")
    (folder,) = (run / "shared").glob("examples-*")
    name = f"benchmark_{data}"
    tasks.add_docid_tasks(name, finished_examples(folder))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as made:
        store = tasks.write_token_store_from_task(made, name)
        seconds = time.perf_counter() - start
        tokens = len(store.inputs.tokens) + len(store.targets.tokens)
        same = storage.read_folder(made, "tokens").files == storage.read_folder(folder / "tokens", "tokens").files
    for registry in (seqio.TaskRegistry, seqio.MixtureRegistry):
        for one in set(registry.names()):
            if one.startswith(name):
                registry.remove(one)
    rows = float(len(TokenStore.load(folder / "tokens")))
    return {"equal": float(same), "rows": rows, "tokens/s": tokens / seconds}


def formats() -> Values:
    """How many real records every reader reads, of the samples that are here."""
    from gr_jax.corpus import Qrels, Queries, dpr_files, kilt, nq

    folder = harness.data_folder("formats")
    counts = {
        "Natural Questions": sum(1 for file in sorted((folder / "nq").glob("simplified*")) for _ in nq.read_nq(file)),
        "KILT": sum(1 for file in sorted((folder / "kilt").glob("*.jsonl")) for _ in kilt.read_kilt(file)),
        "DPR": sum(1 for file in (folder / "dpr").glob("*.json") for _ in dpr_files.read_examples(file)),
        "TREC questions": len(Queries.load(folder / "trec" / "topics.dl19-passage.txt")),
        "TREC judged": len(Qrels.load(folder / "trec" / "qrels.dl19-passage.txt")),
    }
    return {name: float(count) for name, count in counts.items()}


def _page(number: int) -> str:
    return "" if number < 0 else str(number)


def kilt_rules() -> Values:
    """How far KILT's measures are from what its own script says of 1,000 random questions."""
    from gr_jax.evaluation import kilt

    file = harness.CHECKOUT / "tests" / "evaluation" / "kilt_golden.json"
    golden, far = json.loads(file.read_text(encoding="utf-8")), 0.0
    for case in golden["cases"]:
        evidence = [
            frozenset("" if page < 0 else str(page) for page in pages) for pages in case["o"] if pages is not None
        ]
        answered = ["" if page < 0 else str(page) for page in case["a"]]
        found = kilt.measures(answered, evidence, golden["cutoffs"])
        far = max(far, float(np.abs(np.subtract(list(found.values()), case["v"])).max()))
    return {"questions": float(len(golden["cases"])), "largest difference": far}


def tested(*nodes: str) -> Values:
    """Tests that list by hand, or by another library, what is right; counted."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "junit.xml"
        told = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--slow",
            "-p",
            "no:cacheprovider",
            f"--junitxml={file}",
            "-n",
            "0",
            *nodes,
        ]
        subprocess.run(told, cwd=harness.CHECKOUT, check=False, stdout=subprocess.DEVNULL)
        suite = xml.etree.ElementTree.parse(file).getroot()[0].attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    return {"passed": float(int(suite["tests"]) - failed - skipped), "failed": float(failed), "skipped": float(skipped)}


def rows() -> list[harness.Row]:
    """The table."""
    exact = {"two processes equal": 1.0, "killed equal": 1.0}
    table = [
        harness.Row("real records", {}, formats, at_least={"Natural Questions": 1, "KILT": 1, "DPR": 1}),
        harness.Row(
            "Natural Questions, 4 GB", {"bytes": NQ_BYTES, "version": nq_build.VERSION}, nq_reading, speed=True,
            at_most={"times the baseline": 1.3, "memory beside a quarter's": 1.1},
        ),
        harness.Row(
            "Natural Questions, faults", {"bytes": NQ_BYTES // 4, "version": nq_build.VERSION}, nq_faults,
            at_least={**exact, "kills": KILLS / 2},
        ),
    ]  # fmt: skip
    for kind, title in (("dpr", "psgs_w100"), ("ms_marco", "MS MARCO")):
        table.append(
            harness.Row(
                f"{title}, 2 million lines", {"lines": PASSAGES}, functools.partial(passage_lines, kind), speed=True,
                at_least={"passages/s": 50_000, **exact, "kills": KILLS / 2},
            )
        )  # fmt: skip
    for title, nodes in TESTED.items():
        bounds = {"failed": 0, "skipped": 0}
        table.append(harness.Row(title, {"tests": list(nodes)}, functools.partial(tested, *nodes), at_most=bounds))
    table += [
        harness.Row("damaged records", {"records": MUTATED}, mutated, at_most={"wrong": 0}),
        harness.Row("KILT's measures", {}, kilt_rules, at_most={"largest difference": 1e-6}),
        harness.Row("DPR's answer match", {"texts": 1000}, answers, at_least={"agree": 1.0}),
    ]
    table += [
        harness.Row(f"{data} through seqio", {}, functools.partial(through_seqio, data), at_least={"equal": 1.0})
        for data in SEQIO
    ]
    return table


def print_not_run() -> None:
    """What this machine has no files for."""
    for what, why in NOT_RUN.items():
        print(f"NOT RUN: {what}: {why}.")


if __name__ == "__main__":
    sys.exit(harness.main(NAME, rows(), draw=print_not_run))

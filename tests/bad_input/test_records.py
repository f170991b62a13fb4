"""Records of every file that a user brings, mutated: what a reader gives is what the file says, or it is refused by
file and line.

What the file says is read here a second time, by plain Python. A sample runs always, 60,000 among the slow tests.
"""

import json
import math
import re

import numpy as np
import pytest

from gr_jax.corpus import Qrels, Queries, Run, read_beir
from gr_jax.errors import InputError
from gr_jax.training.negative_files import negatives_from_file
from gr_jax.training.token_store import Ragged
from tests.bad_input.faults import within

LINES = 5
_VALUES = (
    "null", "true", "0", "-1", "1e999", "NaN", "-Infinity", "2147483648", "9" * 400, "9" * 5000, '""', '" "', '"a b"',
    '"\\ud800"', '"\\u0000"', '"\\u001b[31m"', '"d1"', '"q1"', "[]", "{}", "[" * 900 + "]" * 900, "[" * 2000, '"é"',
)  # fmt: skip
_BYTES = (
    b"\0", b"\n", b"\r", b"\t", b" ", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b"{", b"}", b",", b":", b"\\",
    b"\xe2\x80\xa8", b"\x1b[2J", b"9" * 400, b"-", b"1e999", b"nan", b"\x1f\x8b",
)  # fmt: skip


def _corpus(number: int) -> str:
    return json.dumps({"_id": f"d{number}", "title": f"Title {number}", "text": f"What stands in {number}."})


def _query(number: int) -> str:
    return json.dumps({"_id": f"q{number}", "text": f"where is {number}"})


RECORDS = {
    "corpus": _corpus,
    "queries": _query,
    "queries.tsv": lambda number: f"q{number}\twhere is {number}",
    "qrels.tsv": lambda number: f"q{number}\td{number}\t{number % 3}",
    "qrels.trec": lambda number: f"q{number} 0 d{number} {number % 3}",
    "run": lambda number: f"q{number % 2} Q0 d{number} {number} {9 - number}.5 tag",
    "negatives": lambda number: f"q{number // 2} d{number // 2 + number % 2} {number}.5",  # an answer, a negative, …
    "negatives.jsonl": lambda number: json.dumps(
        {"query-id": f"q{number}", "negatives": [f"d{(number + 1) % LINES}", f"d{number}"], "scores": [number, 7.5]}
    ),
}


def _mutated(kind: str, random: np.random.Generator) -> bytes:
    """A file of a few records, one or two of which are changed: a value for another, or some bytes."""
    rows = [RECORDS[kind](number).encode() for number in range(LINES)]
    if kind == "qrels.tsv":
        rows.insert(0, b"query-id\tcorpus-id\tscore")
    for _ in range(int(random.integers(1, 3))):
        at = int(random.integers(len(rows)))
        row, how = rows[at], random.random()
        if how < 0.4:
            fields = [*re.finditer(rb'"(?:[^"\\]|\\.)*"|[\w.]+', row)]
            if fields:
                field = fields[int(random.integers(len(fields)))]
                value = _VALUES[int(random.integers(len(_VALUES)))]
                value = value if row.startswith(b"{") else value.strip('"')
                row = row[: field.start()] + value.encode() + row[field.end() :]
        elif how < 0.8:
            start = int(random.integers(len(row) + 1))
            row = row[:start] + _BYTES[int(random.integers(len(_BYTES)))] + row[start + int(random.integers(6)) :]
        elif how < 0.9:
            row = rows[int(random.integers(len(rows)))]  # a record twice
        else:
            row = row[: int(random.integers(len(row) + 1))]
        rows[at] = row
    return b"\n".join(rows) + b"\n"


def _lines(data: bytes) -> list[str]:
    """The lines that are not blank."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]


def _read_corpus(path):
    return {one.doc_id: (one.title, one.text) for one in read_beir(path.parent).corpus}


def _corpus_says(data):
    rows = [json.loads(line) for line in _lines(data)]
    return {str(row["_id"]): (row.get("title") or "", row["text"]) for row in rows}


def _read_queries(path):
    queries = Queries.load(path)
    return dict(zip(queries.ids, queries.texts, strict=True))


def _queries_say(data):
    lines = _lines(data)
    if lines[0].lstrip().startswith("{"):
        rows = [json.loads(line) for line in lines]
        return {str(row["_id"]): row["text"] for row in rows}
    if "\t" in lines[0]:
        return dict(line.split("\t", 1) for line in lines)
    numbered = enumerate(data.removeprefix(b"\xef\xbb\xbf").decode("utf-8").split("\n"), start=1)
    return {f"q{number}": line.rstrip("\r") for number, line in numbered if line.strip()}


def _read_qrels(path):
    return {query: dict(grades) for query, grades in Qrels.load(path).items()}


def _qrels_say(data):
    says: dict[str, dict[str, int]] = {}
    for line in _lines(data):
        fields = line.split()
        if [field.lower() for field in fields] not in (["query-id", "corpus-id", "score"],):
            says.setdefault(fields[0], {})[fields[-2]] = int(fields[-1])
    return says


def _read_run(path):
    return {query: {document: score for document, score in hits} for query, hits in Run.load(path).items()}


def _run_says(data):
    says: dict[str, dict[str, float]] = {}
    for line in _lines(data):
        query, _, document, _, score, _ = line.split(maxsplit=5)
        says.setdefault(query, {})[document] = float(score)
    return says


def _read_negatives(path):
    answers = Ragged(np.arange(LINES, dtype=np.int32), np.arange(LINES + 1))
    known = {f"d{number}": number for number in range(LINES)}
    table = negatives_from_file(path, [f"q{n}" for n in range(LINES)], answers, 3, find_document=known.get)
    assert table.teacher_scores is None or not np.isinf(table.teacher_scores).any()
    return [set(row[row >= 0].tolist()) for row in table.documents]


def _negatives_say(data):
    says = [set() for _ in range(LINES)]
    for line in _lines(data):
        if line.lstrip().startswith("{"):
            row = json.loads(line)
            query, documents = row["query-id"], row["negatives"]
        else:
            fields = line.split()
            query, documents = fields[0], [fields[2] if len(fields) == 6 else fields[1]]
        query = int(query[1:])
        says[query] |= {int(document[1:]) for document in documents} - {query}
    return says


READERS = {
    "corpus": (_read_corpus, _corpus_says, "corpus.jsonl"),
    "queries": (_read_queries, _queries_say, "queries.jsonl"),
    "queries.tsv": (_read_queries, _queries_say, "queries.tsv"),
    "qrels.tsv": (_read_qrels, _qrels_say, "test.tsv"),
    "qrels.trec": (_read_qrels, _qrels_say, "test.trec"),
    "run": (_read_run, _run_says, "run.trec"),
    "negatives": (_read_negatives, _negatives_say, "negatives.txt"),
    "negatives.jsonl": (_read_negatives, _negatives_say, "negatives.jsonl"),
}
# What is wrong with a file as a whole stands on no line.
_OF_NO_LINE = ("gzip", "no judgements", "no results", "no queries", "no negatives", "is empty", "scores negatives")


def _check(folder, kind: str, seed: int) -> bool:
    """Whether the reader took it."""
    read, says, name = READERS[kind]
    path = folder / name
    data = _mutated(kind, np.random.default_rng(seed))
    path.write_bytes(data)
    try:
        with within(20):
            found = read(path)
    except InputError as error:
        said = str(error)
        said.encode("utf-8")
        assert re.match(rf"{re.escape(str(path))}:\d+: ", said) or (
            str(path) in said and any(words in said for words in _OF_NO_LINE)
        ), (said, data)
        line = re.match(rf"{re.escape(str(path))}:(\d+): ", said)
        assert line is None or 1 <= int(line[1]) <= data.count(b"\n") + 1, (said, data)
        return False
    assert found == says(data), data
    if kind == "run":
        assert all(math.isfinite(score) for hits in found.values() for score in hits.values())
    return True


def _check_many(folder, kind: str, count: int) -> None:
    taken = sum(_check(folder, kind, seed) for seed in range(count))
    assert 0.01 * count < taken < 0.9 * count  # both happen


@pytest.mark.parametrize("kind", RECORDS)
def test_mutated_records(tmp_path, kind):
    _check_many(tmp_path, kind, 150)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECORDS)
def test_sixty_thousand_mutated_records(tmp_path, kind):
    _check_many(tmp_path, kind, 60_000 // len(RECORDS))

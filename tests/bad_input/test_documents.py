"""Documents, queries and judgements that are wrong: the recipe says where and loses nothing that was made before."""

import gzip
import json
import shutil

import pytest

from tests import small_data
from tests.bad_input.conftest import content, launch, recipe_flags, refused

GOOD = [json.dumps(row) for row in small_data.documents(12)]


def _put(line: str, at: int = 4) -> bytes:
    return "\n".join([*GOOD[: at - 1], line, *GOOD[at - 1 :]]).encode() + b"\n"


@pytest.mark.parametrize(
    ("corpus", "wanted"),
    [
        (b"", ["corpus.jsonl"]),
        (b"\n\n", ["corpus.jsonl"]),
        (_put('{"_id": "x", "title": "no end'), ["corpus.jsonl:4", "JSON"]),
        (_put('["x", "y"]'), ["corpus.jsonl:4", "JSON object"]),
        (_put('{"title": "nameless", "text": "t"}'), ["corpus.jsonl:4", "_id"]),
        (_put('{"_id": "", "text": "t"}'), ["corpus.jsonl:4", "without an id"]),
        (_put('{"_id": ["x"], "text": "t"}'), ["corpus.jsonl:4", "_id"]),
        (_put('{"_id": "a b", "text": "t"}'), ["corpus.jsonl:4", "'a b'"]),
        (_put('{"_id": "d0", "text": "again"}', at=5), ["corpus.jsonl:5", "'d0'"]),
        (_put('{"_id": "x", "text": 7}'), ["corpus.jsonl:4", "text"]),
        (_put("MARK").replace(b"MARK", b'{"_id": "x", "text": "caf\xe9"}'), ["corpus.jsonl:4", "UTF-8"]),
    ],
    ids=[
        "empty", "blank", "not JSON", "no object", "no _id", "empty _id", "list _id", "space in _id", "duplicate",
        "text no string", "not UTF-8",
    ],
)  # fmt: skip
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gz"])
def test_a_bad_corpus(finished, tmp_path, corpus, wanted, compressed):
    folder = tmp_path / "mine"
    folder.mkdir()
    if compressed:
        (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus))
        wanted = [word.replace("corpus.jsonl", "corpus.jsonl.gz") for word in wanted]
    else:
        (folder / "corpus.jsonl").write_bytes(corpus)
    before = content(finished / "runs")
    done = launch("recipe", *recipe_flags(folder, finished / "runs" / "mine"))
    refused(done, folder, *wanted)
    assert content(finished / "runs") == before


def test_a_truncated_gz(finished, tmp_path):
    data = gzip.compress("\n".join(GOOD).encode() * 50)
    (tmp_path / "corpus.jsonl.gz").write_bytes(data[: len(data) // 2])
    before = content(finished / "runs")
    refused(launch("recipe", *recipe_flags(tmp_path, finished / "runs" / "mine")), tmp_path / "corpus.jsonl.gz")
    assert content(finished / "runs") == before


def test_no_corpus(finished, tmp_path):
    last = refused(launch("recipe", *recipe_flags(tmp_path / "nowhere", finished / "runs" / "mine")))
    assert "nowhere" in last and "corpus.jsonl" in last


@pytest.mark.parametrize(
    ("file", "line", "wanted"),
    [
        ("queries.jsonl", '{"_id": "q1", "text": ""}', ["queries.jsonl:", "'q1'"]),
        ("queries.jsonl", '{"_id": "q0", "text": "again"}', ["queries.jsonl:", "'q0'"]),
        ("queries.jsonl", "{", ["queries.jsonl:", "JSON"]),
        ("qrels/train.tsv", "q0\tnobody\t1", ["train.tsv:", "'nobody'"]),
        ("qrels/train.tsv", "nobody\td0\t1", ["train.tsv:", "'nobody'"]),
        ("qrels/train.tsv", "q0\td0\tvery", ["train.tsv:", "very"]),
        ("qrels/train.tsv", "q0", ["train.tsv:", "q0"]),
    ],
)
def test_bad_queries_and_judgements(finished, tmp_path, file, line, wanted):
    folder = shutil.copytree(finished / "mine", tmp_path / "mine")
    lines = (folder / file).read_text().splitlines()
    number = len(lines) + 1
    (folder / file).write_text("\n".join([*lines, line]) + "\n")
    before = content(finished / "runs")
    done = launch("recipe", *recipe_flags(folder, finished / "runs" / "mine"))
    refused(done, folder / file, wanted[0] + str(number), *wanted[1:])
    assert content(finished / "runs") == before


@pytest.mark.slow  # tests/systems/dsi/test_dsi.py shows the same up to the examples
def test_without_queries_it_trains_on_pseudo_queries_and_says_so(tmp_path):
    small_data.write_beir(tmp_path / "mine", count=12, queries=False, compressed=True)
    done = launch("recipe", *recipe_flags(tmp_path / "mine", tmp_path / "runs" / "mine"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pseudo-queries alone" in done.stdout


_QRELS = "query-id\tcorpus-id\tscore\nq0\td0\t1\n"


@pytest.mark.parametrize(
    ("run", "qrels", "metrics", "wanted"),
    [
        ("q0 Q0 d0 1 0.5 x\nq0 Q0 d1 2\n", _QRELS, "RR@10", ["run.trec:2"]),
        ("q0 Q0 d0 1 high x\n", _QRELS, "RR@10", ["run.trec:1", "high"]),
        ("q0 Q0 d0 1 0.5 x\nq0 Q0 d0 2 0.4 x\n", _QRELS, "RR@10", ["run.trec:2", "d0"]),
        ("q0 Q0 d0 1 0.5 x\n", "q0\td0\n", "RR@10", ["qrels.tsv:1"]),
        ("q0 Q0 d0 1 0.5 x\n", _QRELS, "Goodness@10", ["Goodness@10"]),
        (None, _QRELS, "RR@10", ["run.trec"]),
        ("q0 Q0 d0 1 0.5 x\n", None, "RR@10", ["qrels.tsv"]),
    ],
)
def test_evaluate(tmp_path, run, qrels, metrics, wanted):
    for name, text in (("run.trec", run), ("qrels.tsv", qrels)):
        if text is not None:
            (tmp_path / name).write_text(text)
    output = tmp_path / "metrics.json"
    output.write_text("old")
    done = launch(
        "evaluate",
        f"--run={tmp_path / 'run.trec'}",
        f"--qrels={tmp_path / 'qrels.tsv'}",
        f"--metrics={metrics}",
        f"--output={output}",
    )
    refused(done, *wanted)
    assert output.read_text() == "old"

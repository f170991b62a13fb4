"""Queries: the three formats, and what is refused."""

import gzip

import hypothesis
import pytest
from hypothesis import strategies as st

from gr_jax import InputError
from gr_jax.corpus import Queries

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda t: not t.isspace())
ids = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=6)
queries = st.dictionaries(ids.filter(lambda i: i.split() == [i]), words, min_size=1, max_size=6).map(
    lambda rows: Queries(tuple(rows), tuple(rows.values()))
)


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(queries=queries, name=st.sampled_from(["q.jsonl", "q.jsonl.gz"]))
def test_saved_queries_load_equal(tmp_path, queries, name):
    queries.save(tmp_path / name)
    assert Queries.load(tmp_path / name) == queries


def test_three_formats(tmp_path):
    expected = Queries(("q1", "q2"), ("who is it?", "what 東京"))
    for name, content in {
        "json": '{"_id": "q1", "text": "who is it?", "metadata": {}}\r\n\n{"_id": "q2", "text": "what 東京"}',
        "tsv": "q1\twho is it?\nq2\twhat 東京\n",
        "plain": "\ufeffwho is it?\nwhat 東京\n",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert Queries.load(tmp_path / name) == expected, name
    (tmp_path / "numbers").write_text('{"_id": 7, "text": "x"}\n')
    assert Queries.load(tmp_path / "numbers").ids == ("7",)


def test_a_query_may_begin_with_a_bracket(tmp_path):
    (tmp_path / "plain").write_text("[START_ENT] EU [END_ENT] rejects German call\n")
    assert Queries.load(tmp_path / "plain").texts == ("[START_ENT] EU [END_ENT] rejects German call",)


def test_select_and_text():
    all_queries = Queries(("a", "b", "c"), ("one", "two", "three"))
    assert all_queries.select(["c", "a"]) == Queries(("c", "a"), ("three", "one"))
    assert all_queries.text("b") == "two" and "b" in all_queries and "d" not in all_queries and len(all_queries) == 3
    with pytest.raises(InputError, match="'d'"):
        all_queries.text("d")
    with pytest.raises(InputError, match="same id"):
        all_queries.select(["a", "a"])


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b'{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n', 2, "line 1 too"),
        (b'{"_id": "a", "text": ""}\n', 1, "blank query"),
        (b'{"_id": "a", "text": " \\t "}\n', 1, "blank query"),
        (b'{"_id": "a", "text": null}\n', 1, "no text"),
        (b'{"_id": "a", "text": 7}\n', 1, "text is not a string"),
        (b'{"_id": "a b", "text": "x"}\n', 1, "white space"),
        (b'{"_id": "", "text": "x"}\n', 1, "without an id"),
        (b'{"_id": true, "text": "x"}\n', 1, "_id is not a string"),
        (b'{"text": "x"}\n', 1, "no _id"),
        (b'\n\n{"_id": "a"', 3, "not JSON"),
        (b'{"_id": "a", "text": "x"}\n["a"]\n', 2, "not a JSON object"),
        (b'{"_id": "a", "text": "x\\ud800"}\n', 1, "Unicode"),
        (b'{"_id": "a", "text": "\xff"}\n', 1, "UTF-8"),
        (b"q1\tx\nq2 y\n", 2, "without a tab"),
        (b"q1\tx\nq2\t \n", 2, "blank query"),
        (b"", None, "no queries"),
        (b" \n \n", None, "no queries"),
        (b'{"a":' * 100_000, 1, "not JSON"),
        (b'[\n {"_id": "a", "text": "x"},\n', 1, "a JSON list.*one JSON object a line"),
        (b'[{"_id": "a", "text": "x"}]\n', 1, "a JSON list"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path, content, line, problem):
    for name, data in (("queries.jsonl", content), ("queries.jsonl.gz", gzip.compress(content))):
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(InputError, match=problem) as caught:
            Queries.load(file)
        assert (caught.value.file, caught.value.line) == (file, line)
        assert caught.value.remedy


def test_unreadable_files_are_refused(tmp_path):
    for name in ("missing", "", "a\0b"):
        with pytest.raises(InputError, match="cannot be read"):
            Queries.load(str(tmp_path / name) if name != "a\0b" else name)


@pytest.mark.parametrize(
    ("ids", "texts"), [(("a",), ("x", "y")), (("a", "a"), ("x", "y")), (("a",), (" ",)), (("a b",), ("x",))]
)
def test_bad_queries_are_refused(ids, texts):
    with pytest.raises(InputError):
        Queries(ids, texts)

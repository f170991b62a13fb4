"""MS MARCO's columns: worked examples, and what is refused."""

import gzip

import pytest

from gr_jax.corpus import Qrels, Queries
from gr_jax.corpus.ms_marco import read_collection, read_run
from gr_jax.errors import InputError


def test_passages_questions_and_judgements(tmp_path):
    (tmp_path / "collection.tsv.gz").write_bytes(gzip.compress("0\tThe first.\n7\tWith a\ttab, é\r\n".encode()))
    read = [(one.doc_id, one.title, one.text) for one in read_collection(tmp_path / "collection.tsv.gz")]
    assert read == [("0", "", "The first."), ("7", "", "With a\ttab, é")]
    (tmp_path / "queries.tsv").write_text("12\twhat is that\n")
    assert Queries.load(tmp_path / "queries.tsv").text("12") == "what is that"
    (tmp_path / "qrels.tsv").write_text("12\t0\t7\t1\n")
    assert Qrels.load(tmp_path / "qrels.tsv") == {"12": {"7": 1}}


def test_topics_and_judgements_of_a_track(shared_data):
    folder = shared_data / "formats" / "trec"
    queries, qrels = Queries.load(folder / "topics.dl19-passage.txt"), Qrels.load(folder / "qrels.dl19-passage.txt")
    assert queries.text("156493") == "do goldfish grow" and set(qrels) <= set(queries.ids)
    assert qrels["19335"]["1720395"] == 1 and qrels["19335"]["1017759"] == 0 and len(qrels) == 43


def test_a_run_has_ranks_for_scores(tmp_path):
    (tmp_path / "run.tsv").write_text("12\t7\t2\n12\t0\t1\n9\t7\t1\n")
    run = read_run(tmp_path / "run.tsv")
    assert run == {"12": [("0", 1.0), ("7", 0.5)], "9": [("7", 1.0)]}


@pytest.mark.parametrize("line", ["no tab", "\ttext", "1 2\ttext", "1\t", "1\t  "])
def test_passages_that_are_none(tmp_path, line):
    (tmp_path / "collection.tsv").write_text(f"0\tfine\n{line}\n")
    with pytest.raises(InputError, match=r"collection\.tsv:2: .*Write id<TAB>text"):
        list(read_collection(tmp_path / "collection.tsv"))


RUNS = ("1\t2", "1\t2\t0", "1\t2\tx", "1\t2\t²", "\t2\t1", "1\t\t1", "1\t2 3\t1", "1\t2\t" + "9" * 5000)


@pytest.mark.parametrize("line", RUNS)
def test_runs_that_are_none(tmp_path, line):
    (tmp_path / "run.tsv").write_text(f"1\t7\t1\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"run\.tsv:2: no question, passage and rank"):
        read_run(tmp_path / "run.tsv")
    (tmp_path / "run.tsv").write_text("1\t7\t1\n1\t7\t2\n")
    with pytest.raises(InputError, match=r"run\.tsv:2: this passage came before"):
        read_run(tmp_path / "run.tsv")
    (tmp_path / "run.tsv").write_text("\n")
    with pytest.raises(InputError, match="no answers"):
        read_run(tmp_path / "run.tsv")

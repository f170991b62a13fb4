"""Qrels and runs, against the readers and the measures of ir_measures."""

import gzip

import hypothesis
import ir_measures
import numpy as np
import pytest
from hypothesis import strategies as st
from ir_measures import RR, Success, nDCG

from gr_jax import InputError
from gr_jax.corpus import Qrels, Run
from gr_jax.corpus.trec import strictly_decreasing
from gr_jax.evaluation import evaluate

ids = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=5)
ids = ids.filter(lambda i: i.split() == [i])
qrels = st.dictionaries(ids, st.dictionaries(ids, st.integers(-2, 4), min_size=1, max_size=4), min_size=1, max_size=4)
# Few different scores, so that ties are common; neighbours in float64 that are one in float32; tiny and huge ones.
scores = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0 + 1e-12, -3.5, -3.5000000001, 1e-42, -1e-42, 1e30, -1e30]),
    st.floats(-1e37, 1e37),
)
runs = st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1, max_size=8), min_size=1, max_size=3).map(
    lambda results: Run({query_id: hits.items() for query_id, hits in results.items()})
)
quick = hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])


@quick
@hypothesis.given(judgements=qrels, name=st.sampled_from(["q.tsv", "q.tsv.gz", "q.txt", "q.qrels.gz"]))
def test_saved_qrels_load_equal(tmp_path, judgements, name):
    Qrels(judgements).save(tmp_path / name)
    assert Qrels.load(tmp_path / name) == judgements


@quick
@hypothesis.given(judgements=qrels)
def test_ir_measures_reads_the_same_qrels(tmp_path, judgements):
    file = tmp_path / "q.txt"
    Qrels(judgements).save(file)
    read = {}
    for qrel in ir_measures.read_trec_qrels(str(file)):
        read.setdefault(qrel.query_id, {})[qrel.doc_id] = qrel.relevance
    assert read == judgements


@quick
@hypothesis.given(run=runs)
def test_written_scores_fall_strictly_for_every_reader(tmp_path, run):
    file = tmp_path / "run.trec"
    run.save(file)
    read = {}
    for hit in ir_measures.read_trec_run(str(file)):
        read.setdefault(hit.query_id, []).append((hit.doc_id, np.float32(hit.score)))
    assert {q: [doc_id for doc_id, _ in hits] for q, hits in read.items()} == {
        q: [doc_id for doc_id, _ in run[q]] for q in run
    }
    for hits in read.values():
        values = [score for _, score in hits]
        assert all(low < high for high, low in zip(values, values[1:], strict=False))
    # What was strictly decreasing already is not changed by being written again.
    again = Run.load(file)
    again.save(tmp_path / "again.trec")
    assert (tmp_path / "again.trec").read_bytes() == file.read_bytes()


@quick
@hypothesis.given(hits=st.dictionaries(ids, st.sampled_from([0.5, 0.25]), min_size=2, max_size=8), data=st.data())
def test_trec_eval_ranks_a_written_run_as_we_do(tmp_path, hits, data):
    relevant = data.draw(st.sampled_from(sorted(hits)))
    run = Run({"q": hits.items()})
    run.save(tmp_path / "run.trec")
    rank = 1 + [doc_id for doc_id, _ in run["q"]].index(relevant)
    measured = ir_measures.calc_aggregate(
        [RR, Success @ 2, nDCG @ 3],
        [ir_measures.Qrel("q", relevant, 1)],
        ir_measures.read_trec_run(str(tmp_path / "run.trec")),
    )
    assert measured[RR] == pytest.approx(1 / rank)
    assert measured[Success @ 2] == (rank <= 2)
    assert measured[nDCG @ 3] == pytest.approx(1 / np.log2(1 + rank) if rank <= 3 else 0)


@hypothesis.given(values=st.lists(st.floats(-1e38, 1e38), max_size=30))
def test_lowered_scores_stay_near(values):
    values.sort(reverse=True)
    written = strictly_decreasing(values)
    assert all(np.float32(value) == value for value in written)
    for value, low in zip(values, written, strict=True):
        assert low <= np.float32(value) or abs(value) < 1e-37
        assert abs(low - value) <= 40 * max(np.spacing(np.float32(abs(value))), 1.2e-38)


def test_the_best_comes_first_and_equal_scores_keep_their_order():
    run = Run({"q": [("low", 1), ("b", 2), ("a", 2), ("top", 3)]})
    assert run["q"] == [("top", 3.0), ("b", 2.0), ("a", 2.0), ("low", 1.0)]
    assert len(run) == 1 and list(run) == ["q"]


def test_foreign_files(shared_data):
    folder = shared_data / "formats" / "trec"
    run, file = Run.load(folder / "ranx_results.test"), str(folder / "ranx_results.test")
    read = {}
    for hit in ir_measures.read_trec_run(file):
        read.setdefault(hit.query_id, {})[hit.doc_id] = hit.score
    assert {query_id: dict(hits) for query_id, hits in run.items()} == read
    for hits in run.values():
        assert all(high >= low for (_, high), (_, low) in zip(hits, hits[1:], strict=False))
    for name in ("ranx_qrels.test", "qrels.dl19-passage.txt"):
        read = {}
        for qrel in ir_measures.read_trec_qrels(str(folder / name)):
            read.setdefault(qrel.query_id, {})[qrel.doc_id] = qrel.relevance
        assert Qrels.load(folder / name) == read


def test_the_later_of_two_judgements_counts_as_for_ir_measures(tmp_path):
    file = tmp_path / "q.txt"
    file.write_text("q 0 d 2\nq 0 d 1\n")
    assert Qrels.load(file) == {"q": {"d": 1}}
    (qrels,) = [list(ir_measures.read_trec_qrels(str(file)))]
    run = [ir_measures.ScoredDoc("q", "d", 1.0)]
    assert ir_measures.calc_aggregate([Success(rel=2) @ 1], qrels, run)[Success(rel=2) @ 1] == 0


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"q 0 d 1\nq 0 d\n", 2, "3 fields where 4"),
        (b"query-id\tcorpus-id\tscore\nq\td\n", 2, "2 fields where 3"),
        (b"q 0 d high\n", 1, "grade is no integer"),
        (b"q 0 d 1.5\n", 1, "grade is no integer"),
        (b"q 0 d 1_0\n", 1, "grade is no integer"),
        ("q 0 d ٣\n".encode(), 1, "grade is no integer"),
        (b"q\n", 1, "1 fields"),
        (b"", None, "no judgements"),
        (b"query-id\tcorpus-id\tscore\n", None, "no judgements"),
        (b"q 0 \xff 1\n", 1, "UTF-8"),
    ],
)
def test_bad_qrels_are_refused_with_their_line(tmp_path, content, line, problem):
    file = tmp_path / "qrels"
    file.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        Qrels.load(file)
    assert (caught.value.file, caught.value.line) == (file, line)


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"q Q0 d 1 1.0 tag\nq Q0 d 2\n", 2, "4 fields"),
        (b"q Q0 d 1 best tag\n", 1, "score is no finite number"),
        (b"q Q0 d 1 nan tag\n", 1, "score is no finite number"),
        (b"q Q0 d 1 1_0.5 tag\n", 1, "score is no finite number"),
        ("q Q0 d 1 ٣ tag\n".encode(), 1, "score is no finite number"),
        (b"q Q0 d 1 -inf tag\n", 1, "score is no finite number"),
        (b"q Q0 d 1 2 tag\nq Q0 e 2 1 tag\nq Q0 d 3 0 tag\n", 3, "already retrieved"),
        (b"", None, "no results"),
    ],
)
def test_bad_runs_are_refused_with_their_line(tmp_path, content, line, problem):
    file = tmp_path / "run"
    file.write_bytes(content)
    with pytest.raises(InputError, match=problem) as caught:
        Run.load(file)
    assert (caught.value.file, caught.value.line) == (file, line)


@pytest.mark.parametrize(
    "results",
    [
        {"q": [("d", float("nan"))]},
        {"q": [("d", float("-inf"))]},
        {"q": [("d", 1e39)]},
        {"q": [("d", 1), ("d", 2)]},
        {"q": [("d d", 1)]},
        {"q q": [("d", 1)]},
    ],
)
def test_runs_that_no_file_could_hold_are_refused(results):
    with pytest.raises(InputError):
        Run(results)


def test_bad_judgements_and_tags_are_refused(tmp_path):
    for judgements in ({"q": {"d": 0.5}}, {"q": {"d d": 1}}, {"": {"d": 1}}):
        with pytest.raises(InputError):
            Qrels(judgements)
    for make, given in ((Qrels, {"q1": {7: 1}}), (Qrels, {7: {"d": 1}}), (Run, {"q": [(7, 1.0)]}), (Run, {7: []})):
        with pytest.raises(InputError, match="id that is no text"):
            make(given)
    with pytest.raises(InputError, match="one word"):
        Run({"q": [("d", 1)]}).save(tmp_path / "run", tag="my system")


def test_qrels_cannot_be_changed_from_outside():
    grades = {"d": 1}
    qrels = Qrels({"q": grades})
    grades["e"] = 1
    assert qrels == {"q": {"d": 1}} and qrels.num_pairs == 1
    with pytest.raises(TypeError):
        qrels["q"]["e"] = 1


@quick
@hypothesis.given(content=st.binary(max_size=80), zipped=st.booleans())
def test_any_bytes_are_read_or_refused(tmp_path, content, zipped):
    file = tmp_path / "file"
    file.write_bytes(gzip.compress(content)[: 20 + len(content)] if zipped else content)
    for reader in (Qrels, Run):
        try:
            reader.load(file)
        except InputError as error:
            assert error.file == file


@pytest.mark.parametrize("grade", [2**31, -(2**31), 10**7, 10**400])
def test_grades_that_tools_cannot_count_with_are_refused(tmp_path, grade):
    """From 2³¹ on trec_eval takes them for others, and below it takes eight bytes for each grade up to the highest."""
    with pytest.raises(InputError, match="a grade beyond"):
        Qrels({"q": {"d": grade}})
    (tmp_path / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\td\t1\nq\te\t{grade}\n")
    with pytest.raises(InputError, match=r"test.tsv:3: a grade beyond"):
        Qrels.load(tmp_path / "test.tsv")


def test_high_grades_are_measured_by_the_formula():
    judged = {"q": {"a": 1_000_000, "b": 3, "c": 1}}
    found = evaluate({"q": [("b", 3.0), ("a", 2.0)]}, judged, ["nDCG@10"])["nDCG@10"]
    ideal = 1_000_000 + 3 / np.log2(3) + 1 / np.log2(4)
    assert found == pytest.approx((3 + 1_000_000 / np.log2(3)) / ideal)
    with pytest.raises(InputError, match="a grade beyond"):
        evaluate({"q": [("a", 1.0)]}, {"q": {"a": 2**31}})

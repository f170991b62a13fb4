"""BEIR folders: plain and gzipped, whole and in part, and what is refused."""

import contextlib
import gzip
import json
import os
import pathlib
import shutil
import tempfile

import hypothesis
import pytest
from hypothesis import strategies as st

from gr_jax import InputError
from gr_jax.corpus import Corpus, Dataset, Queries, read_beir
from gr_jax.stages.sources import BeirFolder

DOCUMENTS = [
    {"_id": "d1", "title": "Rhine", "text": "A river in Europe."},
    {"_id": "d2", "text": "No title here."},
    {"_id": "d3", "title": None, "text": "Ünïcode 東京"},
]
QUERIES = [{"_id": "q1", "text": "which river", "metadata": {}}, {"_id": "q2", "text": "tokyo"}]
TRAIN = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td3\t2\nq2\td1\t0\n"
TEST = "query-id\tcorpus-id\tscore\nq2\td2\t1\n"


def write(folder, files, zipped=False):
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        path = folder / (f"{name}.gz" if zipped else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data, mtime=0) if zipped else data)


def json_lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


FILES = {
    "corpus.jsonl": json_lines(DOCUMENTS),
    "queries.jsonl": json_lines(QUERIES),
    "qrels/train.tsv": TRAIN,
    "qrels/a_test.tsv": TEST,
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_folders_read_plain_gzipped_and_stored(tmp_path, zipped, stored):
    write(tmp_path / "my_data", FILES, zipped)
    dataset = read_beir(tmp_path / "my_data", store=tmp_path / "store" if stored else None)
    assert [(d.doc_id, d.title, d.text) for d in dataset.corpus] == [
        (record["_id"], record.get("title") or "", record["text"]) for record in DOCUMENTS
    ]
    assert dataset.queries.ids == ("q1", "q2") and dataset.queries.text("q2") == "tokyo"
    assert list(dataset.qrels) == ["train", "a_test"]
    assert dataset.qrels["train"] == {"q1": {"d1": 1}, "q2": {"d3": 2, "d1": 0}}
    assert dataset.fingerprint == {
        "corpus": dataset.corpus.fingerprint,
        "documents": 3,
        "splits": {"train": [2, 3], "a_test": [1, 1]},
    }
    assert json.loads(json.dumps(dataset.fingerprint)) == dataset.fingerprint
    assert dataset.summary().startswith("my_data: 3 documents")
    assert dataset.split_queries("a_test").texts == ("tokyo",)
    with pytest.raises(InputError, match="train, a_test"):
        dataset.split("dev")


def test_only_the_corpus_is_required(tmp_path):
    write(tmp_path, {"corpus.jsonl": FILES["corpus.jsonl"]})
    dataset = read_beir(tmp_path)
    assert len(dataset.corpus) == 3 and len(dataset.queries) == 0 and dataset.qrels == {}
    assert "no judged queries" in dataset.summary()


def test_a_store_is_used_again_until_the_file_changes_or_the_store_is_damaged(tmp_path):
    folder, store = tmp_path / "data", tmp_path / "store"
    write(folder, FILES)
    read_beir(folder, store=store)
    made = (store / "manifest.json").stat().st_mtime_ns
    assert len(read_beir(folder, store=store).corpus) == 3
    assert (store / "manifest.json").stat().st_mtime_ns == made
    # A letter of a stored document, of the same length.
    blob = (store / "texts.blob").read_bytes()
    (store / "texts.blob").write_bytes(blob.replace(b"river", b"rover"))
    assert read_beir(folder, store=store).corpus[0].text == "A river in Europe."
    write(folder, {"corpus.jsonl": FILES["corpus.jsonl"].replace("river", "rover")})
    assert read_beir(folder, store=store).corpus[0].text == "A rover in Europe."
    assert len(read_beir(folder, store=store, subset=["d1", "d2"]).corpus) == 2


def test_a_subset_keeps_its_documents_and_their_judgements(tmp_path):
    write(tmp_path, FILES)
    write(tmp_path, {"ids": "d3\nd2\n"}, zipped=True)
    for subset in (["d3", "d2"], {"d2", "d3"}, tmp_path / "ids.gz"):
        dataset = read_beir(tmp_path, subset=subset)
        assert list(dataset.corpus.doc_ids) == ["d2", "d3"]
        # q1 lost its only relevant document; q2 lost one that is judged not relevant.
        assert dataset.qrels["train"] == {"q2": {"d3": 2}}
        assert dataset.qrels["a_test"] == {"q2": {"d2": 1}}
    with pytest.raises(InputError, match="'d9'"):
        read_beir(tmp_path, subset=["d1", "d9"])
    with pytest.raises(InputError, match="empty"):
        read_beir(tmp_path, subset=[])


def test_datasets_save_and_load(tmp_path):
    write(tmp_path / "data", FILES)
    for dataset in (
        read_beir(tmp_path / "data", transform="split_identifiers", name="mine"),
        Dataset(Corpus.from_documents(read_beir(tmp_path / "data").corpus), name="bare"),
    ):
        dataset.save(tmp_path / "saved")
        loaded = Dataset.load(tmp_path / "saved")
        assert list(loaded.corpus) == list(dataset.corpus)
        assert (loaded.queries, loaded.qrels, loaded.name) == (dataset.queries, dataset.qrels, dataset.name)
        assert (loaded.transform, loaded.fingerprint) == (dataset.transform, dataset.fingerprint)


def test_transforms_are_applied_when_texts_are_asked_for(tmp_path):
    record = {"_id": "d1", "title": "jax.lax.scan", "text": "see fooBar"}
    files = {"corpus.jsonl": json_lines([record]), "queries.jsonl": '{"_id": "q", "text": "np_sum"}\n'}
    write(tmp_path, files)
    dataset = read_beir(tmp_path, transform="split_identifiers")
    assert dataset.corpus[0].title == "jax.lax.scan"
    assert list(dataset.document_texts()) == dataset.document_texts()[:] == ["jax lax scan see foo Bar"]
    assert dataset.query_texts() == dataset.query_texts(["q"]) == ["np sum"]
    assert read_beir(tmp_path).document_texts()[0] == "jax.lax.scan see fooBar"
    with pytest.raises(InputError, match="split_identifiers"):
        read_beir(tmp_path, transform="stem")


@pytest.mark.parametrize(
    ("file", "content", "line", "problem"),
    [
        ("corpus.jsonl", b"", None, "empty"),
        ("corpus.jsonl", b"\n\n", None, "empty"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x"}\nno json\n', 2, "not JSON"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x"}\n{"_id": "d2", "text": "y"', 2, "not JSON"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "x"}\n\n{"_id": "d1", "text": "y"}\n', 3, "line 1 too"),
        ("corpus.jsonl", b'{"_id": 1, "text": "x"}\n{"_id": "1", "text": "y"}\n', 2, "line 1 too"),
        ("corpus.jsonl", b'{"title": "no id", "text": "x"}\n', 1, "no _id"),
        ("corpus.jsonl", b'{"_id": null, "text": "x"}\n', 1, "no _id"),
        ("corpus.jsonl", b'{"_id": ["d1"], "text": "x"}\n', 1, "_id is not a string"),
        ("corpus.jsonl", b'{"_id": "d 1", "text": "x"}\n', 1, "white space"),
        ("corpus.jsonl", b'{"_id": "", "text": "x"}\n', 1, "without an id"),
        ("corpus.jsonl", b'{"_id": "d1"}\n', 1, "no text"),
        ("corpus.jsonl", b'{"_id": "d1", "text": 3}\n', 1, "text is not a string"),
        ("corpus.jsonl", b'{"_id": "d1", "title": [], "text": ""}\n', 1, "title is not a string"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "caf\xe9"}\n', 1, "not UTF-8"),
        ("corpus.jsonl", b'{"_id": "d1", "text": "\\udc00"}\n', 1, "Unicode"),
        ("corpus.jsonl", b"[1]\n", 1, "not a JSON object"),
        ("queries.jsonl", b'{"_id": "q1", "text": " "}\n', 1, "blank query"),
        ("queries.jsonl", b'{"_id": "q1", "text": "x"}\n{"_id": "q1", "text": "y"}\n', 2, "line 1 too"),
        ("qrels/train.tsv", b"query-id\tcorpus-id\tscore\nq1\td1\t1\nq9\td1\t1\n", 3, "query that is not there"),
        ("qrels/train.tsv", b"query-id\tcorpus-id\tscore\nq1\td9\t1\n", 2, "document that is not there"),
        ("qrels/train.tsv", b"query-id\tcorpus-id\tscore\nq1\td1\tx\n", 2, "no integer"),
        ("qrels/train.tsv", b"", None, "no judgements"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_bad_files_are_refused_with_file_line_and_remedy(tmp_path, file, content, line, problem, zipped):
    write(tmp_path, FILES | {file: content}, zipped)
    with pytest.raises(InputError, match=problem) as caught:
        read_beir(tmp_path)
    path = tmp_path / (f"{file}.gz" if zipped else file)
    assert (str(caught.value.file), caught.value.line) == (str(path), line)
    assert caught.value.remedy


def test_a_judgement_of_a_document_that_is_not_there_is_refused_in_subsets_too(tmp_path):
    write(tmp_path, FILES | {"qrels/a_test.tsv": "query-id\tcorpus-id\tscore\nq2\td2\t1\nq2\tnone\t1\n"})
    with pytest.raises(InputError, match="'none'") as caught:
        read_beir(tmp_path, subset=["d1"])
    assert caught.value.line == 3


def test_judgements_without_queries_and_folders_without_corpus_are_refused(tmp_path):
    with pytest.raises(InputError, match="corpus.jsonl"):
        read_beir(tmp_path / "nothing")
    write(tmp_path, {name: FILES[name] for name in ("corpus.jsonl", "qrels/train.tsv")})
    with pytest.raises(InputError, match="queries.jsonl"):
        read_beir(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 10, -9, -1])
def test_a_truncated_gzip_file_is_refused(tmp_path, keep):
    write(tmp_path, FILES, zipped=True)
    for name in FILES:
        path = tmp_path / f"{name}.gz"
        whole = path.read_bytes()
        path.write_bytes(whole[:keep])
        with pytest.raises(InputError) as caught:
            read_beir(tmp_path)
        assert str(caught.value.file) == str(path)
        path.write_bytes(whole)


damage = st.tuples(
    st.sampled_from(sorted(FILES)),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["flip", "cut", "insert", "delete"]),
    st.binary(min_size=1, max_size=6),
)


@pytest.mark.parametrize("zipped", [False, True])
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], max_examples=150)
@hypothesis.given(damages=st.lists(damage, min_size=1, max_size=3))
def test_damaged_folders_are_read_or_refused(tmp_path, zipped, damages):
    write(tmp_path, FILES, zipped)
    for name, where, how, new in damages:
        path = tmp_path / (f"{name}.gz" if zipped else name)
        content = bytearray(path.read_bytes())
        place = int(where * len(content))
        match how:
            case "flip":
                content[place : place + 1] = bytes([content[place] ^ (new[0] or 1)]) if content else b""
            case "cut":
                del content[place:]
            case "insert":
                content[place:place] = new
            case "delete":
                del content[place : place + len(new)]
        path.write_bytes(content)
    try:
        dataset = read_beir(tmp_path)
    except InputError:
        return
    if zipped:
        # gzip's checksum: what can still be read is what was written.
        whole = tmp_path / "whole"
        write(whole, FILES, zipped=True)
        expected = read_beir(whole)
        assert list(dataset.corpus) == list(expected.corpus)
        assert (dataset.queries, dataset.qrels) == (expected.queries, expected.qrels)
    assert all(query_id in dataset.queries for qrels in dataset.qrels.values() for query_id in qrels)


def test_real_data_has_its_documented_sizes(shared_data):
    squad = read_beir(shared_data / "squad_dev")
    assert (len(squad.corpus), len(squad.queries)) == (2067, 10570)
    assert {split: len(qrels) for split, qrels in squad.qrels.items()} == {
        "train": 5143,
        "dev": 1451,
        "test": 1601,
        "test_unseen": 2375,
    }
    web = read_beir(shared_data / "nq_boolq_dev")
    assert len(web.corpus) == 5966
    assert {split: len(qrels) for split, qrels in web.qrels.items()} == {"train": 4689, "dev": 657, "test": 913}


def test_a_subset_of_a_large_folder(shared_data):
    folder = shared_data / "wiki_intro_179k"
    dataset = read_beir(folder, subset=folder / "subsets" / "10k.ids.gz")
    assert len(dataset.corpus) == 10_000
    assert {split: len(qrels) for split, qrels in dataset.qrels.items()} == {
        "train": 3283,
        "dev": 454,
        "test": 938,
        "test_dbpedia": 361,
    }


@contextlib.contextmanager
def _nobody():
    """Somebody who may not read what others keep for themselves."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels", "qrels/train.tsv"])
@pytest.mark.parametrize("how", ["unreadable", "a pipe", "a link to itself", "another kind"])
def test_what_cannot_be_read_is_named_and_never_left_out(name, how):
    with tempfile.TemporaryDirectory() as root:  # `tmp_path` lies in folders that only their owner may enter
        os.chmod(root, 0o755)
        folder = pathlib.Path(root) / "mine"
        write(folder, FILES)
        path = folder / name
        if how == "unreadable":
            path.chmod(0)
        else:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if how == "a pipe":
            os.mkfifo(path)
        elif how == "a link to itself":
            path.symlink_to(path)
        elif how == "another kind":
            path.write_text("") if name == "qrels" else path.mkdir()
        for read in (read_beir, lambda folder: BeirFolder(str(folder)).identity()):
            with _nobody(), pytest.raises(InputError) as caught:
                read(folder)
            assert str(path) in str(caught.value)
        if path.is_dir():
            path.chmod(0o755)


@pytest.mark.parametrize("zipped", [False, True])
def test_blank_lines_are_counted_and_passed_over(tmp_path, zipped):
    blank = ("\n" * 50 + " \t\r\n" + "\r\n" + "\u3000\n") * 20
    rows = [json.dumps(row) for row in DOCUMENTS]
    write(tmp_path / "good", {"corpus.jsonl": blank + f"\n{blank}".join(rows) + "\n" + blank}, zipped)
    assert list(read_beir(tmp_path / "good").corpus.doc_ids) == ["d1", "d2", "d3"]
    write(tmp_path / "bad", {"corpus.jsonl": rows[0] + "\n" + blank + "{\n"}, zipped)
    with pytest.raises(InputError, match=rf":{2 + blank.count(chr(10))}: not JSON"):
        read_beir(tmp_path / "bad")


def test_a_pipe_is_read_where_somebody_writes_into_it(tmp_path):
    """`--queries=<(zcat queries.gz)`; one that nobody writes into is empty."""
    read, into = os.pipe()
    os.write(into, gzip.compress(b'{"_id": "q1", "text": "which river"}\n'))
    os.close(into)
    assert Queries.load(f"/dev/fd/{read}").ids == ("q1",)
    os.close(read)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="holds no queries"):
        Queries.load(tmp_path / "pipe")

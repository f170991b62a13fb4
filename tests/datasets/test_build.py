"""Data sets built of the made-up raw files of every kind: what is in them, faults, and what is refused."""

import dataclasses
import gzip
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax import corpus
from gr_jax.corpus import nq320k
from gr_jax.corpus.documents import Document, Identity
from gr_jax.datasets import KINDS, About, convert, folder, nq_build, raw, samples
from gr_jax.datasets.kinds import beside_published
from gr_jax.errors import InputError


def build(name, where, output, variant=None, processes=1):
    kind = KINDS[name]
    usual = "page" if name == "nq320k" else next(iter(kind.variants))
    return kind.build(where, output, variant or usual, processes, False)


def contents(where):
    return {path.relative_to(where).as_posix(): path.read_bytes() for path in where.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Name → the folder of its raw files."""
    folders = {}
    for name, kind in KINDS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        kind.sample(folders[name])
    return folders


@pytest.mark.parametrize("name", KINDS)
def test_a_sample_is_built_and_read(made, tmp_path, name):
    about = build(name, made[name], tmp_path / "built")
    read = corpus.read_beir(tmp_path / "built")
    assert about == About.load(tmp_path / "built") and folder.verify(tmp_path / "built") == []
    assert about.fingerprint == read.corpus.fingerprint and about.documents == len(read.corpus)
    assert about.questions == {split: len(qrels) for split, qrels in read.qrels.items()}
    assert about.questions["train"] == 2 * samples.TOWNS
    # Every question is judged on a page that answers it.
    answers = {f"{q}": a for town in samples.towns() for q, a in town.questions}
    titles = {}
    for qrels in read.qrels.values():
        for query, grades in qrels.items():
            question = read.queries.text(query)
            for page in grades:
                document = read.corpus[read.corpus.index_of(page)]
                assert answers[question] in document.text
                titles[question] = document.title
    if name != "ms_marco":
        assert all(title.lower() in question for question, title in titles.items())


def test_what_is_published_stands_beside(made, tmp_path):
    about = build("ms_marco", made["ms_marco"], tmp_path / "built")
    assert beside_published(about)[0] == "documents: 120 (published: 8,841,823)"
    whole = dataclasses.replace(about, documents=8_841_823, questions={"dev": 6_980})
    assert beside_published(whole) == ["documents: 8,841,823 (as published)", "questions of dev: 6,980 (as published)"]


def test_grades_of_tracks_and_questions_without_judgement(made, tmp_path):
    where = tmp_path / "raw"
    samples.ms_marco(where)
    with open(where / "queries.train.tsv", "a") as file:
        file.write("999999\tnobody judged this\n")
    about = build("ms_marco", where, tmp_path / "built")
    read = corpus.read_beir(tmp_path / "built")
    assert {grade for grades in read.split("dl19").values() for grade in grades.values()} == {3}
    assert about.notes["questions without a judgement, which were left out"] == 1
    assert "999999" not in read.queries


def test_dpr_s_first_positive_has_the_higher_grade(tmp_path):
    samples.dpr(tmp_path / "raw")
    file = tmp_path / "raw" / "biencoder-nq-dev.json"
    records = json.loads(file.read_text())
    records[0]["positive_ctxs"].append({**records[0]["positive_ctxs"][0], "passage_id": "7"})
    records[1]["positive_ctxs"] = []
    file.write_text(json.dumps(records))
    about = build("dpr", tmp_path / "raw", tmp_path / "built")
    graded = corpus.read_beir(tmp_path / "built").split("dev")
    assert graded["dev0"] == {records[0]["positive_ctxs"][0]["passage_id"]: 2, "7": 1} and "dev1" not in graded
    assert about.notes["questions of train and dev without a positive passage, which were left out"] == 1
    records[2]["positive_ctxs"][0]["passage_id"] = "1000000"
    file.write_text(json.dumps(records))
    with pytest.raises(InputError, match=r"biencoder-nq-dev\.json: .* not there.*1000000"):
        build("dpr", tmp_path / "raw", tmp_path / "built")
    del records[2]["positive_ctxs"][0]["passage_id"]
    file.write_text(json.dumps(records))
    with pytest.raises(InputError, match=r"biencoder-nq-dev\.json: a positive passage without an id.*passage_id"):
        build("dpr", tmp_path / "raw", tmp_path / "built")


def test_evidence_of_kilt(tmp_path):
    samples.kilt(tmp_path / "raw")
    file = tmp_path / "raw" / "nq-train-kilt.jsonl"
    records = list(map(json.loads, file.read_text().splitlines()))
    records[0]["output"][0]["provenance"][0]["bleu_score"] = 0.5  # not above it
    records[1]["output"] = [{"answer": "x"}]
    records[2]["output"][0]["provenance"][0]["wikipedia_id"] = "77777"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    about = build("kilt", tmp_path / "raw", tmp_path / "built")
    assert about.questions["train"] == len(records) - 3
    assert list(about.notes.values()) == [2, 1, 1]
    read = list(map(json.loads, (tmp_path / "built" / "queries.jsonl").read_text().splitlines()))
    assert read[0]["metadata"]["evidence"] and read[0]["metadata"]["answers"]


def test_triviaqa_takes_its_questions_from_elsewhere(tmp_path):
    samples.kilt(tmp_path / "raw")
    asked = []
    for split in ("train", "dev"):
        file = tmp_path / "raw" / f"nq-{split}-kilt.jsonl"
        records = list(map(json.loads, file.read_text().splitlines()))
        asked += [{"QuestionId": one["id"], "Question": one.pop("input")} for one in records]
        file.unlink()
        text = "".join(f"{json.dumps(one)}\n" for one in records)
        (tmp_path / "raw" / f"triviaqa-{split}_id-kilt.jsonl").write_text(text)
    with pytest.raises(InputError, match="TriviaQA's own questions"):
        build("kilt", tmp_path / "raw", tmp_path / "built", "triviaqa")
    (tmp_path / "raw" / "unfiltered-web-train.json").write_text(json.dumps({"Data": asked}))
    assert build("kilt", tmp_path / "raw", tmp_path / "built", "triviaqa").questions["dev"] == samples.DEV


def test_kilt_s_ids_with_white_space_are_kept_beside_their_keys(tmp_path):
    samples.kilt(tmp_path / "raw")
    file = tmp_path / "raw" / "nq-dev-kilt.jsonl"
    file.write_text(file.read_text().replace('"dev-0"', '"dev CRICKET:0"'))
    build("kilt", tmp_path / "raw", tmp_path / "built")
    assert "dev_CRICKET:0" in corpus.read_beir(tmp_path / "built").split("dev")
    read = map(json.loads, (tmp_path / "built" / "queries.jsonl").read_text().splitlines())
    ids = {one["_id"]: one["metadata"].get("id") for one in read}
    assert ids["dev_CRICKET:0"] == "dev CRICKET:0" and ids["dev-1"] is None


@pytest.mark.parametrize("name", [name for name in KINDS if name != "nq320k"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_missing_or_cut_file_is_named(made, tmp_path, name, zipped):
    where = tmp_path / "raw"
    KINDS[name].sample(where)
    for file in sorted(where.iterdir()):
        whole = file.read_bytes()
        file.unlink()
        if file.name not in ("2019qrels-pass.txt", "msmarco-test2019-queries.tsv", "nq-test.qa.csv"):
            with pytest.raises(InputError, match=": missing"):
                build(name, where, tmp_path / "built")
        beside = file.with_name(f"{file.name}.gz")
        beside.write_bytes(gzip.compress(whole)[:-20] if zipped else gzip.compress(whole))
        if zipped:
            with pytest.raises(InputError, match="truncated or damaged gzip"):
                build(name, where, tmp_path / "built")
            beside.write_bytes(gzip.compress(whole))
    assert build(name, where, tmp_path / "built") == dataclasses.replace(
        build(name, made[name], tmp_path / "plain"), raw={f"{n}.gz": (where / f"{n}.gz").stat().st_size
                                                          for n in (path.name for path in made[name].iterdir())}
    )  # fmt: skip


def test_raw_files_beside_published_checksums(tmp_path, monkeypatch):
    files = [tmp_path / name for name in ("a.tsv", "b.tsv", "c.tsv", "d.tsv")]
    for file in files:
        file.write_text("some text\n")
    md5 = "4d93d51945b88325c213640ef59fc50b"  # of "some text" in a line, as md5sum says it
    known = {
        "a.tsv": {"bytes": 10, "md5": md5},
        "b.tsv": {"bytes": 11, "md5": md5},
        "c.tsv": {"bytes": 10, "md5": md5[::-1]},
    }
    monkeypatch.setattr(raw, "published", lambda: known)
    said = raw.verify(files, show=False)
    assert said["a.tsv"] == "as published" and said["d.tsv"].startswith("no checksum")
    assert said["b.tsv"].startswith("DIFFERS: 10 bytes") and said["c.tsv"].startswith("DIFFERS: of the same size")


def test_published_checksums_are_whole():
    known = raw.published()
    assert sum(name.startswith("nq-train-") for name in known) == 50
    assert all(len(one["md5"]) == 32 and one["bytes"] > 0 for one in known.values())


def test_what_changed_since_is_told(made, tmp_path):
    where = tmp_path / "built"
    build("ms_marco", made["ms_marco"], where)
    (where / "qrels" / "mine.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with open(where / "corpus.jsonl", "a") as file:
        file.write("\n")
    data = bytearray((where / "queries.jsonl").read_bytes())
    data[20] ^= 1
    (where / "queries.jsonl").write_bytes(bytes(data))
    (where / "qrels" / "dev.tsv").unlink()
    said = " ".join(folder.verify(where))
    for part in ("corpus.jsonl has", "queries.jsonl has other content", "dev.tsv is missing", "mine.tsv is not of"):
        assert part in said
    with pytest.raises(InputError, match="does not say which data set"):
        folder.verify(tmp_path)


@pytest.mark.parametrize("name", KINDS)
def test_a_build_that_stopped_is_no_data_set_and_goes_on(made, tmp_path, monkeypatch, name):
    """Wherever it stops: at any file that is written."""
    whole = build(name, made[name], tmp_path / "whole")
    for stop in (0, 1, 3, 5, 11):
        where, written = tmp_path / f"cut{stop}", []

        def failing(function, stop=stop, written=written):
            def stopped(*arguments, **more):
                written.append(arguments[0])
                if len(written) > stop:
                    raise KeyboardInterrupt
                return function(*arguments, **more)

            return stopped

        with monkeypatch.context() as patched:
            for function in ("write_json", "write_bytes"):
                patched.setattr(f"gr_jax.storage.{function}", failing(getattr(convert.storage, function)))
            try:
                build(name, made[name], where)
            except KeyboardInterrupt:
                if (where / ".building.json").exists():
                    with pytest.raises(InputError, match="not finished"):
                        corpus.read_beir(where)
                assert not (where / "about.json").exists()
            else:
                assert stop > 3  # all that is written was written
        assert build(name, made[name], where) == whole and folder.verify(where) == []
        assert contents(where) == contents(tmp_path / "whole")


def test_another_build_replaces_nothing_and_the_same_replaces_all(made, tmp_path):
    where = tmp_path / "built"
    build("kilt", made["kilt"], where)
    with pytest.raises(InputError, match=r"holds kilt \(nq\), which ms_marco \(passages\) would replace"):
        build("ms_marco", made["ms_marco"], where)
    assert folder.verify(where) == []
    build("kilt", made["kilt"], where)
    assert contents(where) == contents_of("kilt", made, tmp_path)
    broken = tmp_path / "raw"
    samples.kilt(broken)
    (broken / "nq-dev-kilt.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"nq-dev-kilt\.jsonl:1"):
        build("kilt", broken, where)
    with pytest.raises(InputError, match="does not say"):
        folder.verify(where)


def test_a_split_of_a_build_that_failed_does_not_stay(tmp_path):
    where = tmp_path / "raw"
    samples.ms_marco(where)
    track = [where / "msmarco-test2019-queries.tsv", where / "2019qrels-pass.txt"]
    track[1].write_text(track[1].read_text().replace(" 3\n", "000 3\n"))
    with pytest.raises(InputError, match="a judgement of dl19 is of a document that is not there"):
        build("ms_marco", where, tmp_path / "built")
    for file in track:
        file.unlink()
    build("ms_marco", where, tmp_path / "built")
    assert set(corpus.read_beir(tmp_path / "built").qrels) == {"train", "dev"}


@pytest.mark.parametrize("name", ["qrels/../../precious.txt", "/etc/hostname", "qrels/a/b.tsv", "thesis.tex"])
def test_about_json_names_no_file_that_no_build_writes(made, tmp_path, name):
    where = tmp_path / "built"
    build("ms_marco", made["ms_marco"], where)
    (tmp_path / "precious.txt").write_text("years of work")
    said = json.loads((where / "about.json").read_text())
    said["files"][name] = {"bytes": 13, "sha256": ""}
    (where / "about.json").write_text(json.dumps(said))
    for use in (folder.verify, lambda where: build("ms_marco", made["ms_marco"], where)):
        with pytest.raises(InputError):
            use(where)
    assert (tmp_path / "precious.txt").read_text() == "years of work"


def contents_of(name, made, tmp_path):
    build(name, made[name], tmp_path / "alone")
    return contents(tmp_path / "alone")


def test_one_build_at_a_time(made, tmp_path):
    with folder.building(tmp_path / "built", "kilt", "nq"):
        code = (
            "import sys, pathlib; from gr_jax.datasets import kilt\n"
            "kilt.build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 'nq', show=False)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, made["kilt"], tmp_path / "built"], capture_output=True, text=True
        )
    assert "another process builds this folder" in done.stderr
    assert build("kilt", made["kilt"], tmp_path / "built").documents == samples.TOWNS


FAULTS = {
    "a judged passage that is not there": ("ms_marco", "collection.tsv", lambda text: text[: len(text) // 2]),
    "no passages": ("ms_marco", "collection.tsv", lambda text: ""),
    "no pages": ("kilt", "kilt_knowledgesource.json", lambda text: ""),
    "a question of two splits": ("kilt", "nq-dev-kilt.jsonl", lambda text: text.replace("dev-0", "train-0")),
    "two ids but for a space": (
        "kilt", "nq-dev-kilt.jsonl", lambda text: text.replace("dev-0", "dev 1").replace("dev-1", "dev_1")
    ),
    "half an id": ("kilt", "nq-dev-kilt.jsonl", lambda text: text.replace("dev-0", "dev\\ud83d")),
    "half a page's id": ("kilt", "kilt_knowledgesource.json", lambda text: text.replace('"7"', '"\\ud83d"')),
    "a blank question": ("kilt", "nq-dev-kilt.jsonl", lambda text: re.sub(r'"input": "[^"]*"', '"input": " "', text)),
    "a blank question of DPR": (
        "dpr", "biencoder-nq-dev.json", lambda text: re.sub(r'"question": "[^"]*"', '"question": ""', text)
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_no_system_could_read_is_not_finished(tmp_path, fault):
    name, file, damage = FAULTS[fault]
    KINDS[name].sample(tmp_path / "raw")
    path = tmp_path / "raw" / file
    path.write_text(damage(path.read_text()))
    with pytest.raises(InputError) as caught:
        build(name, tmp_path / "raw", tmp_path / "built")
    assert caught.value.file is not None
    assert not (tmp_path / "built" / "about.json").exists()


@pytest.mark.parametrize("said", ['{"me": 1}', "[]", "{"])
def test_an_about_json_of_somebody_is_not_ours(made, tmp_path, said):
    (tmp_path / "about.json").write_text(said)
    with pytest.raises(InputError, match="something else"):
        build("kilt", made["kilt"], tmp_path)
    with pytest.raises(InputError, match="does not say"):
        folder.verify(tmp_path)


def test_an_output_that_cannot_be_made(made, tmp_path):
    (tmp_path / "file").write_text("x")
    for name in KINDS:
        for output in (tmp_path / "file", tmp_path / "file" / "within"):
            with pytest.raises(InputError):
                build(name, made[name], output)


def test_nobodys_folder_is_written_over(made, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "mine"}\n')
    for name in KINDS:
        with pytest.raises(InputError, match="something else"):
            build(name, made[name], tmp_path)
    assert "mine" in (tmp_path / "corpus.jsonl").read_text()


@settings(max_examples=100)
@given(st.lists(st.text(alphabet="abc", min_size=1), min_size=1))
def test_ids_that_come_twice_are_found(ids):
    documents = [Document(one, "", "text") for one in ids]
    identity = Identity()
    for document in documents:
        identity.add(document)
    twice = {one for one in ids if ids.count(one) > 1}
    found = identity.ids.repeated(ids)
    assert all(one in identity.ids for one in ids) and "d" not in identity.ids
    assert (found in twice) if twice else found is None
    if not twice:
        assert identity.fingerprint == corpus.Corpus.from_documents(documents).fingerprint


def test_unclosed_parts_empty_titles_and_a_title_again_and_again(tmp_path):
    """By titles: the pages of one title are one, whatever their number; what is not closed is not there."""
    where = tmp_path / "raw"
    samples.nq(where)
    file = where / "v1.0-simplified_simplified-nq-train.jsonl.gz"
    first = json.loads(gzip.decompress(file.read_bytes()).splitlines()[0])
    page = first["document_text"]
    pages = [page] * 2000 + [page.replace("</H1>", ""), page.replace("</P>", ""), page.replace("<P>", "")]
    records = [{**first, "example_id": 5000 + number, "document_text": one} for number, one in enumerate(pages)]
    file.write_bytes(gzip.compress("".join(f"{json.dumps(one)}\n" for one in records).encode()))
    rules = nq320k.Rules(normaliser="none")
    about = nq_build.build_nq([file], [where / "nq-dev-00.jsonl.gz"], tmp_path / "built", rules, show=False)
    assert about.notes == {nq_build.WITHOUT_TITLE: 1, nq_build.WITHOUT_PARAGRAPH: 2}
    assert about.questions["train"] == 2003 and about.documents == samples.DEV + 1  # and the page without a heading
    read = corpus.read_beir(tmp_path / "built")
    assert len({page for grades in read.split("train").values() for page in grades}) == 2


def test_an_id_that_comes_twice_is_refused(tmp_path):
    samples.ms_marco(tmp_path / "raw")
    with open(tmp_path / "raw" / "collection.tsv", "a") as file:
        file.write("7\tonce more\n")
    with pytest.raises(InputError, match=r"two documents have one id \(got '7'\)"):
        build("ms_marco", tmp_path / "raw", tmp_path / "built")
    assert not (tmp_path / "built" / "about.json").exists()


def test_half_surrogate_pairs_are_replaced_and_counted(tmp_path):
    samples.kilt(tmp_path / "raw")
    file = tmp_path / "raw" / "kilt_knowledgesource.json"
    first, *others = file.read_text().splitlines()
    page = json.loads(first)
    page["text"][1] = "half \ud83d here\n"
    file.write_text("\n".join([json.dumps(page), *others]))
    about = build("kilt", tmp_path / "raw", tmp_path / "built")
    assert about.notes[folder.HALVES] == 1
    assert corpus.read_beir(tmp_path / "built").corpus[0].text.startswith("half ? here")

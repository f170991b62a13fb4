"""Natural Questions: real records, crafted ones as NCI's published script read them, and collections by every rule.

nq_golden.json has, of each crafted record, what the cells of NQ_dataset_Process.ipynb made of it (Neural-Corpus-Indexer
at the commit that stands there): its id, title, the SHA-256 of abstract and content, long and short answer.
"""

import gzip
import hashlib
import json
import pathlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gr_jax import corpus
from gr_jax.corpus import nq, nq320k
from gr_jax.corpus.nq320k import VARIANTS, Rules, extract, finished
from gr_jax.datasets import nq_build
from gr_jax.errors import InputError
from tests.datasets.nq_records import records

GOLDEN = json.loads((pathlib.Path(__file__).parent / "nq_golden.json").read_text())["rows"]
AS_PUBLISHED = Rules(own_abstract=False, normaliser="none")


def write(file, made, *, zipped=False):
    text = "".join(json.dumps(one) + "\n" for one in made)
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return file


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """(train, dev): 100 crafted records each, in two files and in one."""
    folder = tmp_path_factory.mktemp("nq")
    train = records(0, 100, dev=False)
    files = [write(folder / "train-0.jsonl", train[:70]), write(folder / "train-1.jsonl.gz", train[70:], zipped=True)]
    return files, [write(folder / "dev.jsonl.gz", records(1, 100, dev=True), zipped=True)]


def test_crafted_records_as_the_published_script_reads_them(raw):
    found, before = {}, -1
    for files, dev in ((raw[1], True), (raw[0], False)):  # dev first, as there
        read = [one for file in files for one in nq.read_nq(file)]
        extracts = list(finished((extract(one, AS_PUBLISHED, str, dev=dev) for one in read), AS_PUBLISHED, before))
        before = extracts[-1].end
        found |= {one.id: (record, one) for record, one in zip(read, extracts, strict=True)}
    assert list(found) != [] and len(GOLDEN) == len(found) == 200
    for identifier, title, digest, long_answer, short_answer in GOLDEN:
        record, one = found[identifier]
        assert one.title == title.strip(), identifier
        assert hashlib.sha256(one.text.encode()).hexdigest().startswith(digest), identifier
        assert record.long_answer == long_answer
        if record.long_answer:  # the script reads short answers in the page of the last record that had a long one
            assert "|".join(record.short_answers) == short_answer


def test_real_records(shared_data):
    folder = shared_data / "formats" / "nq"
    (record,) = list(nq.read_nq(folder / "simplified_dev_sample.jsonl"))[:1]
    assert record.id == "5328212470870865242" and record.question == "how i.met your mother who is the mother"
    assert record.heading == " The Mother ( How I Met Your Mother ) "
    assert record.name == "The Mother ( How I Met Your Mother )" and record.title is None
    assert record.url_without_revision == (
        "https://en.wikipedia.org//w/index.php?title=The_Mother_(How_I_Met_Your_Mother)"
    )
    assert record.short_answers == ("Tracy McConnell",) and record.long_answer.startswith("Tracy McConnell , better")
    parts = nq.parts_of(record.page)
    assert parts.abstract.startswith(" Tracy McConnell , better known as `` The Mother '' , is the title character")
    assert parts.content.startswith("The story of how Ted met The Mother is the framing device")
    assert "<" not in parts.content and "</Ul>" in record.page[parts.end :]
    train = next(nq.read_nq(folder / "simplified_train_sample.jsonl"))
    assert train.heading == " List of WWE champions " and train.long_answer == "" and train.short_answers == ()
    assert train.url.endswith("title=List_of_WWE_Champions&amp;oldid=866450897")


def test_a_worked_page():
    page = "A - Wikipedia <H1> A </H1> x <P> one <B> two </B> </P> three <Ul> a </Ul> four <Ul> b </Ul> five"
    page += " <Ul> c </Ul> six"
    parts = nq.parts_of(page)
    assert parts.abstract == " one <B> two </B> " and parts.content == "three a four b"
    assert nq.parts_of("<P> one </P> two <Ul> a </Ul> three").content == "two a"
    assert nq.parts_of("<P> one </P> two").content == "two"
    assert nq.parts_of("N <H1> A </H1> two").content == "two" and nq.parts_of("two").content == "two"
    assert nq.parts_of("0123456789 two", before=3).content == "789 two"  # behind what would be its </P>


def build(raw, folder, rules, **settings):
    return nq_build.build_nq(*raw, folder, rules, show=False, **settings)


def expected(raw, rules, key):
    """By hand: the first record of each key, train before dev."""
    first, asked = {}, []
    for files, dev in ((raw[0], False), (raw[1], True)):
        for file in files:
            for record in nq.read_nq(file):
                title = (record.name if dev or rules.title == "name" else record.heading).strip()
                asked.append((record.id, dev, first.setdefault(key(record, title), record.id)))
    return first, asked


KEYS = {
    "heading": (Rules(normaliser="none"), lambda record, title: title),
    "name": (Rules("name", "none"), lambda record, title: title),
    "page": (VARIANTS["page"], lambda record, title: record.url.split("&amp;oldid=")[0]),
    "revision": (VARIANTS["revision"], lambda record, title: record.url),
}


@pytest.mark.parametrize("name", KEYS)
def test_the_rules_for_duplicates(raw, tmp_path, name):
    rules, key = KEYS[name]
    first, asked = expected(raw, rules, key)
    built = build(raw, tmp_path / "nq", rules)
    made = corpus.read_beir(tmp_path / "nq")
    assert list(made.corpus.doc_ids) == list(first.values()) and built.documents == len(first) < 200
    judged = {split: {q: list(g) for q, g in qrels.items()} for split, qrels in made.qrels.items()}
    assert judged["train"] == {one: [page] for one, dev, page in asked if not dev}
    assert judged["test"] == {one: [page] for one, dev, page in asked if dev}
    trained = {page for _, dev, page in asked if not dev}
    assert judged["test_seen"] == {one: [page] for one, dev, page in asked if dev and page in trained}
    assert judged["test_unseen"] == {one: [page] for one, dev, page in asked if dev and page not in trained}
    assert built.questions == {split: len(one) for split, one in judged.items()}
    assert built.notes[nq_build.WITHOUT_TITLE] > 0
    assert built.fingerprint == made.corpus.fingerprint
    assert json.loads((tmp_path / "nq" / "about.json").read_text())["documents"] == len(first)
    assert sorted(path.name for path in (tmp_path / "nq").iterdir()) == [
        "about.json", "corpus.jsonl", "qrels", "queries.jsonl",
    ]  # fmt: skip


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_processes_and_interruptions_change_no_byte(raw, tmp_path, monkeypatch):
    monkeypatch.setattr(nq_build, "PART", 7)
    rules = VARIANTS["nci_as_published"]
    rules = Rules(rules.title, "none", rules.duplicates, own_abstract=False)
    build(raw, tmp_path / "whole", rules)
    write_parts = nq_build._part
    for stop in (1, 9, 20):
        seen = []

        def failing(stem, place, seen=seen, stop=stop):
            seen.append(place)
            if len(seen) > 2 * stop:
                raise KeyboardInterrupt
            return write_parts(stem, place)

        monkeypatch.setattr(nq_build, "_part", failing)
        with pytest.raises(KeyboardInterrupt):
            build(raw, tmp_path / "cut", rules)
    monkeypatch.setattr(nq_build, "_part", write_parts)
    read = []
    parse = nq.parse_nq
    monkeypatch.setattr(nq, "parse_nq", lambda *line: read.append(line) or parse(*line))
    build(raw, tmp_path / "cut", rules)
    assert 0 < len(read) < 200  # what was read before is not read again
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_two_processes(raw, tmp_path):
    for processes in (1, 2):
        build(raw, tmp_path / str(processes), AS_PUBLISHED, processes=processes)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_titles_go_through_tokens_and_back(raw, tmp_path):
    pytest.importorskip("tokenizers")
    from gr_jax.interop import huggingface

    folder = huggingface.find_minilm()
    if folder is None:
        pytest.skip("the packaged MiniLM, whose vocabulary is bert-base-uncased's, is not installed")
    build(raw, tmp_path / "nq", VARIANTS["nci"], tokenizer=folder)
    titles = list(corpus.read_beir(tmp_path / "nq").corpus.titles)
    # Case and accents are gone, and decoding puts no space before a full stop: these are one title each.
    assert sorted(titles) == sorted(
        ["the mother", "ship ( boat )", "ship", "cafe", "a. b.", "", "42", "x - ray", "new", "older"]
    )
    with pytest.raises(InputError, match="tokenizer"):
        build(raw, tmp_path / "other", VARIANTS["nci"])


@pytest.mark.parametrize(
    "wrong",
    [{"example_id": None}, {"question_text": 3}, {"document_text": None}, {"annotations": "x"},
     {"annotations": [{"short_answers": []}]}, {"annotations": [{"long_answer": {"start_token": "x"}}]},
     {"document_tokens": [3]}, {"document_tokens": [{"token": "a"}]}],
)  # fmt: skip
def test_records_that_are_none(raw, tmp_path, wrong):
    good = records(0, 2, dev=False)
    file = write(tmp_path / "bad.jsonl", [good[0], {**good[1], **wrong}])
    with pytest.raises(InputError, match=r"bad\.jsonl:2"):
        build(([file], raw[1]), tmp_path / "nq", AS_PUBLISHED)
    assert not (tmp_path / "nq" / "corpus.jsonl").exists()


def test_files_that_are_none(raw, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    for train, said in ((tmp_path / "none", "cannot be read"), (tmp_path / "empty", "no records")):
        with pytest.raises(InputError, match=said):
            build(([train], raw[1]), tmp_path / "nq", AS_PUBLISHED)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(raw[1][0].read_bytes()[:-200])
    with pytest.raises(InputError, match="truncated or damaged"):
        build((raw[0], [cut]), tmp_path / "nq", AS_PUBLISHED)
    with pytest.raises(InputError, match="came before"):
        build(([raw[0][0], raw[0][0]], raw[1]), tmp_path / "nq", AS_PUBLISHED)
    with pytest.raises(InputError, match="heading or name"):
        nq320k.Rules(title="url")


@settings(deadline=None, max_examples=500)
@given(st.text(alphabet="<>aP/ \n", max_size=24))
def test_tags_are_those_of_the_published_expression(text):
    assert nq.without_tags(text) == re.sub("<[^<]+?>", "", text).replace("\n", "").strip()


@settings(deadline=None, max_examples=1000)
@given(
    st.lists(
        st.sampled_from(["<P>", "</P>", "<", ">", "<>", "a", "b c", " ", "  ", "\n", " <B> ", "<Td> "]), max_size=30
    )
)
def test_content_is_what_the_published_expressions_leave(pieces):
    """Tags, then line ends, then runs of spaces, one pass after the other."""
    page = "<P> abstract </P>" + "".join(pieces)
    rest = page[page.find("</P>") + len("</P>") :]
    plain = re.sub("<[^<]+?>", "", rest).replace("\n", "").strip()
    assert nq.parts_of(page).content == re.sub(" +", " ", plain)


def test_nobodys_documents_are_written_over(raw, tmp_path):
    mine = write(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "mine"}])
    with pytest.raises(InputError, match="something else"):
        build(raw, tmp_path, AS_PUBLISHED)
    assert "mine" in mine.read_text()
    for _ in range(2):  # a build may follow another of the same
        assert build(raw, tmp_path / "nq", AS_PUBLISHED).documents > 0
    with pytest.raises(InputError, match=r"holds nq320k \(.*\), which nq320k \(page\) would replace"):
        build(raw, tmp_path / "nq", VARIANTS["page"])


def test_pages_without_address_are_not_one(raw, tmp_path):
    made = records(0, 3, dev=False)
    file = write(tmp_path / "train.jsonl", [made[0], {**made[1], "document_url": None}, made[2]])
    with pytest.raises(InputError, match=r"train\.jsonl:2: a page without an address"):
        build(([file], raw[1]), tmp_path / "nq", VARIANTS["page"])
    assert build(([file], raw[1]), tmp_path / "nq", AS_PUBLISHED).questions["train"] == 3

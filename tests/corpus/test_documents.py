"""Corpora in columns: what goes in comes out, in memory and memory-mapped, and what is damaged is refused."""

import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gr_jax import InputError
from gr_jax.corpus import Corpus, Document, TextColumn

DOCUMENTS = [
    Document("a", "First", "one two"),
    Document("b", "", "東京 is a city\nof Japan"),
    Document("c#3", "Third", ""),
]

texts = st.text(st.characters(codec="utf-8"), max_size=20)
ids = st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1, max_size=6).filter(
    lambda i: i.split() == [i]
)
corpora = st.lists(st.builds(Document, ids, texts, texts), min_size=1, max_size=12, unique_by=lambda d: d.doc_id)


@hypothesis.given(documents=corpora)
def test_documents_come_out_as_they_went_in(documents):
    corpus = Corpus.from_documents(iter(documents))
    assert list(corpus) == documents
    assert [corpus[i] for i in range(len(corpus))] == documents
    assert list(corpus.doc_ids) == [document.doc_id for document in documents]
    assert corpus.titles[:] == [document.title for document in documents]
    assert [corpus.index_of(document.doc_id) for document in documents] == list(range(len(documents)))
    assert corpus[-1] == documents[-1]


@hypothesis.given(documents=corpora, data=st.data())
def test_subset_keeps_the_order_asked_for(documents, data):
    indices = data.draw(st.permutations(range(len(documents))))[: data.draw(st.integers(1, len(documents)))]
    assert list(Corpus.from_documents(documents).subset(indices)) == [documents[i] for i in indices]


@hypothesis.given(first=corpora, second=corpora)
def test_fingerprints_tell_corpora_apart(first, second):
    fingerprints = [Corpus.from_documents(documents).fingerprint for documents in (first, second)]
    assert (fingerprints[0] == fingerprints[1]) == (first == second)


def test_fingerprint_sees_where_the_title_ends():
    one = Corpus.from_documents([Document("a", "x", "yz")])
    assert one.fingerprint != Corpus.from_documents([Document("a", "xy", "z")]).fingerprint
    assert len(one.fingerprint) == 16


def test_written_corpora_are_memory_mapped_and_equal(tmp_path):
    memory = Corpus.from_documents(DOCUMENTS)
    stored = Corpus.from_documents(DOCUMENTS, tmp_path / "store")
    memory.save(tmp_path / "saved")
    for corpus in (stored, Corpus.load(tmp_path / "store"), Corpus.load(tmp_path / "saved")):
        assert list(corpus) == DOCUMENTS
        assert corpus.fingerprint == memory.fingerprint
        assert isinstance(corpus.texts.blob, np.memmap) and isinstance(corpus.texts.offsets.base, np.memmap)
        # Not the one that is remembered.
        del corpus.__dict__["fingerprint"]
        assert corpus.fingerprint == memory.fingerprint


def test_a_store_takes_documents_one_at_a_time(tmp_path):
    alive = []

    def stream():
        for i in range(1000):
            alive.append(i)
            yield Document(f"d{i}", "t", "x" * 100)

    corpus = Corpus.from_documents(stream(), tmp_path / "store")
    assert len(corpus) == len(alive) == 1000
    assert corpus.index_of("d731") == 731


def test_a_failed_store_leaves_what_was_there(tmp_path):
    Corpus.from_documents(DOCUMENTS, tmp_path / "store")

    def broken():
        yield Document("z", "", "new")
        raise RuntimeError("the source broke off")

    with pytest.raises(RuntimeError, match="broke off"):
        Corpus.from_documents(broken(), tmp_path / "store")
    assert list(Corpus.load(tmp_path / "store")) == DOCUMENTS
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize(
    ("documents", "problem"),
    [
        ([], "empty"),
        (
            [Document("a", "", "x"), Document("b", "", "y"), Document("a", "", "z")],
            "documents 0 and 2 have the same id",
        ),
        ([Document("", "", "x")], "without an id"),
        ([Document("a b", "", "x")], "white space"),
        ([Document("a\u2028", "", "x")], "white space"),
        ([Document("a", "", "\ud800")], "Unicode"),
    ],
)
def test_bad_documents_are_refused(documents, problem):
    with pytest.raises(InputError, match=problem):
        Corpus.from_documents(documents)


def test_an_unknown_id_is_refused():
    corpus = Corpus.from_documents(DOCUMENTS)
    assert "a" in corpus and "nobody" not in corpus and "\ud800" not in corpus and corpus.find("nobody") is None
    with pytest.raises(InputError, match="nobody"):
        corpus.index_of("nobody")


def test_ids_with_colliding_hashes_are_told_apart(monkeypatch):
    monkeypatch.setattr("gr_jax.corpus.documents._hash", lambda doc_id: len(doc_id))
    corpus = Corpus.from_documents(Document(name, "", "x") for name in ("aa", "bb", "c", "dd"))
    assert [corpus.find(name) for name in ("aa", "bb", "c", "dd", "ee", "fff")] == [0, 1, 2, 3, None, None]
    with pytest.raises(InputError, match="documents 0 and 2 have the same id"):
        Corpus.from_documents(Document(name, "", "x") for name in ("aa", "bb", "aa"))


def test_contents_are_title_and_text():
    contents = Corpus.from_documents(DOCUMENTS).contents
    expected = ["First one two", "東京 is a city\nof Japan", "Third "]
    assert list(contents) == [contents[i] for i in range(3)] == contents[:] == expected


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "saved"
    Corpus.from_documents(DOCUMENTS).save(folder)
    return folder


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(data=st.data())
def test_a_damaged_artefact_reads_equal_or_is_refused(saved, tmp_path, data):
    folder = tmp_path / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    file = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    content = bytearray((folder / file).read_bytes())
    place = data.draw(st.integers(0, max(0, len(content) - 1)))
    match data.draw(st.sampled_from(["flip", "cut", "insert", "remove"])):
        case "flip":
            content[place : place + 1] = bytes([content[place] ^ data.draw(st.integers(1, 255))]) if content else b""
        case "cut":
            del content[place:]
        case "insert":
            content[place:place] = data.draw(st.binary(min_size=1, max_size=4))
        case "remove":
            (folder / file).unlink()
    if (folder / file).exists():
        (folder / file).write_bytes(content)
    try:
        corpus = Corpus.load(folder)
    except InputError:
        return
    assert list(corpus) == DOCUMENTS
    assert corpus.fingerprint == Corpus.from_documents(DOCUMENTS).fingerprint


@hypothesis.given(strings=st.lists(texts))
def test_a_column_is_a_sequence(strings):
    column = TextColumn.of(strings)
    assert list(column) == strings and column[:] == strings and column[::-2] == strings[::-2]
    assert len(column) == len(strings)
    assert column == TextColumn.of(strings) and column != TextColumn.of([*strings, "x"])
    with pytest.raises(IndexError):
        column[len(strings)]

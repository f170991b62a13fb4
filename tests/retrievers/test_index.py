"""Indexes: what was saved answers, and parts that do not belong together are refused."""

import numpy as np
import pytest

import gr_jax
from gr_jax import storage
from gr_jax.corpus import Corpus, Document
from gr_jax.errors import InputError
from gr_jax.evaluation.temperature import Calibration
from gr_jax.registry import Registry
from gr_jax.retrievers import BM25, Ranking, index

CORPUS = Corpus.from_documents(
    [Document("d0", "Cats", "They sleep."), Document("d1", "Dogs", "They run."), Document("d2", "Owls", "They see.")]
)


class Retriever:
    """What an index needs of one, of a kind that no version has."""

    num_documents = 3

    def save(self, folder, *, corpus):
        with storage.write_folder(folder, "telepathy", corpus=corpus):
            pass


def test_an_index_is_its_retriever_and_its_documents(tmp_path):
    index.save(tmp_path / "index", BM25(CORPUS), CORPUS, meta={"by": "a test"}, gin="x = 1")
    manifest = storage.read_folder(tmp_path / "index", "index")
    assert manifest.corpus == CORPUS.fingerprint and manifest.meta == {"by": "a test"} and manifest.gin == "x = 1"
    for load in (index.load, gr_jax.load):
        (hit,) = load(tmp_path / "index").search("dogs", k=1)
        assert (hit.doc_id, hit.title, hit.text, hit.docid) == ("d1", "Dogs", "They run.", "")


def test_a_corpus_of_another_size_is_refused(tmp_path):
    with pytest.raises(InputError, match="3 documents for a corpus of 2"):
        index.save(tmp_path / "index", BM25(CORPUS), CORPUS.subset([0, 1]))
    assert not (tmp_path / "index").exists()
    with storage.write_folder(tmp_path / "index", "index") as folder:
        BM25(CORPUS).save(folder / "retriever", corpus=CORPUS.fingerprint)
        CORPUS.subset([0, 1]).save(folder / "corpus")
    with pytest.raises(InputError, match=str(tmp_path / "index")):
        index.load(tmp_path / "index")


def test_a_retriever_that_this_version_does_not_have(tmp_path):
    index.save(tmp_path / "index", Retriever(), CORPUS)
    with pytest.raises(InputError, match="'telepathy'"):
        index.load(tmp_path / "index")


def test_a_kind_is_registered_by_a_call_and_no_manifest_imports_anything(tmp_path, monkeypatch):
    seen = []

    class Telepath:
        num_documents = 3
        reads_corpus = True

        @classmethod
        def load(cls, folder, corpus, *, verify):
            seen.append(corpus)
            return cls()

        def retrieve(self, queries, k, *, allowed=None, explain=False):
            index_of = np.zeros((len(queries), k), np.int32)
            return Ranking(index_of, index_of.astype(np.float32))

    monkeypatch.setattr(index, "RETRIEVERS", Registry("retriever"))
    index.save(tmp_path / "index", Retriever(), CORPUS)
    with pytest.raises(InputError, match="no such retriever.*known are none"):
        index.load(tmp_path / "index")
    index.RETRIEVERS.register("telepathy", Telepath)
    assert index.load(tmp_path / "index").search("dogs", k=1)[0].doc_id == "d0"
    assert [corpus.fingerprint for corpus in seen] == [CORPUS.fingerprint]
    with pytest.raises(InputError, match="one name"):
        index.RETRIEVERS.register("telepathy", "tests.retrievers.test_index:Retriever")
    with pytest.raises(InputError, match="known are telepathy"):
        index.RETRIEVERS.find("bm25")


def test_loading_maps_the_documents(tmp_path):
    index.save(tmp_path / "index", BM25(CORPUS), CORPUS)
    searcher = index.load(tmp_path / "index")
    assert searcher.corpus.fingerprint == CORPUS.fingerprint
    assert isinstance(searcher.corpus.texts.blob, np.memmap)


def test_a_kind_that_is_no_name_is_refused():
    kinds = Registry("kind of thing")
    with pytest.raises(InputError, match="there is no such kind of thing here"):
        kinds.find(["a list"])


def test_a_calibration_is_kept_beside_what_it_is_of(tmp_path):
    folder, other = tmp_path / "index", tmp_path / "other"
    for one, k1 in ((folder, 0.9), (other, 1.2)):
        index.save(one, BM25(CORPUS, k1=k1), CORPUS)
    made = Calibration(0.5, 3, 10, 0.1, 0.1, 0.2, 0.2)
    with pytest.raises(InputError, match="not measured"):
        index.load(folder).search("dogs", probability=True)
    index.save_calibration(folder, made)
    assert index.load(folder).calibration == made
    (hit,) = index.load(folder).search("dogs", k=1, probability=True)
    assert hit.probability is not None and 0 < hit.probability <= 1
    file = folder / index.CALIBRATION
    (other / index.CALIBRATION).write_bytes(file.read_bytes())
    with pytest.raises(InputError, match="of another index"):
        index.load(other)
    for damaged in ("", "[]", "{}", file.read_text().replace("0.5", "-0.5"), "[" * 100_000):
        file.write_text(damaged)
        with pytest.raises(InputError, match="gr-jax calibrate"):
            index.load(folder)
    with pytest.raises(InputError, match="no such artefact"):
        index.save_calibration(tmp_path / "none", made)


def test_other_documents_have_another_calibration():
    searcher = gr_jax.retrievers.Searcher(BM25(CORPUS), CORPUS, Calibration(0.5, 3, 10, 0.1, 0.1, 0.2, 0.2))
    assert searcher.update(remove=["d0"]).calibration is None

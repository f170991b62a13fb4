"""Data sets of ir_datasets by their ids, whose files are made here."""

import pytest

from gr_jax import corpus
from gr_jax.datasets import folder, ir_catalogue
from gr_jax.errors import InputError


@pytest.fixture
def registered(tmp_path):
    """An id of ir_datasets' whose files are here."""
    ir_datasets = pytest.importorskip("ir_datasets")
    (tmp_path / "docs.tsv").write_text("d1\tfirst text\nd2\tsecond text\n")
    (tmp_path / "queries.tsv").write_text("q1\tfirst?\nq2\tnobody asks\n")
    (tmp_path / "qrels").write_text("q1 0 d2 1\nq1 0 d2 2\n")
    found = ir_datasets.create_dataset(
        docs_tsv=str(tmp_path / "docs.tsv"), queries_tsv=str(tmp_path / "queries.tsv"),
        qrels_trec=str(tmp_path / "qrels"),
    )  # fmt: skip
    for split in ("train", "test"):
        ir_datasets.registry.register(f"gr_jax_made_up/{split}", found)
    yield "gr_jax_made_up/train+gr_jax_made_up/test"
    for split in ("train", "test"):
        del ir_datasets.registry._registered[f"gr_jax_made_up/{split}"]


def test_ids_of_ir_datasets(registered, tmp_path):
    read = ir_catalogue.read(registered)
    assert [document.text for document in read.corpus] == ["first text", "second text"]
    assert read.queries.ids == ("q1",) and {split: dict(one["q1"]) for split, one in read.qrels.items()} == {
        "train": {"d2": 2}, "test": {"d2": 2},
    }  # fmt: skip
    about = ir_catalogue.build(registered, tmp_path / "built", show=False)
    assert about.fingerprint == read.corpus.fingerprint == corpus.read_beir(tmp_path / "built").corpus.fingerprint
    assert about.notes[ir_catalogue.REPEATED] == 2 and folder.verify(tmp_path / "built") == []


def test_ids_that_are_none(registered):
    with pytest.raises(InputError, match="no data set of this id"):
        ir_catalogue.load("gr_jax_made_up/none")
    with pytest.raises(InputError, match="two data sets of one split"):
        ir_catalogue.parts("a/train+b/train")

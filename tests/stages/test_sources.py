"""Sources know what identifies their content before they read it."""

import gzip
import importlib
import importlib.metadata
import pathlib

import pytest

from gr_jax.errors import InputError
from gr_jax.stages.sources import BeirFolder, BeirPassages, PythonDocs
from tests import small_data


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    return small_data.write_beir(tmp_path / "mine", count=6)


def test_a_beir_folder_is_its_files_bytes(folder, tmp_path):
    before = BeirFolder(str(folder)).identity()
    assert BeirFolder(str(folder)).identity() == before
    (tmp_path / "elsewhere").mkdir()
    assert BeirFolder(str(folder.rename(tmp_path / "elsewhere" / "mine"))).identity() == before
    folder = tmp_path / "elsewhere" / "mine"
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        data = file.read_bytes()
        file.write_bytes(data.replace(b"1", b"2", 1) if b"1" in data else data + b"\n")
        changed = BeirFolder(str(folder)).identity()
        assert changed != before
        assert [n for n in before["beir"] if before["beir"][n] != changed["beir"][n]] == [str(file.relative_to(folder))]
        file.write_bytes(data)
    assert BeirFolder(str(folder)).identity() == before


def test_transform_and_subset_are_part_of_it(folder, tmp_path):
    plain, subset = BeirFolder(str(folder)), tmp_path / "some.ids"
    subset.write_text("d0\nd2\nd3\n")
    cut = BeirFolder(str(folder), subset=str(subset))
    split = BeirFolder(str(folder), transform="split_identifiers")
    assert len({str(source.identity()) for source in (plain, cut, split)}) == 3
    before = cut.identity()
    subset.write_text("d0\nd2\n")
    assert cut.identity() != before
    dataset = cut.load(tmp_path / "store")
    assert list(dataset.corpus.doc_ids) == ["d0", "d2"] and dataset.transform == "none"
    assert split.load(tmp_path / "store2").transform == "split_identifiers"


def test_only_the_corpus_is_required(tmp_path):
    row = b'{"_id": "a", "title": "t", "text": "some text"}\n'
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(row))
    source = BeirFolder(str(tmp_path))
    assert list(source.identity()["beir"]) == ["corpus.jsonl.gz"]
    dataset = source.load(tmp_path / "store")
    assert len(dataset.corpus) == 1 and not dataset.qrels


def test_what_is_not_there(folder, tmp_path):
    with pytest.raises(InputError, match="nowhere.*corpus.jsonl"):
        BeirFolder(str(tmp_path / "nowhere")).identity()
    with pytest.raises(InputError, match=str(tmp_path)):
        BeirFolder(str(tmp_path)).identity()
    with pytest.raises(InputError, match="missing.ids"):
        BeirFolder(str(folder), subset="missing.ids").identity()


def test_python_docs_are_the_packages_versions(monkeypatch):
    config = PythonDocs(("numpy", "json")).identity()
    assert config["python_docs"]["numpy"] == importlib.metadata.version("numpy")
    assert config == PythonDocs(["numpy", "json"]).identity() != PythonDocs(("numpy",)).identity()
    everything = PythonDocs().identity()["python_docs"]
    assert {"jax", "flax", "optax", "orbax", "numpy"} <= everything.keys()
    assert all(everything[name] for name in ("jax", "flax", "optax", "orbax", "numpy")), everything
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1")
    assert PythonDocs(("numpy", "json")).identity() != config


def test_a_package_that_was_never_installed_is_its_source(monkeypatch, tmp_path):
    (tmp_path / "homemade").mkdir()
    (tmp_path / "homemade" / "__init__.py").write_text('"""Made at home."""\n')
    (tmp_path / "onefile.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    source = PythonDocs(("homemade", "onefile"))
    configs = [source.identity()]
    (tmp_path / "homemade" / "more.py").write_text("y = 2\n")
    configs.append(source.identity())
    (tmp_path / "onefile.py").write_text("x = 2\n")
    configs.append(source.identity())
    assert source.identity() == configs[-1]
    assert len({str(config) for config in configs}) == 3


def test_a_package_of_another_name_than_its_distribution(monkeypatch):
    before = PythonDocs(("absl",)).identity()["python_docs"]["absl"]
    assert before == f"absl-py {importlib.metadata.version('absl-py')}"


def test_passages_are_documents_of_their_own(tmp_path):
    folder = small_data.write_beir(tmp_path / "mine", count=24)
    source = BeirPassages(str(folder), rule="sentences", words=6)
    made = source.load(tmp_path / "columns")
    assert len(made.corpus) > 24 and all("#" in doc_id for doc_id in made.corpus.doc_ids)
    assert source.identity() != BeirFolder(str(folder)).identity()
    assert source.identity() != BeirPassages(str(folder), rule="sentences", words=7).identity()

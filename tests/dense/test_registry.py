import builtins
import importlib.util

import numpy as np
import pytest

from gr_jax import storage
from gr_jax.dense import ClusteredSearch, ExactSearch, load_searcher, make_searcher, registry
from gr_jax.errors import InputError
from tests.dense import brute_force
from tests.dense.brute_force import assert_same, whole_numbers

_RNG = np.random.default_rng(0)
VECTORS, QUERIES = whole_numbers(_RNG, 300, 5), whole_numbers(_RNG, 3, 5)


@pytest.mark.parametrize(("name", "settings"), [("exact", {}), ("clustered", {"num_clusters": 4, "chosen": 4})])
def test_made_by_name_saved_and_loaded(name, settings, tmp_path):
    search = make_searcher(name, VECTORS, **settings)
    assert_same(search.search(QUERIES, 9), brute_force.search(QUERIES, VECTORS, 9))
    search.save(tmp_path / name)
    loaded = load_searcher(tmp_path / name)
    assert type(loaded) is type(search)
    assert_same(loaded.search(QUERIES, 9), brute_force.search(QUERIES, VECTORS, 9))


def test_auto_says_what_it_takes_and_why():
    said = []
    search = make_searcher("auto", VECTORS, say=said.append, block=128, chosen=3)
    assert isinstance(search, ExactSearch)
    assert said == ["vector search: exact, since 300 documents are few enough to score all of them"]


@pytest.mark.parametrize(
    ("installed", "name"), [({"scann", "numba"}, "scann"), ({"numba"}, "clustered"), (set(), "exact")]
)
def test_auto_falls_back_to_what_is_installed(monkeypatch, installed, name):
    def import_module(package):
        if package.partition(".")[0] not in installed:
            raise ImportError("an undefined symbol")

    monkeypatch.setattr(importlib, "import_module", import_module)
    chosen, why = registry._choose(10_000_000)
    assert chosen == name and ("ScaNN" in why)


def test_a_missing_package_is_named(monkeypatch):
    real = builtins.__import__

    def refuse(name, *arguments, **named):
        if name.partition(".")[0] in ("scann", "numba"):
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(importlib, "import_module", lambda name: refuse(name))
    with pytest.raises(InputError, match="numba is installed and cannot be imported: numba"):
        ClusteredSearch(VECTORS, np.zeros(300, int), backend="numba")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs the package scann"):
        make_searcher("scann", np.ones((2000, 4), np.float32))
    with pytest.raises(InputError, match="needs the package numba"):
        ClusteredSearch(VECTORS, np.zeros(300, int), backend="numba")


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such vector search"):
        make_searcher("faiss", VECTORS)
    with pytest.raises(InputError, match="no such setting"):
        make_searcher("exact", VECTORS, leaves=3)
    with storage.write_folder(tmp_path / "other", "docids"):
        pass
    with pytest.raises(InputError, match="no vector search"):
        load_searcher(tmp_path / "other")

"""Names that are imported when they are first used."""

import importlib
import inspect
import pkgutil
import types

import pytest

import gr_jax

PUBLIC = {
    "load", "evaluate", "Dataset", "Corpus", "Searcher", "Hit", "Docids", "Trie", "FMIndex", "beam_search", "System",
    "InputError",
}  # fmt: skip


def test_the_public_surface():
    found = {name: getattr(gr_jax, name) for name in dir(gr_jax)}
    modules = {name for name, value in found.items() if isinstance(value, types.ModuleType)}
    assert set(found) - modules == PUBLIC and set(gr_jax.__all__) == set(found)
    packages = {one.name for one in pkgutil.iter_modules(gr_jax.__path__) if one.ispkg}
    assert modules <= packages and {"systems", "corpus", "retrievers", "evaluation"} <= modules
    assert all(inspect.getdoc(found[name]) for name in PUBLIC)


@pytest.mark.parametrize("name", ["gr_jax", "gr_jax.dense", "gr_jax.retrievers", "gr_jax.training"])
def test_every_name_is_its_own(name):
    """A name that a submodule has too would become that submodule as soon as it is imported."""
    package = importlib.import_module(name)
    submodules = {one.name for one in pkgutil.iter_modules(package.__path__)}
    for public in package.__all__:
        assert isinstance(getattr(package, public), types.ModuleType) == (public in submodules), public
    with pytest.raises(AttributeError, match=f"{name}.*laod.*{package.__all__[-1]}"):
        package.laod  # noqa: B018

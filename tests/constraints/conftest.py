import pytest

from gr_jax import storage


@pytest.fixture
def mapped(monkeypatch):
    """The arrays that are memory-mapped from now on, as they come."""
    arrays = []
    load = storage.load_array

    def remember(path, *, mmap):
        arrays.append(load(path, mmap=mmap))
        return arrays[-1]

    monkeypatch.setattr(storage, "load_array", remember)
    return arrays

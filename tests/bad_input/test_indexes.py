"""Every file of an index of every kind, after accidents and alterations: it is refused by name, or answers as before.

A sample runs always, all of it among the slow tests.
"""

import functools
import pathlib

import numpy as np
import pytest

from gr_jax.errors import InputError
from gr_jax.retrievers import index
from tests.bad_input import indexes
from tests.bad_input.faults import ACCIDENTS, ALTERATIONS, copy_of, files_of, inflict, within

FAULTS = [*ACCIDENTS, *ALTERATIONS]
SECONDS = 60  # that a case may take; most take a hundredth of one


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """kind → its folder and what it answers."""

    @functools.cache
    def write(kind: str) -> tuple[pathlib.Path, list]:
        folder = indexes.write(kind, tmp_path_factory.mktemp("indexes") / kind)
        return folder, index.load(folder).search(indexes.QUESTION, 3)

    return write


def _check(folder: pathlib.Path, expected: list, copy: pathlib.Path, name: str, fault: str, seed: int) -> str:
    """What became of it."""
    copy_of(folder, copy)
    inflict(copy, name, fault, np.random.default_rng(seed))
    with within(SECONDS):
        try:
            found = index.load(copy).search(indexes.QUESTION, 3)
        except InputError as error:
            assert str(copy) in str(error), error
            str(error).encode("utf-8")
            return "refused"
    if fault in ACCIDENTS:
        assert found == expected
    return "answered"


def test_there_are_fourteen_faults():
    assert len(FAULTS) == 14


@pytest.mark.parametrize("kind", indexes.KINDS)
def test_a_file_of_an_index(written, tmp_path, kind):
    """For each fault one file, another for another fault."""
    folder, expected = written(kind)
    names = files_of(folder)
    random = np.random.default_rng(list(indexes.KINDS).index(kind))
    for fault in FAULTS:
        name = names[int(random.integers(len(names)))]
        _check(folder, expected, tmp_path / "index", name, fault, 0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", indexes.KINDS)
def test_every_file_of_an_index(written, tmp_path, kind, fault):
    folder, expected = written(kind)
    wrong = []
    for number, name in enumerate(files_of(folder)):
        try:
            _check(folder, expected, tmp_path / "index", name, fault, number)
        except BaseException as error:  # all of them, not the first alone
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)

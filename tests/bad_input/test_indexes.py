"""Every file of an index of every kind, after accidents and alterations: accidents are refused by name; what was
altered together with its checksums is refused, or answers.

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
TITLES = "corpus/titles.blob"  # nobody but the checksums knows what a title was


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """kind → its folder and what it answers."""

    @functools.cache
    def write(kind: str) -> tuple[pathlib.Path, list]:
        folder = indexes.write(kind, tmp_path_factory.mktemp("indexes") / kind)
        return folder, _places(index.load(folder).search(indexes.QUESTION, 3))

    return write


def _places(hits) -> list[tuple[str, float]]:
    return [(hit.doc_id, hit.score) for hit in hits]


def _answer(folder: pathlib.Path, copy: pathlib.Path, name: str, fault: str, seed: int) -> list | None:
    """What it answers; None where it says what is wrong where."""
    copy_of(folder, copy)
    inflict(copy, name, fault, np.random.default_rng(seed))
    with within(SECONDS):
        try:
            found = index.load(copy).search(indexes.QUESTION, 3)
        except InputError as error:
            assert str(copy) in str(error), error
            str(error).encode("utf-8")
            return None
    assert fault in ALTERATIONS
    return _places(found)


SAMPLE = ("bm25", "dsi", "dense_sentences", "clustered", "late_interaction", "hybrid")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind not in SAMPLE)) for kind in indexes.KINDS]
)
def test_a_file_of_an_index(written, tmp_path, kind):
    """For each fault one file, another for another fault; of the titles a letter is another one."""
    folder, expected = written(kind)
    names = files_of(folder)
    random = np.random.default_rng(list(indexes.KINDS).index(kind))
    files = {fault: names[int(random.integers(len(names)))] for fault in FAULTS} | {"other bytes": TITLES}
    answers = {fault: _answer(folder, tmp_path / "index", name, fault, 0) for fault, name in files.items()}
    assert None in answers.values() and expected and answers["other bytes"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", indexes.KINDS)
def test_every_file_of_an_index(written, tmp_path, kind, fault):
    folder, _ = written(kind)
    wrong, refused = [], []
    for number, name in enumerate(files_of(folder)):
        try:
            refused.append(_answer(folder, tmp_path / "index", name, fault, number) is None)
        except BaseException as error:  # all of them, not the first alone
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert any(refused) and (not all(refused) or fault in ACCIDENTS or fault == "nested")

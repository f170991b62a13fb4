"""Damaged records are read or refused with file and line, by every reader."""

import pytest

from benchmarks import mutated_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("samples")
    mutated_records.write_samples(made)
    return made


@pytest.mark.parametrize("name", mutated_records.READERS)
def test_damaged_records(folder, name):
    outcome = mutated_records.try_reader(name, folder, range(150))
    assert outcome.wrong == [] and outcome.read > 0 and outcome.refused > 0

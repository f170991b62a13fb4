"""A folder of documents for the smallest runs."""

import pathlib

import pytest

from tests import small_data
from tests.systems.gdr.small_run import COUNT


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> pathlib.Path:
    """A folder of 24 documents, with queries of every split."""
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "mine", count=COUNT)

"""A folder of documents."""

import pathlib

import pytest

from tests import small_data


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> pathlib.Path:
    """24 documents, with queries of every split."""
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "mine", count=24)

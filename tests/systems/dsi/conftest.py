"""Documents, and a DSI that knows them by heart."""

import pathlib

import pytest

from tests import small_data
from tests.systems import small_dsi


@pytest.fixture(scope="session")
def beir(tmp_path_factory) -> pathlib.Path:
    """A folder of 24 documents, with queries of every split."""
    return small_data.write_beir(tmp_path_factory.mktemp("beir") / "mine", count=small_dsi.COUNT)


@pytest.fixture(scope="session")
def memorised(tmp_path_factory) -> small_dsi.Memorised:
    """64 documents, learnt by heart."""
    return small_dsi.memorise(tmp_path_factory)

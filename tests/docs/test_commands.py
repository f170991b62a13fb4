"""Every command of the site's pages runs, in order, where a reader would stand. `.ci/run` has a page of words, one of
docids, one of vectors, and README, whose commands are of clusters."""

import re

import pytest

from tests.docs.pages import DOCS, EXAMPLES, PAGES, name_of
from tests.end_to_end import reader, readme

BLOCKS = [
    pytest.param(name_of(page), block, id=f"{name_of(page)}:{block.line}", marks=pytest.mark.slow)
    for page in PAGES
    if name_of(page) not in EXAMPLES
    for block in readme.parse(page.read_text(encoding="utf-8"))
    if not block.skip
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Page → the folder in which its commands run, each its own."""
    made = {}

    def folder_of(page):
        if page not in made:
            made[page] = reader.checkout(tmp_path_factory.mktemp("page") / "gr_jax")
        return made[page]

    return folder_of


@pytest.fixture(scope="module")
def prepared_run(folders):
    return reader.prepared(folders("prepared"))


@pytest.mark.parametrize("page, block", BLOCKS)
def test_block(page, block, folders, prepared_run):
    reader.run(block, f"docs/{page}", folders(page), prepared_run)


def test_what_is_skipped_runs_elsewhere():
    run = (reader.CHECKOUT / ".ci" / "run").read_text()
    for page in PAGES:
        for block in readme.parse(page.read_text(encoding="utf-8")):
            if block.skip:
                made = re.findall(r"make [\w-]+", block.skip)
                assert made and all(target in run for target in made), f"{name_of(page)}: {block.code!r} is run nowhere"


def test_pages_named_here_exist():
    names = {name_of(page) for page in PAGES}
    assert EXAMPLES.keys() <= names
    assert all((DOCS.parent / "tests" / "docs" / test).is_file() for test in EXAMPLES.values())

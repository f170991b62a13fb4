"""The pages of the site, and which tests run what stands on them."""

from __future__ import annotations

import pathlib

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
# Their examples are modules, which tests of their own import.
EXAMPLES = {
    "how_to/add_a_system.md": "test_add_a_system.py",
    "how_to/new_loss.md": "test_new_loss.py",
    "how_to/new_constraint.md": "test_new_constraint.py",
}


def name_of(page: pathlib.Path) -> str:
    """README.md, or what stands in docs, from there."""
    return page.relative_to(DOCS if DOCS in page.parents else CHECKOUT).as_posix()


def python_blocks(name: str) -> list[str]:
    """The blocks of Python of a page, as they stand there."""
    from tests.end_to_end import readme

    blocks = readme.parse((DOCS / name).read_text(encoding="utf-8"))
    return [block.code for block in blocks if block.language == "python"]

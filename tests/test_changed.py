"""Which tests a change needs, in a small checkout."""

import subprocess

import pytest

from tests import changed

FILES = {
    "gr_jax/__init__.py": "",
    "gr_jax/docids/__init__.py": "from gr_jax.docids.rows import sort_order as sort_order\n",
    "gr_jax/docids/rows.py": "def sort_order(): ...\n",
    "gr_jax/docids/titles.py": "def titles(): ...\n",
    "gr_jax/storage/folder.py": "",
    "tests/helper.py": "import gr_jax.docids.titles\n",
    "tests/docids/conftest.py": "",
    "tests/docids/test_rows.py": "",
    "tests/docids/test_titles.py": "from gr_jax.docids.titles import titles\n",
    "tests/models/test_named.py": "def test_it():\n    from gr_jax.docids import sort_order\n",
    "tests/models/test_attribute.py": "from gr_jax import docids\nprint(docids.sort_order)\n",
    "tests/models/test_helped.py": "from tests import helper\n",
    "tests/storage/test_folder.py": "",
    "tests/bad_input/test_artefacts.py": "",
    "tests/end_to_end/test_packaging.py": "",
}
PACKAGING = "tests/end_to_end/test_packaging.py"


@pytest.fixture
def tree(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return changed.Tree(tmp_path)


@pytest.mark.parametrize(
    "file, needed",
    [
        # Its own test, the rest of the mirrored folder, and who imports it through the package, by name or attribute.
        (
            "gr_jax/docids/rows.py",
            [
                "tests/docids/test_rows.py", "tests/docids/test_titles.py", "tests/models/test_attribute.py",
                "tests/models/test_named.py", PACKAGING,
            ],
        ),
        # Who imports a helper that imports it is not among them.
        ("gr_jax/docids/titles.py", ["tests/docids/test_titles.py", "tests/docids/test_rows.py", PACKAGING]),
        ("gr_jax/storage/folder.py", ["tests/storage/test_folder.py", "tests/bad_input/test_artefacts.py", PACKAGING]),
        ("tests/helper.py", ["tests/models/test_helped.py"]),
        ("tests/docids/conftest.py", ["tests/docids/test_rows.py", "tests/docids/test_titles.py"]),
        ("tests/docids/test_rows.py", ["tests/docids/test_rows.py"]),
        ("tests/docids/test_gone.py", []),
        ("setup.py", [PACKAGING]),
        ("LICENSE", []),
    ],
)  # fmt: skip
def test_what_a_file_needs(tree, file, needed):
    assert tree.needed([file]) == needed


def test_changed_test_files_come_first_and_packaging_last(tree):
    needed = tree.needed(["gr_jax/docids/rows.py", "tests/models/test_helped.py"])
    assert needed[:2] == ["tests/docids/test_rows.py", "tests/models/test_helped.py"] and needed[-1] == PACKAGING


def test_files_that_differ(tmp_path):
    def git(*words: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *named, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    for name in ("committed", "edited", "removed"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert changed.changed_files(tmp_path, "HEAD") == []
    git("checkout", "-q", "-b", "branch")
    (tmp_path / "committed").write_text("more")
    git("commit", "-q", "-a", "-m", "second")
    (tmp_path / "edited").write_text("more")
    (tmp_path / "removed").unlink()
    (tmp_path / "new").write_text("")
    assert changed.changed_files(tmp_path, "HEAD") == ["edited", "new", "removed"]
    assert changed.changed_files(tmp_path, "main") == ["committed", "edited", "new", "removed"]
